"""A miniature model service: answers requests over real HTTP as a test defines, and keeps them."""

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from support.services.server import Server

Ending = Literal["whole", "cut", "hang", "no_length"]


@dataclass
class Reply:
    """A response. ``chunks`` are sent one by one; ``then`` is what follows the last one.

    ``whole``: the end of the body. ``cut``: the connection drops. ``hang``: nothing more, until the client leaves.
    ``no_length``: the end of the connection is the end of the body.
    """

    chunks: list[bytes] = field(default_factory=list)
    status: int = 200
    content_type: str = "text/event-stream"
    headers: dict[str, str] = field(default_factory=dict)
    then: Ending = "whole"
    silent: bool = False  # not even a status
    reset: bool = False  # the connection drops before the status


@dataclass
class Seen:
    """A received request."""

    target: str
    headers: dict[str, str]
    body: Any
    connection: int


class WireServer(Server):
    """``async with WireServer(reply, …) as server``: one reply after another, the last one repeatedly."""

    def __init__(self, *replies: Reply) -> None:
        super().__init__()
        self.replies = list(replies)
        self.seen: list[Seen] = []
        self.connections = 0
        self.held = asyncio.Event()  # set when a reply hangs

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        while await self._serve(reader, writer, number):
            continue

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (h.partition(":") for h in head[1:]) if value
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.seen.append(Seen(head[0].split(" ")[1], headers, json.loads(body or b"null"), number))
        reply = self.replies[min(len(self.seen), len(self.replies)) - 1]
        if reply.reset:
            writer.transport.abort()
            return False
        if reply.silent:
            return await self._hold(reader)
        writer.write(self._head(reply))
        for chunk in reply.chunks:
            writer.write(chunk if reply.then == "no_length" else b"%x\r\n%s\r\n" % (len(chunk), chunk))
            await writer.drain()
        if reply.then == "hang":
            return await self._hold(reader)
        if reply.then == "whole":
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        return reply.then == "whole"

    async def _hold(self, reader: asyncio.StreamReader) -> bool:
        self.held.set()
        await reader.read(1)
        return False

    def _head(self, reply: Reply) -> bytes:
        headers = {"content-type": reply.content_type, **reply.headers}
        headers |= {"connection": "close"} if reply.then == "no_length" else {"transfer-encoding": "chunked"}
        lines = [
            f"HTTP/1.1 {reply.status} As asked",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def sse(events: Iterable[Any], *, named: bool = False, done: bool = False) -> bytes:
    """Return events as a body: JSON values, or bytes as they are; ``named`` adds ``event:`` lines with types."""
    out = b""
    for event in events:
        data = event if isinstance(event, bytes) else json.dumps(event, ensure_ascii=False).encode()
        out += (b"event: " + event["type"].encode() + b"\n" if named else b"") + b"data: " + data + b"\n\n"
    return out + (b"data: [DONE]\n\n" if done else b"")


def json_reply(value: Any, status: int = 200, **headers: str) -> Reply:
    """Return a JSON reply in one piece."""
    names = {name.replace("_", "-"): text for name, text in headers.items()}
    return Reply([json.dumps(value).encode()], status, "application/json", names)
