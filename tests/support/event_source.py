"""A reader of server-sent events like that of browsers: it reconnects by itself, with the last id it has seen."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

import httpx2
from support.eventually import patience


@dataclass
class Message:
    """A message: its id, its type and its data. A comment has the type ``:``."""

    id: str
    type: str
    data: str


class EventSource:
    """Follows a URL over one connection after another. Iterate over ``messages()``, and break to close it."""

    def __init__(self, url: str, cookies: httpx2.Cookies | None = None) -> None:
        self.url = url
        self._cookies = cookies
        self.last_id = ""
        self.connections = 0
        self.types: list[str] = []  # of the responses
        self.retry_ms: int | None = None

    async def messages(self) -> AsyncGenerator[Message, None]:
        while True:
            headers = {"accept": "text/event-stream"} | (
                {"last-event-id": self.last_id} if self.last_id else {}
            )
            async with httpx2.AsyncClient(
                cookies=self._cookies, trust_env=False, timeout=patience(20)
            ) as client:
                with suppress(httpx2.TransportError):
                    async with client.stream("GET", self.url, headers=headers) as response:
                        response.raise_for_status()
                        self.connections += 1
                        self.types.append(response.headers["content-type"])
                        async for message in self._read(response.aiter_lines()):
                            yield message

    async def read_to_the_end(self) -> list[dict[str, Any]]:
        """Return the events up to the end of a turn."""
        seen: list[dict[str, Any]] = []
        async with aclosing(self.messages()) as messages:
            async for message in messages:
                if message.type == "message":
                    seen.append(json.loads(message.data))
                    if seen[-1]["type"] == "turn_finished":
                        break
        return seen

    async def _read(self, lines: AsyncIterator[str]) -> AsyncIterator[Message]:
        """Yield messages as in the standard: fields up to an empty line; an unterminated message is dropped."""
        kind, data = "message", list[str]()
        async for line in lines:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if line.startswith(":"):
                yield Message(self.last_id, ":", line[1:].strip())
            elif not line:
                if data:
                    yield Message(self.last_id, kind, "\n".join(data))
                kind, data = "message", []
            elif name == "id":
                self.last_id = value
            elif name == "event":
                kind = value
            elif name == "data":
                data.append(value)
            elif name == "retry":
                self.retry_ms = int(value)
