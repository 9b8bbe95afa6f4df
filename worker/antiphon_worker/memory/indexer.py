"""Indexes finished turns, and forgets what was deleted. Indexers of several workers share the sessions.

1. The script that ends a turn notes, in the same step, which memories are to index it.
2. An indexer takes sessions with such turns for a time, and writes their passages under ids that are always the same.
3. It writes what stands in the index now. Whoever died before that has written what the next one writes again.
4. A session that lost messages is compared with what the index has of it.

While a store fails, nothing is lost: the sessions wait in Redis.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.documents import Document
from msgspec import structs

from antiphon.errors import CorruptRecord, StoreError, StoreUnavailable
from antiphon.input.ids import TurnId
from antiphon.input.request import shown_request
from antiphon.memory.declaration import Memory
from antiphon.model import decode_history
from antiphon.redis.edits import found_in
from antiphon.redis.turn_info import response_of
from antiphon.wire.cell import Cell
from antiphon.wire.lists.memories import TakenSession, put_off, settle_session, take_over, take_sessions
from antiphon.wire.lists.notices import turn_records
from antiphon.wire.records import TurnRecord
from antiphon_worker.memory.index import Index
from antiphon_worker.memory.passages import (
    MOST_PASSAGES,
    TurnText,
    document_id,
    texts_of_history,
    texts_of_turn,
)

__all__ = ["Indexer"]

log = logging.getLogger("antiphon.memory")

PAUSE_SECONDS = 0.5
LEASE_SECONDS = 60.0
STORE_SECONDS = 30.0
AT_ONCE = 32
SCANNED_AT_ONCE = 500
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 30.0
REFUSED_SECONDS = 300.0
"""So long a session waits that the store refuses, while it takes others."""


class _Plan(NamedTuple):
    """What is to be done for a session: documents to delete and then to write, and what the index has after that."""

    taken: TakenSession
    forgotten: list[str]
    documents: list[Document]
    indexed: dict[str, str]


class Indexer:
    """Looks twice a second, and at once where there is more."""

    def __init__(self, cell: Cell, memory: Memory) -> None:
        self._cell = cell
        self._memory = memory
        self._index = Index(memory)
        self._pause = FIRST_RETRY_SECONDS
        self._ready = memory.replaces is None

    async def run(self) -> None:
        """Index until cancelled, and close the cell's connections."""
        try:
            while True:
                try:
                    worked = await self.index_some()
                except StoreError:
                    worked = False  # the consumer logs the error
                if not worked:
                    await asyncio.sleep(PAUSE_SECONDS)
        finally:
            await self._cell.redis.aclose()

    async def index_some(self) -> bool:
        """Do what is due for some sessions. Returns False if there is none. Raises Redis' ``StoreError``."""
        replaced = self._memory.replaces
        if replaced is not None and not self._ready:
            self._ready = await take_over(self._cell, self._memory.name, replaced.name, SCANNED_AT_ONCE)
        lease_ms = int(LEASE_SECONDS * 1000)
        taken = await take_sessions(self._cell, self._memory.name, lease_ms, AT_ONCE)
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

    async def _carry_out(self, plans: Sequence[_Plan]) -> None:
        """Do it all at once. If the store refuses that, do it session by session: one must not hold up the others."""
        began = time.monotonic()
        if await self._done(plans):
            self._pause = FIRST_RETRY_SECONDS
            return
        failed = list(plans)
        for plan in plans if len(plans) > 1 else ():
            if time.monotonic() - began < LEASE_SECONDS - STORE_SECONDS and await self._done([plan]):
                failed.remove(plan)
        if len(failed) < len(plans):
            await self._put_off(failed, REFUSED_SECONDS)
            return
        await self._put_off(plans, self._pause)
        await asyncio.sleep(self._pause)
        self._pause = min(self._pause * 2, LONGEST_RETRY_SECONDS)

    async def _done(self, plans: Sequence[_Plan]) -> bool:
        """Write to the store and then to Redis. Returns False if the store fails."""
        forgotten = [one for plan in plans for one in plan.forgotten]
        documents = [one for plan in plans for one in plan.documents]
        if not await self._written(self._index.delete(forgotten), self._index.add(documents)):
            return False
        await asyncio.gather(*map(self._settle, plans))
        return True

    async def _written(self, *writes: Coroutine[Any, Any, None]) -> bool:
        """Do these one after the other. Returns False if the store fails, whatever it raises."""
        try:
            async with asyncio.timeout(STORE_SECONDS):
                for write in writes:
                    await write
        except Exception as exc:  # noqa: BLE001 - a store of anybody's
            log.warning(
                "memory %s cannot be written now: %s", self._memory.name, type(exc).__name__,
                extra={"action": "memory_store_failed"},
            )  # fmt: skip
            log.debug("memory %s: %s", self._memory.name, exc)
            return False
        finally:
            for write in writes:
                write.close()
        return True

    async def _settle(self, plan: _Plan) -> None:
        unknown = await settle_session(self._cell, self._memory.name, plan.taken, plan.indexed)
        if unknown:  # the session was deleted, and forgotten by another worker, before these were written
            await self._written(self._index.delete(self._ids(plan.taken, unknown)))

    async def _put_off(self, plans: Sequence[_Plan], seconds: float) -> None:
        for plan in plans:
            await put_off(self._cell, self._memory.name, plan.taken, int(seconds * 1000))

    async def _plans(self, taken: Sequence[TakenSession]) -> list[_Plan]:
        """Read the new turns from their records, in one round trip, and sessions that were cut from their history."""
        new = [TurnId(turn) for one in taken if not one.cut for turn in one.new.split()]
        records = dict(zip(new, await turn_records(self._cell, new), strict=True)) if new else {}
        plans: list[_Plan] = []
        for one in taken:
            try:
                plans.append(await self._plan(one, records))
            except CorruptRecord as exc:
                log.error(
                    "session %s cannot be indexed: %s", one.session_id, exc.message,
                    extra={"action": "memory_damaged", "session": one.session_id},
                )  # fmt: skip
                await put_off(self._cell, self._memory.name, one, int(REFUSED_SECONDS * 1000))
        return plans

    async def _plan(
        self, taken: TakenSession, records: Mapping[TurnId, TurnRecord | StoreError | None]
    ) -> _Plan:
        new = taken.new.split()
        found = {turn: _text_of(records.get(TurnId(turn))) for turn in new}
        if taken.cut or None in found.values():
            history = await found_in(self._cell, taken.session_id, 0, -1)
            whole = texts_of_history(decode_history(history.history, 0))
            found = {turn: found.get(turn) or whole.get(turn) for turn in dict.fromkeys([*taken.known, *new])}
            if not taken.cut:
                found |= {turn: await self._replaced(taken, turn) for turn in new if found[turn] is None}
        said = {turn: text if isinstance(text, TurnText) else None for turn, text in found.items()}
        indexed = {turn: text.digest if text else "" for turn, text in said.items()}
        changed = [turn for turn, digest in indexed.items() if taken.known.get(turn) != digest]
        replaced = [turn for turn in changed if taken.cut or turn in taken.known]
        documents = [one for turn in changed for one in self._documents(taken, said[turn])]
        return _Plan(taken, self._ids(taken, replaced), documents, {turn: indexed[turn] for turn in changed})

    async def _replaced(self, taken: TakenSession, turn: str) -> TurnText | None:
        """Return what the memory has of a turn that this one replaces. Raises ``StoreUnavailable``."""
        former = self._memory.replaces
        if former is None:
            return None
        prefix, numbers = self._cell.keys.prefix, range(MOST_PASSAGES)
        ids = [document_id(prefix, former, taken.session_id, turn, number) for number in numbers]
        try:
            found = {one.id: one for one in await Index(former).documents(ids)}
        except Exception as exc:
            raise StoreUnavailable(
                f"The memory {former.name} cannot be read now: {type(exc).__name__}."
            ) from exc
        passages = [found[one] for one in ids if one in found]
        if not passages:
            return None
        about, texts = passages[0].metadata, [one.page_content for one in passages]
        return TurnText(turn, about["agent"] or None, about["created"], texts, about["tenant"] or None)

    def _documents(self, taken: TakenSession, text: TurnText | None) -> list[Document]:
        if text is None:
            return []
        tenant = text.tenant or taken.tenant
        prefix, memory = self._cell.keys.prefix, self._memory
        about = {
            "scope": memory.scope_key(prefix, tenant, text.agent, taken.session_id),
            "session_id": taken.session_id,
            "turn_id": text.turn_id,
            "tenant": tenant or "",
            "agent": text.agent or "",
            "created": text.created,
        }
        return [
            Document(
                id=document_id(prefix, memory, taken.session_id, text.turn_id, number),
                page_content=passage,
                metadata=dict(about),
            )
            for number, passage in enumerate(text.passages)
        ]

    def _ids(self, taken: TakenSession, turns: Sequence[str]) -> list[str]:
        """All ids that documents of these turns may have."""
        prefix = self._cell.keys.prefix
        return [
            document_id(prefix, self._memory, taken.session_id, turn, number)
            for turn in turns
            for number in range(MOST_PASSAGES)
        ]


def _text_of(record: TurnRecord | StoreError | None) -> TurnText | str | None:
    """Return what the turn said; '' if that is nothing, None if it must be read from the history."""
    if not isinstance(record, TurnRecord):
        return None
    asked = shown_request(record.fields.get("request", b"")).messages
    text = texts_of_turn(record.turn_id, [*asked, *response_of(record).messages])
    return "" if text is None else structs.replace(text, tenant=record.tenant)
