"""Agno's AgentOS: an agent whose sessions are in Redis, and whose runs are streamed to their callers over HTTP."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import openai
from agno.agent import Agent
from agno.db.redis import RedisDb
from agno.models.openai import OpenAIChat
from agno.os import AgentOS
from redis.asyncio import Redis

from bench.peers.driver import Stream, drive, port, redis_url
from bench.peers.sse import events, open_http
from bench.peers.work import LOCK_SECONDS, TAIL

AGENT = "turn"
SESSION = "x-session"

App = Callable[[Any, Any, Any], Awaitable[None]]


def locking(app: App) -> App:
    """Add the session lock that AgentOS lacks, from the request to the end of its answer."""
    redis = Redis.from_url(redis_url(), max_connections=1000)

    async def locked(scope: Any, receive: Any, send: Any) -> None:
        session = dict(scope.get("headers", ())).get(SESSION.encode())
        if session is None:
            return await app(scope, receive, send)
        async with redis.lock(f"lock:{session.decode()}", timeout=LOCK_SECONDS):
            return await app(scope, receive, send)

    return locked


def worker() -> None:
    client = openai.AsyncOpenAI(http_client=openai.DefaultAioHttpClient())
    agent = Agent(
        id=AGENT,
        model=OpenAIChat(id="bench", async_client=client, max_completion_tokens=1),
        db=RedisDb(db_url=redis_url()),
        add_history_to_context=True,
        num_history_messages=TAIL,
        telemetry=False,
    )
    system = AgentOS(agents=[agent], telemetry=False)
    app = system.get_app()
    app.add_middleware(locking)
    system.serve(app, host="127.0.0.1", port=port())


async def streamer() -> Stream:
    http = open_http()

    def stream(session: str, text: str) -> AsyncIterator[bytes]:
        form = {"message": text, "session_id": session, "stream": "true"}
        return events(http, f"/agents/{AGENT}/runs", b"RunContent", data=form, headers={SESSION: session})

    return stream


if __name__ == "__main__":
    drive(worker, streamer=streamer)
