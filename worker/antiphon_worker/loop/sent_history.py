"""Selects the part of the session's history that a turn sends, and shortens it if the model refuses its length.

A model's limit becomes known with its first refusal. It is kept with the provider in this process, and later turns
select their history by it as by a ``Window``. So a session that outgrows its model costs one refused call in each
process; refused calls are not billed. What a turn sends after a refusal or a new summary is journalled with its next
step, so that the turn sends the same after a crash.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Struct

from antiphon.errors import ContextTooLong
from antiphon.events import ContextReduced
from antiphon.model import Message, ToolResult, Usage
from antiphon.window import SavedSummary, estimated_tokens
from antiphon_worker.loop.input import LoopInput
from antiphon_worker.loop.steps import HandedOver, JournalEntry, SentPart, StepEntry
from antiphon_worker.loop.visible_history import LoadedHistory, SummaryWriter, VisibleHistory, visible_history
from antiphon_worker.providers.base import Provider
from antiphon_worker.resilience import ModelChoice

SHARE_OF_LIMIT = 0.9  # the rest is for the answer, and for the error of the estimate
SHARE_OF_REFUSED = 0.5  # of a request that was refused without a number
TOO_MANY_BYTES = 413
LONGEST_CUT_RESULT = 2_000
CUT = "\n[The result had {size:,} characters. The rest was left out, because the conversation exceeded your context.]"


class Context(Struct, frozen=True):
    """The context of a model: how many tokens it accepts, and how many it counts for each token that we estimate.

    If the service did not state a limit, ``tokens`` is an estimate, and ``per_estimate`` is None.
    """

    tokens: int
    per_estimate: float | None


_contexts: WeakKeyDictionary[Provider, dict[str, Context]] = WeakKeyDictionary()
"""By provider and model, the contexts of models that have refused a request."""


class SentHistory:
    """The part of the session's history that a turn sends. ``visible`` is that of its last request.

    ``results_cut``: the turn's own tool results are cut short as well.
    """

    def __init__(
        self, provider: Provider, inp: LoopInput, loaded: LoadedHistory, writer: SummaryWriter
    ) -> None:
        self._provider = provider
        self._inp = inp
        self._loaded = loaded
        self._writer = writer
        self._unsaved = False
        self.visible = VisibleHistory([], None)
        self.results_cut = False

    async def select(self, entries: Sequence[JournalEntry] = ()) -> list[Message]:
        """Return the messages of the agent's window, or of a smaller one if the model's context is known.

        A turn that continues with ``entries`` of an earlier attempt sends what that attempt sent.
        """
        sent = self._sent_by(entries) if entries else None
        if sent is not None:
            self.visible = await self._sent_before(sent)
            return self.visible.messages
        known = _contexts.get(self._provider) if _contexts else None
        context = known.get(self._inp.model) if known else None
        self.visible = await self._selected(context, self._inp.new_messages)
        self._unsaved = self.visible.summary is not None
        return self.visible.messages

    async def shorten(
        self, step: int, error: ContextTooLong, model: ModelChoice, sent: Sequence[Message]
    ) -> ContextReduced:
        """Omit older turns, with a new summary if the agent uses summaries; then all of them; then cut tool results.

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
        self._unsaved = True
        return reduced

    def unsaved(self) -> SentPart | None:
        """Return what a continued turn needs to send the same, once after each change; otherwise None."""
        if not self._unsaved:
            return None
        self._unsaved, visible, new = False, self.visible, self.visible.summary
        part = SentPart(visible.start, bare=not visible.messages, results_cut=self.results_cut)
        if new is not None:
            part.summary, part.summarized, part.usage = new.text, new.messages, self._writer.usage
        return part

    def _sent_by(self, entries: Sequence[JournalEntry]) -> SentPart | None:
        """Return what the agent in charge sent last, if the journal has it. Counts summaries of earlier agents."""
        sent, step = None, 0
        for entry in entries:
            if isinstance(entry, StepEntry) and entry.sent is not None:
                sent, step = entry.sent, entry.step
            elif isinstance(entry, HandedOver) and sent is not None and step <= entry.step:
                self._writer.usage += sent.usage or Usage()
                sent = None
        return sent

    async def _sent_before(self, part: SentPart) -> VisibleHistory:
        """Return what an earlier attempt of the turn sent."""
        self.results_cut = part.results_cut
        self._writer.usage += part.usage or Usage()
        new = SavedSummary(part.summarized, part.summary) if part.summarized else None
        if part.start is None or part.bare:
            return VisibleHistory([], part.start, new)
        begin, messages = self._loaded.start, self._loaded.messages
        earlier = await self._loaded.read(part.start, begin) if part.start < begin else []
        return VisibleHistory(
            [*self._head(new), *earlier, *messages[max(part.start - begin, 0) :]], part.start, new
        )

    def _head(self, new: SavedSummary | None) -> list[Message]:
        """Return the summary that the model receives: a new one, or else the session's."""
        summary = new or (self._loaded.summary if self._inp.window.instructions is not None else None)
        return [summary.message] if summary else []

    async def _drop(self, context: Context, own: Sequence[Message]) -> int:
        """Shorten the history to fit into the context with the turn's own messages; return by how many messages."""
        before = self.visible
        self._loaded.summary = before.summary or self._loaded.summary
        self._loaded.counted = None  # the refusal is newer
        shorter = await self._selected(context, own)
        size = estimated_tokens([*shorter.messages, *own]) * (context.per_estimate or 1.0)
        if len(shorter.messages) >= len(before.messages) or size > context.tokens:
            end, summary = self._loaded.start + len(self._loaded.messages), shorter.summary
            head = self._head(summary) if len(before.messages) > 1 else []
            shorter = VisibleHistory(head, end, summary)
        shorter.summary = shorter.summary or before.summary
        self.visible = shorter
        return len(before.messages) - len(shorter.messages)

    async def _selected(self, context: Context | None, new: Sequence[Message]) -> VisibleHistory:
        """Return the history of the agent's window, or of the context if it is smaller."""
        window, loaded = self._inp.window, self._loaded
        if context is not None:
            tokens, counted = context.tokens, None
            if context.per_estimate is not None:  # the window adds the new messages as they are estimated
                tokens -= int((context.per_estimate - 1) * estimated_tokens(new))
                counted = loaded.counted or int(context.per_estimate * estimated_tokens(loaded.messages))
            if window.tokens is None or window.tokens > tokens:
                window = msgspec.structs.replace(window, tokens=max(tokens, 1))
                loaded = msgspec.structs.replace(loaded, counted=counted)
        return await visible_history(loaded, window, new, self._writer)


def cut_results(messages: Sequence[Message]) -> tuple[list[Message], int]:
    """Return the messages with long tool results cut short, and the number of cut results."""
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


def _learn(model: ModelChoice, error: ContextTooLong, estimated: int) -> Context:
    """Return the model's context, and keep it for the next turns.

    A size in bytes that a service refused (413) is not kept: it may have few tokens.
    """
    if error.limit:
        tokens, per_estimate = int(error.limit * SHARE_OF_LIMIT), (error.tokens or 0) / max(estimated, 1)
        found = Context(max(tokens, 1), max(per_estimate, 1.0))
    else:
        found = Context(max(int(estimated * SHARE_OF_REFUSED), 1), None)
    if error.limit or error.status != TOO_MANY_BYTES:
        _contexts.setdefault(model.provider, {})[model.model] = found
    return found
