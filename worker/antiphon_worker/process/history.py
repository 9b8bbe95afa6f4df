"""Reads a turn's session (history and own fields) from Redis, after restoring an expired one from the archive.

A claim returns the history from the last start of the window, so that a turn costs the same however long its session
is. For an agent without a window, the earlier part is read as well.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from antiphon.errors import CorruptRecord, MessageNotFound, StoreError, TurnNotFound, UsageError, WrongTenant
from antiphon.input.history_cuts import Revision, revision_of
from antiphon.input.ids import TurnId
from antiphon.input.limits import check_size
from antiphon.input.request import AgentSpec, TurnRequest, refuse_newer
from antiphon.model import TERMINAL, Message, ToolOutcome, decode_history, decode_message
from antiphon.redis.archived import restore
from antiphon.redis.edits import found_in
from antiphon.redis.turn_records import runs_of
from antiphon.window import SavedSummary
from antiphon.wire.cell import Cell
from antiphon.wire.records import ClaimedTurn, readable
from antiphon_worker.archive import Archive, ArchiveUnavailable
from antiphon_worker.loop.run_turn import WindowPlace
from antiphon_worker.loop.unfinished import note_of, outcomes_of
from antiphon_worker.loop.visible_history import LoadedHistory
from antiphon_worker.process.journal import patiently
from antiphon_worker.process.lease import Lease, Stop, StopSignal

RETRY_SECONDS = 1.0

REFUSALS = {
    "closed": (UsageError, "The session is closed."),
    "tenant": (WrongTenant, "The session belongs to another tenant: use another session id."),
}


def loaded_history(cell: Cell, turn: ClaimedTurn, agent: AgentSpec) -> LoadedHistory:
    """Return the history of the claim, which reads earlier messages on demand.

    Raises ``CorruptRecord``, and ``LimitReached`` if the history is too long for an agent without a window. Reading may
    also raise ``StoreError``.
    """
    if agent.window is None:
        check_size(
            "history_messages", turn.history_length, "The session's history", "Give the agent a window."
        )
    messages = [decode_message(data) for data in turn.history]
    counted = int(turn.window.partition(":")[2] or 0) or None
    summary = SavedSummary.from_field(turn.summary)
    return LoadedHistory(
        messages, turn.history_length - len(messages), counted, summary, partial(_read, cell, turn)
    )


def window_field(window: WindowPlace | None) -> str:
    """Return what the session keeps for its next turn: where the window began and the tokens counted for it."""
    return "" if window is None else f"{window.start}:{window.counted}"


async def untold_calls(cell: Cell, turn: ClaimedTurn) -> list[Message]:
    """Return a note for the model about tools that ran in turns, or earlier runs, absent from the history.

    Reads nothing if there are none. Raises ``StoreError``.
    """
    turns = [TurnId(name) for name in reversed(turn.untold.split())]
    if turn.run > 1 and turn.turn_id not in turns:
        turns.append(turn.turn_id)
    calls: list[ToolOutcome] = []
    for turn_id in turns:
        with suppress(TurnNotFound, CorruptRecord):  # it is kept for a week
            record = await cell.turn(turn_id)
            kept = record.status in TERMINAL and "place" not in record.fields
            for run in runs_of(record):
                # If the history has the finished steps of a turn, only its last step is unreported.
                calls += outcomes_of(run.messages[-2:] if kept and run.run == record.run else run.messages)
    return [note_of(calls)] if calls else []


async def _read(cell: Cell, turn: ClaimedTurn, start: int, stop: int) -> list[Message]:
    if stop <= start:
        return []
    page = await cell.snapshot(turn.session_id, start, stop - 1)
    if len(page.history) != stop - start:
        raise StoreError("The session's history changed while it was read.", session_id=turn.session_id)
    return [decode_message(data) for data in page.history]


async def restore_before(cell: Cell, archive: Archive | None, turn: ClaimedTurn, lease: Lease) -> None:
    """If the session was recreated and the archive was not checked yet, restore it and load the turn again.

    Raises ``ArchiveUnavailable`` if the turn must wait, ``UsageError`` if the restored session refuses the turn, and
    ``CorruptRecord``.
    """
    if archive is not None and turn.restored != "1":
        await lease.checkpoint()
        try:
            answer = await restore(cell, archive.load, turn.session_id, turn.fence)
            if answer == "SUPERSEDED":
                lease.end(Stop.SUPERSEDED, at_once=False)
                raise StopSignal(Stop.SUPERSEDED)
            if answer == "RESTORED":
                await _load_again(cell, turn)
        except StoreError as exc:
            if not exc.retryable or isinstance(exc, ArchiveUnavailable):
                raise
            raise ArchiveUnavailable(exc.message, retry_after=RETRY_SECONDS) from exc
    seq, _, reason = turn.refused.partition(":")
    if reason and turn.queued_seq <= int(seq):
        error, message = REFUSALS.get(reason, (UsageError, "The session does not take this turn."))
        raise error(message, session_id=turn.session_id)


async def revised(cell: Cell, turn: ClaimedTurn, revises: str, lease: Lease) -> Revision:
    """Find what the turn replaces, and cut its history to what the model sees before the question.

    If part of the window remains, it begins where it did before. Raises ``MessageNotFound``, ``UsageError`` if the
    message is not a user's, ``CorruptRecord``, ``StopSignal``.
    """
    start = turn.history_length - len(turn.history)
    revision = _revision(turn, revises, start)
    if start and (revision is None or revision.before <= start):
        found = await patiently(lease, lambda: found_in(cell, turn.session_id, 0, -1))
        turn.history, start = found.history, 0
        revision = None
    revision = revision or revision_of(decode_history(turn.history, start), revises, start)
    turn.history, turn.history_length = turn.history[: revision.before - start], revision.before
    turn.window = ""  # its tokens were counted for more
    summary = SavedSummary.from_field(turn.summary)
    if summary is not None and summary.messages > revision.before:
        turn.summary = None
    return revision


def _revision(turn: ClaimedTurn, revises: str, start: int) -> Revision | None:
    try:
        return revision_of(decode_history(turn.history, start), revises, start)
    except MessageNotFound:
        return None


async def _load_again(cell: Cell, turn: ClaimedTurn) -> None:
    """Load into the turn what a claim would load from the session now."""
    found = await found_in(cell, turn.session_id, 0, -1)
    seen = found.text("window") or found.text("summary")
    turn.system, turn.variables = found.fields.get("system"), found.fields.get("variables")
    turn.session_agent, turn.summary = found.fields.get("agent"), found.fields.get("summary")
    turn.usage = found.fields.get("usage")
    turn.window, turn.restored, turn.refused = (
        found.text("window"),
        found.text("restored"),
        found.text("refused"),
    )
    turn.history = found.history[int(seen.partition(":")[0] or 0) :]
    turn.history_length = found.length


def asked_agent(turn: ClaimedTurn, request: TurnRequest) -> str | AgentSpec | None:
    """Return the agent of the turn, or the session's. Raises ``CorruptRecord`` and ``NewerRecord``."""
    if request.agent is not None or not turn.session_agent:
        return request.agent
    refuse_newer("agent", turn.session_agent)
    with readable("The agent of a session", session_id=turn.session_id):
        return msgspec.json.decode(turn.session_agent, type=str | AgentSpec)


def variables_of_session(turn: ClaimedTurn) -> dict[str, Any]:
    """Return the session's variables. Raises ``CorruptRecord`` and ``LimitReached``."""
    if not turn.variables:
        return {}
    check_size("variables_bytes", len(turn.variables), "The session's variables in bytes")
    with readable("The variables of a session", session_id=turn.session_id):
        return msgspec.json.decode(turn.variables, type=dict[str, Any])


def own_system(turn: ClaimedTurn, request: TurnRequest) -> str | None:
    """Return the turn's instructions, or else the session's own system prompt."""
    if request.instructions or not turn.system:
        return request.instructions
    check_size("system_bytes", len(turn.system), "The session's system prompt in bytes")
    with readable("The system prompt of a session", session_id=turn.session_id):
        return turn.system.decode()
