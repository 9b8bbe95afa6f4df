"""Summaries, which the model writes of what a ``Summary`` window leaves out of the history.

A summary is one model call between the claim and the first step. Its request begins as the turn's last one did (system
prompt, tools, the older turns), so that the model services find it in their caches. It is kept when the turn finishes:
a turn that is tried again, after a crash or a provider error, writes it again, which costs tokens and does no harm.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import pairwise

from antiphon.errors import AgentError, ProviderRejected
from antiphon.model import Message, Usage
from antiphon.window import SavedSummary, Window, estimated_tokens, turn_starts
from antiphon_worker.loop.input import LoopInput
from antiphon_worker.loop.loop import Journal
from antiphon_worker.loop.step_events import answered
from antiphon_worker.loop.toolbox import tool_specs
from antiphon_worker.providers.base import Increment, ModelRequest, Provider

__all__ = ["SummaryWriter"]

log = logging.getLogger("antiphon.summary")

INSTRUCTION = (
    "Write a summary of our conversation so far, in its language and in at most {words} words. It will take the place"
    " of these messages: you will be shown the summary and what is said after it, and nothing else. Keep what later"
    " answers may need: what I want and have told you, names, numbers and decisions, what the tools found and did,"
    " and what is still open. Write the summary alone, without an answer to anything. {instructions}"
)
TOKENS_PER_WORD_OF_SUMMARY = 10  # of the window's limit
LEAST_WORDS, MOST_WORDS = 50, 1_000
PORTION_TOKENS = 50_000  # for a window without a limit of tokens
COMPLETE = ("end", "stop_sequence", "max_tokens")
# What an agent's parameters say about its answers, which a summary is not.
ABOUT_ANSWERS = {
    "max_completion_tokens", "max_output_tokens", "max_tokens", "parallel_tool_calls", "response_format", "stop",
    "stop_sequences", "text", "tool_choice", "verbosity",
}  # fmt: skip


class SummaryWriter:
    """Has the provider and the model of a turn write summaries. ``usage`` is what that took."""

    def __init__(self, provider: Provider, inp: LoopInput, journal: Journal, session_id: str) -> None:
        self.usage = Usage()
        self._provider = provider
        self._inp = inp
        self._journal = journal
        self._session_id = session_id

    async def write(
        self, window: Window, summary: SavedSummary | None, older: Sequence[Message]
    ) -> SavedSummary | None:
        """A summary of what the last one tells and of these messages, written in portions that the window could hold.

        Where a call fails it is the last one that was written, and the turn goes on without the rest.
        """
        limit = window.tokens or PORTION_TOKENS
        words = min(max(limit // TOKENS_PER_WORD_OF_SUMMARY, LEAST_WORDS), MOST_WORDS)
        asked = INSTRUCTION.format(words=words, instructions=window.instructions or "").strip()
        for portion in _portions(older, limit):
            await self._journal.checkpoint()
            head = [summary.message] if summary else []
            try:
                text = await self._ask([*head, *portion, Message.user(asked)])
            except Exception as exc:
                log.warning(
                    "session %s: no summary could be written, its older turns are left out: %s", self._session_id,
                    exc.code if isinstance(exc, AgentError) else type(exc).__name__,
                )  # fmt: skip
                log.debug("session %s: no summary could be written", self._session_id, exc_info=exc)
                break
            summary = SavedSummary((summary.messages if summary else 0) + len(portion), text)
        return summary

    async def _ask(self, messages: list[Message]) -> str:
        """One model call, without tools. Raises what the provider raises, and where it gives no text."""
        inp = self._inp
        params = {name: value for name, value in inp.params.items() if name not in ABOUT_ANSWERS}
        request = ModelRequest(
            inp.model, messages, inp.system, tool_specs(inp.tools), params=params | {"tool_choice": "none"}
        )
        result = await answered(self._provider.stream(request), _Discard())
        self.usage += result.usage
        text = result.message.text.strip()
        if not text or result.message.tool_calls or result.stop_reason not in COMPLETE:
            raise ProviderRejected(f"The model wrote none (it stopped with {result.stop_reason!r}).")
        return text


class _Discard:
    """The outlet of a summary's model call: the text is taken from its result."""

    full = False

    def append(self, increment: Increment) -> None:
        """Drop it."""

    async def drain(self) -> None:
        """There is always room."""


def _portions(messages: Sequence[Message], tokens: int) -> Iterator[list[Message]]:
    """Whole turns, together as many as fit into this many tokens, at least one."""
    portion: list[Message] = []
    for begin, end in pairwise([*turn_starts(messages), len(messages)]):
        turn = messages[begin:end]
        if portion and estimated_tokens(portion) + estimated_tokens(turn) > tokens:
            yield portion
            portion = []
        portion += turn
    if portion:
        yield portion
