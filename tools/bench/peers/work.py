"""The work of every peer's job, blocking or asynchronous: a turn of a session without Antiphon.

Hold the session's lock, read the history's tail, stream the model's answer through the SDK, publish every delta,
append question and answer to the history. The text of a turn, unless it is ``ONE_CHUNK``, sets the length of the
answer; such a turn records its start, so that its recovery can be timed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from redis import Redis
from redis.asyncio import Redis as AsyncRedis

if TYPE_CHECKING:
    import openai

ONE_CHUNK = "hi"
TAIL = 20
LOCK_SECONDS = 60


def history_key(session: str) -> str:
    return f"history:{session}"


def live_channel(session: str) -> str:
    return f"live:{session}"


def starts_key(session: str) -> str:
    """Return the key of the list of processes that have started the turn."""
    return f"starts:{session}"


def answer(session: str, text: str) -> None:
    """Run one turn in a blocking worker."""
    redis, model = _clients()
    if text != ONE_CHUNK:
        redis.rpush(starts_key(session), os.getpid())
    with redis.lock(f"lock:{session}", timeout=LOCK_SECONDS):
        said = ""
        history = redis.lrange(history_key(session), -TAIL, -1)
        with model.chat.completions.create(**_request(_decoded(history), text)) as stream:
            for chunk in stream:
                delta = chunk.choices[0].delta.content if chunk.choices else None
                if delta:
                    said += delta
                    redis.publish(live_channel(session), delta)
        redis.rpush(history_key(session), *_messages(text, said))


async def answer_async(
    session: str, text: str, publish: Callable[[str], Awaitable[Any]] | None = None
) -> None:
    """Run one turn in a worker with an event loop; ``publish`` is for a peer with its own streams."""
    redis = _async_redis()
    if text != ONE_CHUNK:
        await redis.rpush(starts_key(session), os.getpid())  # type: ignore[misc]
    async with redis.lock(f"lock:{session}", timeout=LOCK_SECONDS):
        said = ""
        history = await redis.lrange(history_key(session), -TAIL, -1)  # type: ignore[misc]
        async for delta in stream_deltas(_decoded(history), text):
            said += delta
            await (publish(delta) if publish else redis.publish(live_channel(session), delta))
        await redis.rpush(history_key(session), *_messages(text, said))  # type: ignore[misc]


async def stream_deltas(history: list[dict[str, str]], text: str) -> AsyncIterator[str]:
    """Yield the model's answer, piece by piece."""
    async with await _async_model().chat.completions.create(**_request(history, text)) as stream:
        async for chunk in stream:
            delta = chunk.choices[0].delta.content if chunk.choices else None
            if delta:
                yield delta


def _decoded(history: list[bytes]) -> list[dict[str, str]]:
    return [{name: message[name] for name in ("role", "content")} for message in map(json.loads, history)]


def _request(history: list[dict[str, str]], text: str) -> dict[str, Any]:
    messages = [*history, {"role": "user", "content": text}]
    longest = {"max_completion_tokens": 1} if text == ONE_CHUNK else {}
    return {"model": "bench", "messages": messages, "stream": True, **longest}


def _messages(text: str, said: str) -> list[str]:
    ended = time.time()
    return [
        json.dumps({"role": "user", "content": text}),
        json.dumps({"role": "assistant", "content": said, "ended": ended}),
    ]


@cache
def _clients() -> tuple[Redis, openai.OpenAI]:
    import openai  # callers that only submit do not need it

    return Redis.from_url(os.environ["REDIS_URL"]), openai.OpenAI()


@cache
def _async_redis() -> AsyncRedis:
    return AsyncRedis.from_url(os.environ["REDIS_URL"], max_connections=1000)


@cache
def _async_model() -> openai.AsyncOpenAI:
    import openai

    return openai.AsyncOpenAI(http_client=openai.DefaultAioHttpClient())
