"""Keeps the id of an answer in the turn's journal, so that another attempt continues to read it."""

from __future__ import annotations

from antiphon_worker.loop.steps import AnswerBegun, AnswerGone, Journal
from antiphon_worker.providers.base import AnswerKeeper, Published
from antiphon_worker.resilience import ModelChoice


def kept_answer(journal: Journal, step: int, model: ModelChoice) -> AnswerKeeper | None:
    """Return the keeper of the answer of a step, where the agent asks for answers in the background."""
    return KeptAnswer(journal, step, model.place) if model.params.get("background") is True else None


class KeptAnswer:
    """The answer of one step. ``place`` is that of the model among the agent's fallbacks."""

    def __init__(self, journal: Journal, step: int, place: int) -> None:
        self._journal = journal
        self._step = step
        self._place = place

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

    async def gone(self) -> None:
        await self._journal.append([AnswerGone(self._step)], [])

    async def published(self) -> Published:
        return await self._journal.published(self._step)


def _is_answer(entry: object) -> bool:
    return isinstance(entry, AnswerBegun | AnswerGone)
