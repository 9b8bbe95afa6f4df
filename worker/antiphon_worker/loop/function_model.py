"""Presents the model calls of a turn function as a provider, so that hooks and budgets wrap them like others."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from antiphon.ext.turns import ModelAnswer
from antiphon.hooks import ModelEnd, ModelStart
from antiphon.model import Item
from antiphon_worker.loop.hooks import HookedProvider
from antiphon_worker.loop.input import LoopInput
from antiphon_worker.loop.step_events import answered
from antiphon_worker.providers.base import ModelRequest, Outlet, Provider, StepResult

Ask = Callable[..., Awaitable[ModelAnswer]]


class FunctionModel:
    """One model call of a function. ``heard`` receives the outlet for the pieces of its answer while it runs."""

    def __init__(self, name: str, ask: Ask, heard: Callable[[Outlet | None], None]) -> None:
        self.name = name
        self.takes_request = required(ask) == 1
        self.error: BaseException | None = None
        """The exception that the function's own code has raised."""
        self.said = ""
        """The text of the answer from the function's model."""
        self._ask = ask
        self._heard = heard

    def stream(self, request: ModelRequest) -> Any:
        """Return the call; it supports only ``into``."""
        return _FunctionCall(self, request)

    async def aclose(self) -> None:
        """Do nothing: the function owns the connections."""

    async def answer(self, request: ModelRequest, outlet: Outlet) -> StepResult:
        """Have the function call its model. Raises what the function raises."""
        self._heard(outlet)
        try:
            found = await (self._ask(request) if self.takes_request else self._ask())
        except BaseException as exc:
            self.error = exc
            raise
        finally:
            self._heard(None)
        self.said = found.message.text
        return StepResult(found.message, found.usage, found.stop_reason, None, found.model or request.model)


class _FunctionCall:
    def __init__(self, model: FunctionModel, request: ModelRequest) -> None:
        self._model, self._request = model, request

    async def into(self, outlet: Outlet) -> StepResult:
        """Make the call."""
        return await self._model.answer(self._request, outlet)


async def ask_model(
    inp: LoopInput, model: FunctionModel, request: ModelRequest, outlet: Outlet
) -> ModelAnswer:
    """Make a model call of a function with the hooks and the budgets of its turn. Raises their errors too."""
    provider: Provider = model
    if inp.charge is not None:
        provider = inp.charge(provider)
    if inp.hooks is not None and inp.hooks.has(ModelStart, ModelEnd):
        provider = HookedProvider(provider, inp.hooks, inp.meter, fixed=not model.takes_request)
    found = await answered(provider.stream(request), outlet)
    message = found.message
    if message.text != model.said:  # hooks have replaced it; the framework's items contain the original
        parts = [part for part in message.parts if not isinstance(part, Item)]
        message = msgspec.structs.replace(message, parts=parts)
    return ModelAnswer(message, found.usage, found.stop_reason, found.model)


def required(function: Callable[..., Any]) -> int:
    """Return how many arguments a function needs.

    >>> required(lambda context, arguments: None), required(lambda context, tool=None: None)
    (2, 1)
    """
    positional = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0
    return sum(one.kind in positional and one.default is one.empty for one in found)
