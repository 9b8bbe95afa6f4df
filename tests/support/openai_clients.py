"""Workers, a gateway and OpenAI's own client on one Redis, and the contract for what they exchange."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import openai
import pytest
from support.ensemble import Ensemble, open_ensemble
from support.gateway import Api, open_gateway
from support.schemas import Schemas
from websockets.asyncio.client import ClientConnection, connect

from antiphon.testing import script
from antiphon_worker import Allow, App
from antiphon_worker.process.worker import Worker
from antiphon_worker.providers.scripted import ScriptedProvider
from antiphon_worker.settings import Settings

MODEL = "stage/stage-1"


class Contract:
    """The Open Responses specification. A call with a response or an event fails unless it conforms."""

    def __init__(self, document: Any) -> None:
        self._schemas = Schemas(document)
        self._kinds = {
            schema["properties"]["type"]["enum"][0]: name
            for name, schema in self._schemas.components.items()
            if name.endswith("StreamingEvent")
        }
        self._kinds |= {"response": "ResponseResource", "response.compaction": "CompactResource"}

    def __call__(self, found: Any, name: str = "") -> None:
        self._schemas.check(found, name or self._kinds[found.get("object") or found["type"]])


@cache
def contract_at(root: Path) -> Contract:
    """Read the specification next to the project, or skip the test."""
    path = root.parent / "shared" / "openresponses" / "openapi.json"
    if not path.exists():
        pytest.skip("the Open Responses specification, ../shared/openresponses/openapi.json, is not here")
    return Contract(json.loads(path.read_text()))


@asynccontextmanager
async def open_client(
    redis_url: str, key: str = "none", **options: Any
) -> AsyncGenerator[tuple[Api, openai.AsyncOpenAI]]:
    """Open a gateway with these options, and OpenAI's client with this key."""
    async with (
        open_gateway(redis_url, key=key, **options) as (api, _),
        openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key=key, max_retries=0) as client,
    ):
        yield api, client


@asynccontextmanager
async def stand(redis_url: str, tmp_path: Path) -> AsyncGenerator[tuple[Ensemble, Api, openai.AsyncOpenAI]]:
    """Run a worker with the stage's model, a gateway and the client."""
    async with (
        open_ensemble(redis_url, tmp_path / "stage") as ensemble,
        ensemble.worker(),
        open_client(redis_url) as (api, client),
    ):
        yield ensemble, api, client


@asynccontextmanager
async def calling(
    redis_url: str, answers: Callable[[Any], Any], agents: Any = (), models: Any = "any", **options: Any
) -> AsyncGenerator[tuple[Api, openai.AsyncOpenAI]]:
    """Run a worker whose model (``scripted/any``) answers with a function, a gateway and the client."""
    app = App(
        agents=list(agents),
        providers={"scripted": ScriptedProvider(script(answers, repeat=True))},
        travelling=Allow(providers=["scripted"], models=models, parameters="any"),
    )
    worker = Worker(Settings(), app, url=redis_url)
    running = asyncio.create_task(worker.run())
    async with open_client(redis_url, **options) as (api, client):
        try:
            yield api, client
        finally:
            worker.abort()
            await running
            await app.aclose()


@asynccontextmanager
async def socket(api: Api, path: str = "/v1/responses", **options: Any) -> AsyncGenerator[ClientConnection]:
    """Open a WebSocket to the gateway."""
    async with connect(api.url.replace("http", "ws") + path, proxy=None, **options) as peer:
        yield peer


async def answered(peer: ClientConnection, **fields: Any) -> list[Any]:
    """Request a response, and return its events up to the last one."""
    await peer.send(json.dumps({"type": "response.create", "model": MODEL, **fields}))
    return await told(peer)


async def told(peer: ClientConnection) -> list[Any]:
    """Return the events up to the end of a response, or an error."""
    found: list[Any] = []
    async for message in peer:
        found.append(json.loads(message))
        if found[-1]["type"] in ("response.completed", "response.failed", "error"):
            break
    return found
