"""A chat with FastAPI: ``uvicorn fastapi_app:app``."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

from fastapi import FastAPI, Form, Request
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse

from antiphon import AsyncClient, sse
from antiphon.errors import WrongTenant

client = AsyncClient(os.environ.get("ANTIPHON_REDIS_URL", "redis://localhost:6379/0"))


@asynccontextmanager
async def connected(app: FastAPI) -> AsyncGenerator[None]:
    async with client:
        yield


app = FastAPI(lifespan=connected)


def user_of(request: Request) -> str:
    """Return who asks. Put your login here: this cookie is not checked by anyone."""
    return request.cookies.get("user") or "guest"


@app.get("/")
def page() -> FileResponse:
    return FileResponse(Path(__file__).with_name("page.html"))


@app.post("/chats/{chat}/messages")
async def send(
    chat: str, text: Annotated[str, Form()], key: Annotated[str, Form()], request: Request
) -> dict[str, str]:
    turn = await client.submit(chat, text, agent="assistant", key=key, tenant=user_of(request))
    return {"turn": turn.id}


@app.get("/chats/{chat}/events")
async def events(chat: str, request: Request, after: str = "0") -> StreamingResponse:
    found = client.subscribe(chat, request.headers.get("last-event-id", after), tenant=user_of(request))
    await found.start()  # raises before the response begins
    return StreamingResponse(sse.stream(found, to_users=True), headers=sse.HEADERS)


@app.exception_handler(WrongTenant)
async def forbidden(_request: Request, error: WrongTenant) -> JSONResponse:
    return JSONResponse({"message": error.user_message}, 403)
