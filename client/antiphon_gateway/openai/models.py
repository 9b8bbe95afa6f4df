"""The models: the agents of the workers that run now, and the providers whose models a request may name."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from antiphon.wire.lists.workers import offers
from antiphon_gateway.http.operations import Call, operation
from antiphon_gateway.openai.errors import NO_MODEL, turn_failure

OWNER = "antiphon"


class Model(Struct):
    """An agent, or a model of a provider. ``provider/*`` matches all models of a provider, and ``*/*`` all models."""

    id: str
    owned_by: str
    created: int = 0
    object: str = "model"


class ModelList(Struct):
    """The possible values of ``model``."""

    data: list[Model] = field(default_factory=list[Model])
    object: str = "list"


@operation("GET", "/v1/models", right="read")
async def list_models(call: Call[None, None]) -> ModelList:
    """List what `model` may be: the agents of the workers that run now, and `provider/model` or `provider/*` for any"""
    agents, models = await _offered(call)
    found = [Model(name, OWNER) for name in sorted(agents)]
    return ModelList([*found, *(Model(name, name.partition("/")[0]) for name in sorted(models))])


@operation("GET", "/v1/models/{model}", right="read")
async def show_model(call: Call[None, None]) -> Model:
    """Read whether `model` may be this agent, or this `provider/model` (with `%2F`)"""
    name = call.path["model"]
    if not await is_offered(call, name):
        raise turn_failure(NO_MODEL[0], "", name)
    provider, slash, _ = name.partition("/")
    return Model(name, provider if slash else OWNER)


async def is_offered(call: Call[Any, Any], name: str) -> bool:
    """Return whether `model` may be this name, because a running worker offers it."""
    agents, models = await _offered(call)
    provider, slash, model = name.partition("/")
    return name in agents or bool(slash and models & {name, f"{provider}/*", f"*/{model}", "*/*"})


async def _offered(call: Call[Any, Any]) -> tuple[set[str], set[str]]:
    """Return the names of agents, and of ``provider/model``, where ``*`` matches any."""
    found = [one for cell in call.client.connections.cells for one in await offers(cell)]
    models = {
        f"{provider}/{model}"
        for one in found
        for provider in one.providers
        for model in (["*"] if one.models is None else one.models)
    }
    return {name for one in found for name in one.agents}, models


OPERATIONS = [list_models, show_model]
