"""The part of its session's history that a turn sends, and what is left out where the model refuses its length.

A model's limit becomes known with its first refusal. It is kept with the provider in this process, and later turns
select their history by it as by a ``Window``. So a session that outgrows its model costs a refused call once, and again
in another process; refused calls are not billed.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import msgspec

from antiphon.errors import ContextTooLong
from antiphon.events import ContextReduced
from antiphon.model import Message, ToolResult
from antiphon.window import Window, estimated_tokens
from antiphon_worker.loop.input import LoopInput
from antiphon_worker.loop.visible_history import LoadedHistory, SummaryWriter, VisibleHistory, visible_history
from antiphon_worker.providers.base import Provider
from antiphon_worker.resilience import ModelChoice

SHARE_OF_LIMIT = 0.9  # the rest is for the answer, and for the error of the estimate
SHARE_OF_REFUSED = 0.5  # of a request that was refused without a number
LONGEST_CUT_RESULT = 2_000
CUT = "\n[The result had {size:,} characters. The rest was left out, because the conversation exceeded your context.]"

_accepted: WeakKeyDictionary[Provider, dict[str, int]] = WeakKeyDictionary()
"""The tokens, as we estimate them, that a provider's model accepts, once it has refused a request."""


class SentHistory:
    """What a turn sends of its session's history. ``visible`` is that of its last request.

    ``results_cut`` says that the turn's own results of tools are cut short as well.
    """

    def __init__(
        self, provider: Provider, inp: LoopInput, loaded: LoadedHistory, writer: SummaryWriter
    ) -> None:
        self._provider = provider
        self._inp = inp
        self._loaded = loaded
        self._writer = writer
        self.visible = VisibleHistory([], None)
        self.results_cut = False

    async def select(self) -> list[Message]:
        """Return the messages of the agent's window, or of a smaller one if the model's context is known."""
        known = _accepted.get(self._provider) if _accepted else None
        window = self._within(known.get(self._inp.model) if known else None)
        self.visible = await visible_history(self._loaded, window, self._inp.new_messages, self._writer)
        return self.visible.messages

    async def shorten(
        self, step: int, error: ContextTooLong, model: ModelChoice, sent: Sequence[Message]
    ) -> ContextReduced:
        """Leave out older turns, with a new summary if the agent has one; then all of them; then cut results of tools.

        ``sent`` are the messages of the refused request. Raises ``error`` with the sizes if nothing is left to omit.
        """
        own = sent[len(self.visible.messages) :]
        reduced = ContextReduced(step=step, limit=error.limit or 0)
        if self.visible.messages:
            reduced.messages = await self._drop(_learn(model, error, estimated_tokens(sent)), own)
        elif not self.results_cut:
            reduced.results = cut_results(own)[1]
            self.results_cut = True
        if not reduced.messages and not reduced.results:
            raise _too_long(error, model.model, own) from error
        return reduced

    async def _drop(self, limit: int, own: Sequence[Message]) -> int:
        """Send less of the history, so that it fits into the limit together with the turn's own messages."""
        before = self.visible
        self._loaded.summary = before.summary or self._loaded.summary
        shorter = await visible_history(self._loaded, self._within(limit), own, self._writer)
        if (
            len(shorter.messages) >= len(before.messages)
            or estimated_tokens([*shorter.messages, *own]) > limit
        ):
            shorter = VisibleHistory([], self._loaded.start + len(self._loaded.messages), shorter.summary)
        shorter.summary = shorter.summary or before.summary
        self.visible = shorter
        return len(before.messages) - len(shorter.messages)

    def _within(self, tokens: int | None) -> Window:
        window = self._inp.window
        if tokens is None or (window.tokens or tokens + 1) <= tokens:
            return window
        return msgspec.structs.replace(window, tokens=tokens)


def cut_results(messages: Sequence[Message]) -> tuple[list[Message], int]:
    """Return the messages with long results of tools cut short, and how many results these are."""
    cut = 0

    def part_of(part: object) -> object:
        nonlocal cut
        if not isinstance(part, ToolResult) or len(part.text) <= LONGEST_CUT_RESULT + len(CUT):
            return part
        cut += 1
        text = part.text[:LONGEST_CUT_RESULT] + CUT.format(size=len(part.text))
        return msgspec.structs.replace(part, content=text)

    found = [
        msgspec.structs.replace(message, parts=[part_of(part) for part in message.parts])
        if message.role == "tool"
        else message
        for message in messages
    ]
    return found, cut


def _too_long(error: ContextTooLong, model: str, own: Sequence[Message]) -> ContextTooLong:
    """Return the error of a turn whose own messages do not fit, with their size and the model's limit."""
    size = error.tokens or estimated_tokens(own)
    limit = f"accepts {error.limit:,}" if error.limit else "accepts fewer"
    return ContextTooLong(
        f"The turn's own messages have about {size:,} tokens, and {model} {limit}: shorten the input or the results of "
        f"tools, or use a model with a larger context. {error.message}",
        tokens=size, limit=error.limit, retryable=False, status=error.status, request_id=error.request_id,
    )  # fmt: skip


def _learn(model: ModelChoice, error: ContextTooLong, estimated: int) -> int:
    """Keep how many tokens, as we estimate them, the model accepts, and return them."""
    if error.limit:
        per_token = max((error.tokens or 0) / max(estimated, 1), 1.0)
        accepted = int(error.limit / per_token * SHARE_OF_LIMIT)
    else:
        accepted = int(estimated * SHARE_OF_REFUSED)
    _accepted.setdefault(model.provider, {})[model.model] = max(accepted, 1)
    return max(accepted, 1)
