"""A chat backend without a database of its own: what was said, what waits and what failed is read from the session.

README.md has the commands that start it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from pydantic import BaseModel, Field

from antiphon import AsyncClient, AsyncSession, sse
from antiphon.client import Excerpt
from antiphon.errors import AgentError, NotFound, SessionBusy, UsageError, WrongTenant

log = logging.getLogger("uvicorn.error")

AGENT = "assistant"
PAGE = Path(__file__).with_name("page.html")
REDIS = os.environ.get("ANTIPHON_REDIS_URL", "redis://localhost:6379/0")
ARCHIVE = os.environ.get("ANTIPHON_ARCHIVE")


@asynccontextmanager
async def connected(app: FastAPI) -> AsyncGenerator[None]:
    async with AsyncClient(REDIS, archive=ARCHIVE) as app.state.client:
        yield


app = FastAPI(title="Chat", lifespan=connected)


def client_of(request: Request) -> AsyncClient:
    return request.app.state.client


def user_of(request: Request) -> str:
    """Return who asks. Put your login here: this cookie is not checked by anyone."""
    return request.cookies.get("user") or "guest"


Client = Annotated[AsyncClient, Depends(client_of)]
User = Annotated[str, Depends(user_of)]


def chat_of(chat: str, client: Client, user: User) -> AsyncSession:
    """Return the session of a chat. Each use of it raises ``WrongTenant`` if it is another user's."""
    return client.session(chat, agent=AGENT, tenant=user)


Chat = Annotated[AsyncSession, Depends(chat_of)]


class Said(BaseModel):
    """What a user has written. A page that does not know whether a request arrived repeats it with the same key."""

    text: str = Field(min_length=1)
    key: str


class Titled(BaseModel):
    title: str = Field(min_length=1, max_length=200)


@app.get("/")
def page() -> FileResponse:
    return FileResponse(PAGE)


@app.get("/chats")
async def chats(client: Client, user: User, search: str = "") -> Response:
    """List the user's chats, the last used one first; with ``search`` those whose title or messages have this text."""
    said = await said_in_chats(client, user, search) if ARCHIVE and search else {}
    found = [
        {"id": one.session_id, "title": title, "said": said.get(one.session_id)}
        async for one in client.sessions(tenant=user, limit=1000)
        if search.lower() in (title := one.metadata.get("title", "New chat")).lower()
        or one.session_id in said
    ]
    return encoded({"chats": found[:50], "in_messages": ARCHIVE is not None})


async def said_in_chats(client: AsyncClient, user: str, text: str) -> dict[str, list[Excerpt]]:
    """Return for each chat in which the words were said the best place, as parts of text."""
    with suppress(UsageError):  # no words, or no worker has made an index yet
        found = await client.search(text, tenant=user, limit=50)
        return {hit.session_id: hit.excerpt for hit in reversed(found.hits)}
    return {}


@app.patch("/chats/{chat}")
async def rename(titled: Titled, session: Chat) -> Response:
    await session.set_metadata({"title": titled.title})
    return encoded({"title": titled.title})


@app.delete("/chats/{chat}")
async def delete(session: Chat) -> Response:
    """Delete the chat with all that was said in it. An answer that is being written is cancelled."""
    return encoded({"deleted": await session.delete()})


@app.get("/chats/{chat}")
async def show(chat: str, session: Chat, client: Client, user: User) -> Response:
    """Return the end of the history, the turns that have not ended, and the cursor from which the events go on.

    The cursor is read first. What happens before the history is read is in the history, and comes again as events.
    """
    snapshot = await client.snapshot(chat, tenant=user)
    messages = await session.history(-100, failed=True)
    ended = {message.turn_id for message in messages}
    turns = [turn for turn in snapshot.pending if turn.turn_id not in ended]
    return encoded({"cursor": snapshot.cursor, "messages": messages, "turns": turns})


@app.get("/chats/{chat}/events")
async def events(chat: str, request: Request, client: Client, user: User, after: str) -> StreamingResponse:
    """Send the events of the chat as they happen. A browser that comes back goes on after the last one it has seen."""
    found = client.subscribe(chat, request.headers.get("last-event-id", after), tenant=user)
    await found.start()
    return StreamingResponse(sse.stream(found, to_users=True), headers=sse.HEADERS)


@app.post("/chats/{chat}/messages")
async def send(said: Said, session: Chat) -> Response:
    turn = await session.submit(said.text, key=said.key)
    return encoded({"turn": turn.id})


@app.put("/chats/{chat}/messages/{message}")
async def edit(message: str, said: Said, session: Chat) -> Response:
    """Replace a question and answer the new one. What came after it goes when the answer is there."""
    turn = await session.edit(message, said.text, key=said.key, metadata={"replaces": message})
    return encoded({"turn": turn.id})


@app.post("/chats/{chat}/regenerate")
async def regenerate(session: Chat) -> Response:
    """Answer the last question again."""
    turn = await session.regenerate()
    return encoded({"turn": turn.id})


@app.post("/chats/{chat}/stop")
async def stop(session: Chat) -> Response:
    """Stop the answer. The question stays, and so does what has been said."""
    return encoded({"status": await session.cancel("stopped by the user")})


@app.post("/turns/{turn}/requeue")
async def try_again(turn: str, client: Client, user: User) -> Response:
    """Run a failed turn again."""
    failed = await client.turn(turn, tenant=user)
    await failed.requeue()
    return encoded({"turn": failed.id})


STATUS: dict[type[AgentError], int] = {WrongTenant: 403, NotFound: 404, SessionBusy: 409, UsageError: 400}


@app.exception_handler(AgentError)
async def refuse(_request: Request, error: AgentError) -> JSONResponse:
    """Answer with the first status that fits. What is left are errors of Redis: 503. Only the log has details."""
    status = next((code for kind, code in STATUS.items() if isinstance(error, kind)), 503)
    log.warning("A request failed with %s: %s", error.code, error.message)
    return JSONResponse({"code": error.code, "message": error.user_message}, status)


def encoded(value: Any) -> Response:
    """Return a JSON response. msgspec knows the library's types."""
    return Response(msgspec.json.encode(value), media_type="application/json")
