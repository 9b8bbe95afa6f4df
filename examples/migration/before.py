"""Before: an RQ job that calls the model, keeps the history and streams, all by itself."""

from __future__ import annotations

import json
import os

from openai import OpenAI
from redis import Redis
from rq import Queue, Retry
from rq.job import Job

redis = Redis.from_url(os.environ.get("REDIS_URL", "redis://localhost:6379/0"))
queue = Queue(connection=redis)


def answer(user: str, text: str) -> str:
    messages = [json.loads(line) for line in redis.lrange(f"chat:{user}", 0, -1)]
    messages.append({"role": "user", "content": text})
    said = ""
    for chunk in OpenAI().chat.completions.create(model="gpt-4o-mini", messages=messages, stream=True):
        piece = chunk.choices[0].delta.content if chunk.choices else None
        said += piece or ""
        redis.publish(f"chat:{user}", piece or "")
    messages.append({"role": "assistant", "content": said})
    redis.rpush(f"chat:{user}", *map(json.dumps, messages[-2:]))
    return said


def ask(user: str, text: str) -> Job:
    return queue.enqueue(answer, user, text, retry=Retry(3))
