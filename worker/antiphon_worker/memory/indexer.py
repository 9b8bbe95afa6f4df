"""Indexes finished turns, and forgets what was deleted. Indexers of several workers share the sessions.

1. The script that ends a turn also notes which memories are to index it.
2. An indexer takes sessions with such turns for a limited time, and writes to the index. Writes can be repeated.
3. It then notes in Redis what the index contains. If it dies before that, the next indexer writes the same again.
4. A session that lost messages is compared with what the index has of it.

While a store fails, nothing is lost: the sessions wait in Redis.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence

from msgspec import structs

from antiphon.errors import AgentError, CorruptRecord, StoreError
from antiphon.input.ids import TurnId
from antiphon.input.request import shown_request
from antiphon.memory.declaration import Memory
from antiphon.model import decode_history
from antiphon.redis.edits import found_in
from antiphon.redis.turn_records import response_of
from antiphon.wire.cell import Cell
from antiphon.wire.lists.memories import TakenSession, put_off, settle_session, take_over, take_sessions
from antiphon.wire.lists.notices import turn_records
from antiphon.wire.records import TurnRecord
from antiphon_worker.loop.toolbox import is_stop, text_of
from antiphon_worker.memory.passages import Plan, TurnText, Work, texts_of_history, texts_of_turn

log = logging.getLogger("antiphon.memory")

PAUSE_SECONDS = 0.5
PART_OF_LEASE = 0.5
"""For tries of one session after another. The last one must end before the lease does."""
SCANNED_AT_ONCE = 500
SETTLE_TRIES = 120
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 30.0
REFUSED_SECONDS = 300.0
"""How long a session waits that the store refuses while it accepts others."""


def documents_of(cell: Cell, memory: Memory) -> Work:
    """Return the work of an indexer for a memory, which needs LangChain."""
    from antiphon_worker.memory.documents import Documents

    return Documents(cell.keys.deployment, memory, cell.seal)


class Indexer:
    """Looks for turns twice a second, and at once if there are more."""

    def __init__(self, cell: Cell, work: Memory | Work) -> None:
        self._cell = cell
        self._work = work if not isinstance(work, Memory) else documents_of(cell, work)
        self._pause = FIRST_RETRY_SECONDS
        self._ready = self._work.replaces is None

    async def run(self) -> None:
        """Index until cancelled, and close the cell's connections."""
        try:
            while True:
                try:
                    worked = await self.index_some()
                except StoreError as exc:
                    if not exc.retryable:
                        raise
                    worked = False  # the consumer logs the error
                if not worked:
                    await asyncio.sleep(PAUSE_SECONDS)
        finally:
            await self._cell.redis.aclose()

    async def index_some(self) -> bool:
        """Do what is due for some sessions. Returns False if there is none. Raises the ``StoreError`` of Redis."""
        work, replaced = self._work, self._work.replaces
        if replaced is not None and not self._ready:
            self._ready = await take_over(self._cell, work.cursor, replaced.name, SCANNED_AT_ONCE)
        lease_ms = int(work.lease_seconds * 1000)
        taken = await take_sessions(self._cell, work.cursor, lease_ms, work.at_once)
        for one in taken:
            if one.damage:
                log.error(
                    "session %s cannot be indexed: %s", one.session_id, one.damage,
                    extra={"action": "memory_damaged", "session": one.session_id},
                )  # fmt: skip
        plans = await self._plans([one for one in taken if not one.damage])
        if plans:
            await self._carry_out(plans)
        return bool(taken)

    async def _carry_out(self, plans: Sequence[Plan]) -> None:
        """Carry out all plans at once. If the store refuses, do so session by session: one must not delay others."""
        began = time.monotonic()
        if await self._done(plans):
            self._pause = FIRST_RETRY_SECONDS
            return
        failed = list(plans)
        for plan in plans if len(plans) > 1 else ():
            if time.monotonic() - began < self._work.lease_seconds * PART_OF_LEASE and await self._done(
                [plan]
            ):
                failed.remove(plan)
        if len(failed) < len(plans):
            await self._put_off(failed, REFUSED_SECONDS)
            return
        await self._put_off(plans, self._pause)
        await asyncio.sleep(self._pause)
        self._pause = min(self._pause * 2, LONGEST_RETRY_SECONDS)

    async def _done(self, plans: Sequence[Plan]) -> bool:
        """Write the documents, then update Redis. Returns False if writing fails, whatever that raises."""
        try:
            await self._work.write(plans)
        except BaseException as exc:
            if is_stop(exc):
                raise
            log.warning(
                "memory %s cannot be written now: %s", self._work.cursor, type(exc).__name__,
                extra={"action": "memory_store_failed"},
            )  # fmt: skip
            log.debug("memory %s: %s", self._work.cursor, text_of(exc))
            return False
        await asyncio.gather(*map(self._settle, plans))
        return True

    async def _settle(self, plan: Plan) -> None:
        """Update Redis. Undo what was written after another worker had taken the session and forgotten it.

        Only Redis knows whether what was written may stay, so it is asked up to ``SETTLE_TRIES`` times.
        """
        for _ in range(SETTLE_TRIES):
            try:
                late = await settle_session(self._cell, self._work.cursor, plan.taken, plan.indexed)
                if late:
                    await self._work.undo(plan, late)
                if late is not None:
                    return
            except BaseException as exc:  # Redis or the store is unavailable
                if is_stop(exc):
                    raise
                log.debug("session %s cannot be settled now: %s", plan.taken.session_id, text_of(exc))
            await asyncio.sleep(PAUSE_SECONDS)
        log.warning(
            "session %s could not be settled: it is indexed again", plan.taken.session_id,
            extra={"action": "memory_store_failed", "session": plan.taken.session_id},
        )  # fmt: skip

    async def _put_off(self, plans: Sequence[Plan], seconds: float) -> None:
        for plan in plans:
            await put_off(self._cell, self._work.cursor, plan.taken, int(seconds * 1000))

    async def _plans(self, taken: Sequence[TakenSession]) -> list[Plan]:
        """Read the new turns from their records, in one round trip, and sessions that were cut from their history."""
        new = [TurnId(turn) for one in taken if not one.cut for turn in one.new.split()]
        records = dict(zip(new, await turn_records(self._cell, new), strict=True)) if new else {}
        plans: list[Plan] = []
        for one in taken:
            try:
                plans.append(await self._plan(one, records))
            except CorruptRecord as exc:
                log.error(
                    "session %s cannot be indexed: %s", one.session_id, exc.message,
                    extra={"action": "memory_damaged", "session": one.session_id},
                )  # fmt: skip
                await put_off(self._cell, self._work.cursor, one, int(REFUSED_SECONDS * 1000))
        return plans

    async def _plan(
        self, whole: TakenSession, records: Mapping[TurnId, TurnRecord | AgentError | None]
    ) -> Plan:
        taken = _some_of(whole, self._work.most_turns)
        new = taken.new.split()
        found = {turn: _text_of(records.get(TurnId(turn))) for turn in new}
        if taken.cut or None in found.values():
            history = await found_in(self._cell, taken.session_id, 0, -1)
            told = texts_of_history(decode_history(history.history, 0))
            found = {turn: found.get(turn) or told.get(turn) for turn in dict.fromkeys([*taken.known, *new])}
            if not taken.cut:
                found |= {turn: await self._work.former(taken, turn) for turn in new if found[turn] is None}
        said = {turn: text for turn, text in found.items() if isinstance(text, TurnText)}
        indexed = {turn: self._work.value(taken, said[turn]) if turn in said else "" for turn in found}
        changed = [turn for turn, value in indexed.items() if taken.known.get(turn) != value]
        replaced = [turn for turn in changed if taken.cut or turn in taken.known]
        texts = [said[turn] for turn in changed if turn in said]
        return Plan(taken, replaced, texts, {turn: indexed[turn] for turn in changed})


def _some_of(taken: TakenSession, most: int | None) -> TakenSession:
    """Return the session with at most this many new turns, or with all if it was cut: they are then compared with its
    history. The remaining turns are taken once it is settled.
    """
    if most is None or taken.cut:
        return taken
    return structs.replace(taken, new="".join(f"{turn} " for turn in taken.new.split()[:most]))


def _text_of(record: TurnRecord | AgentError | None) -> TurnText | str | None:
    """Return the text of the turn, '' if it has none, or None if the history must be read."""
    if not isinstance(record, TurnRecord):
        return None
    asked = shown_request(record.fields.get("request", b"")).messages
    text = texts_of_turn(record.turn_id, [*asked, *response_of(record).messages])
    return "" if text is None else structs.replace(text, tenant=record.tenant)
