"""The models that answer a turn where that of its agent fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from antiphon.errors import ProviderError
from antiphon.events import Event, ModelChanged, TurnRetrying
from antiphon.model import FallbackModel, ServiceAnswer
from antiphon_worker.providers.base import Provider

__all__ = ["Fallback", "ModelChoice", "changed"]


class ModelChoice:
    """A model that can be called. ``place`` is 0 for that of the agent, and counts its fallbacks from 1."""

    def __init__(self, provider: Provider, model: str, params: dict[str, Any], place: int = 0) -> None:
        self.provider = provider
        self.model = model
        self.params = params
        self.place = place

    @property
    def name(self) -> str:
        return f"{self.provider.name}/{self.model}"


class Fallback:
    """The fallbacks of an agent. A finished step names the model that answered, and the next one begins with it.

    ``open_provider`` returns a provider by its place in ``models``, from 0. ``gives_up`` says whether a model that
    raised this error is not tried again; where it is, the error ends the attempt, and the next one begins as this one.
    """

    def __init__(
        self,
        models: Sequence[FallbackModel],
        open_provider: Callable[[int], Awaitable[Provider]],
        gives_up: Callable[[ProviderError], bool],
    ) -> None:
        self._models = models
        self._open = open_provider
        self._gives_up = gives_up

    async def at(self, place: int, first: ModelChoice) -> ModelChoice:
        """Return the model at this place, or the last one of an agent that has fewer now."""
        place = min(place, len(self._models))
        if place == 0:
            return first
        model = self._models[place - 1]
        provider = await self._open(place - 1)
        return ModelChoice(provider, model.model, {**first.params, **model.params}, place)

    async def after(
        self, error: ProviderError, failed: ModelChoice, first: ModelChoice
    ) -> ModelChoice | None:
        """Return the model that answers instead of one that failed, or None."""
        if failed.place >= len(self._models) or not self._gives_up(error):
            return None
        return await self.at(failed.place + 1, first)


def changed(step: int, error: ProviderError, failed: ModelChoice, found: ModelChoice) -> list[Event]:
    """Return the events of a change: the step starts again, and another model answers."""
    code = str(error.code)
    return [
        TurnRetrying(step=step, reason=error.message, code=code, service=ServiceAnswer.of(error)),
        ModelChanged(step=step, source=failed.name, target=found.name, code=code),
    ]
