"""Keeps the id of a background answer in the turn's journal, so that another attempt can continue to read it."""

from __future__ import annotations

from antiphon.model import Usage
from antiphon_worker.loop.costs import Meter
from antiphon_worker.loop.steps import AnswerBegun, AnswerGone, Journal
from antiphon_worker.providers.base import AnswerKeeper, Published
from antiphon_worker.resilience import ModelChoice


def kept_answer(journal: Journal, step: int, model: ModelChoice, meter: Meter) -> AnswerKeeper | None:
    """Return the keeper of a step's answer if the agent requests answers in the background, else None."""
    return KeptAnswer(journal, step, model, meter) if model.params.get("background") is True else None


class KeptAnswer:
    """The answer of one step, by the agent's model or one of its fallbacks."""

    def __init__(self, journal: Journal, step: int, model: ModelChoice, meter: Meter) -> None:
        self._journal = journal
        self._step = step
        self._place = model.place
        self._model = model.model
        self._meter = meter

    @property
    def response_id(self) -> str:
        last = next((entry for entry in reversed(self._journal.entries) if _is_answer(entry)), None)
        if not isinstance(last, AnswerBegun) or (last.step, last.place) != (self._step, self._place):
            return ""
        return last.response_id

    @property
    def stopped(self) -> bool:
        return self._journal.cancelled

    async def begun(self, response_id: str) -> None:
        await self._journal.append([AnswerBegun(self._step, self._place, response_id)], [])

    async def gone(self, usage: Usage) -> None:
        usage = self._meter.priced(usage, self._model)
        await self._journal.append([AnswerGone(self._step, usage=usage)], [])
        self._meter.count(usage, self._model, self._model)  # now, because a stopped call is counted as such

    async def published(self) -> Published:
        return await self._journal.published(self._step)


def _is_answer(entry: object) -> bool:
    return isinstance(entry, AnswerBegun | AnswerGone)
