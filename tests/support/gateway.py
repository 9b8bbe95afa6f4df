"""A gateway served by uvicorn on the test's loop, and a program that calls it."""

import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
from support.ensemble import Ensemble, open_ensemble
from support.event_source import EventSource, Message
from support.eventually import patience
from support.serving import serving

from antiphon.client import AsyncClient
from antiphon_gateway import Gateway, gateway
from antiphon_gateway.access.caller import Key, Keys, hash_of, new_key
from antiphon_gateway.http.connection import Connection, SocketConnection

STAGE = {"provider": "stage", "model": "stage-1", "tools": ["note", "wait"]}


class Api:
    """Calls a gateway, with one key. Each call returns the status, the JSON and the headers."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = url
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self.http = httpx2.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=patience(30))

    async def call(self, method: str, path: str, /, status: int | None = None, **more: Any) -> Any:
        """Return the JSON of the response; fail unless it has this status, or by default any below 300."""
        answer = await self.http.request(method, path, **more)
        assert answer.status_code == status if status else answer.status_code < 300, answer.text
        return answer.json() if answer.content else None

    async def get(self, path: str, status: int | None = None, **more: Any) -> Any:
        return await self.call("GET", path, status, **more)

    async def post(self, path: str, body: Any = None, status: int | None = None, **more: Any) -> Any:
        return await self.call("POST", path, status, **({} if body is None else {"json": body}), **more)

    async def submit(self, session: str, text: str, **options: Any) -> str:
        """Submit a turn to the stage's agent, and return its id."""
        found = await self.post(f"/sessions/{session}/turns", {"input": text, "agent": STAGE, **options})
        return found["turn_id"]

    async def result(self, turn: str) -> Any:
        """Return the result of a turn, once it has ended."""
        return await self.get(f"/turns/{turn}/result?wait=20", 200)


@asynccontextmanager
async def open_gateway(
    redis_url: str, *, key: str | None = None, archive: Any = None, **options: Any
) -> AsyncGenerator[tuple[Api, Gateway]]:
    """Serve a gateway with these options, and yield a caller with this key and the gateway."""
    async with AsyncClient(redis_url, archive=archive) as client:
        app = gateway(client, **options)
        async with serving(app, SocketConnection, Connection) as port:
            api = Api(f"http://127.0.0.1:{port}", key)
            async with api.http:
                yield api, app


async def follow(source: EventSource, until: str = "end") -> tuple[list[Message], Any]:
    """Return the messages up to one of this type, without comments, and the data of that message."""
    found: list[Message] = []
    async with aclosing(source.messages()) as messages:
        async for message in messages:
            if message.type == until:
                return found, json.loads(message.data)
            if message.type == "message":
                found.append(message)
                if json.loads(message.data)["type"] == until:
                    return found, json.loads(message.data)
    raise AssertionError("it does not end by itself")


@asynccontextmanager
async def stand(
    redis_url: str, tmp_path: Path, **options: Any
) -> AsyncGenerator[tuple[Ensemble, Api, Gateway]]:
    """Run a worker with the stage's agent, and a gateway with these options."""
    async with (
        open_ensemble(redis_url, tmp_path / "stage") as ensemble,
        ensemble.worker(),
        open_gateway(redis_url, **options) as (api, app),
    ):
        yield ensemble, api, app


def keys(**given: Any) -> tuple[Keys, dict[str, str]]:
    """Return keys by name, each with its options, and their secrets."""
    secrets = {name: new_key() for name in given}
    return Keys({name: Key(hash=hash_of(secrets[name]), **more) for name, more in given.items()}), secrets


@asynccontextmanager
async def programs(api: Api, secrets: dict[str, str]) -> AsyncGenerator[dict[str, Api]]:
    """Yield a caller of the same gateway for each of these keys."""
    found = {name: Api(api.url, key) for name, key in secrets.items()}
    async with AsyncExitStack() as stack:
        for one in found.values():
            await stack.enter_async_context(one.http)
        yield found
