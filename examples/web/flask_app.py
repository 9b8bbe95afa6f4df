"""A chat with Flask: ``flask --app flask_app run``. Each open stream holds a thread."""

from __future__ import annotations

import os
from pathlib import Path

from flask import Flask, Response, request, send_file

from antiphon import Client, sse
from antiphon.errors import WrongTenant

client = Client(os.environ.get("ANTIPHON_REDIS_URL", "redis://localhost:6379/0"))
app = Flask(__name__)


def user() -> str:
    """Return who asks. Put your login here: this cookie is not checked by anyone."""
    return request.cookies.get("user") or "guest"


@app.get("/")
def page() -> Response:
    return send_file(Path(__file__).with_name("page.html"))


@app.post("/chats/<chat>/messages")
def send(chat: str) -> dict[str, str]:
    turn = client.submit(
        chat, request.form["text"], agent="assistant", key=request.form["key"], tenant=user()
    )
    return {"turn": turn.id}


@app.get("/chats/<chat>/events")
def events(chat: str) -> Response:
    after = request.headers.get("Last-Event-ID") or request.args.get("after", "0")
    client.snapshot(chat, tenant=user())  # raises before the response begins
    found = client.subscribe(chat, after, tenant=user(), heartbeat=15)
    return Response(sse.stream_sync(found, to_users=True), headers=sse.HEADERS)


@app.errorhandler(WrongTenant)
def forbidden(error: WrongTenant) -> tuple[dict[str, str], int]:
    return {"message": error.user_message}, 403
