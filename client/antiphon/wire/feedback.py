"""Feedback about turns, and the figures of the revisions on which they ran."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from antiphon.model import encode
from antiphon.model.feedback import Feedback, Figures
from antiphon.text import number, text_of
from antiphon.wire.cell import Cell
from antiphon.wire.errors import asked, unexpected, unknown_turn
from antiphon.wire.lists.agents import advertised
from antiphon.wire.lists.reading import is_damaged, places
from antiphon.wire.records import TurnRecord, readable

LASTS_MS = 31 * 86_400_000
PAGE = 100


def figures_id(agent: str, revision: str) -> str:
    return f"{agent}@{revision}"


async def rate(cell: Cell, record: TurnRecord, feedback: Feedback, revision: tuple[str, str]) -> None:
    """Keep the feedback about a turn. ``revision`` is the agent and revision that it ran on, '' if not known.

    Raises ``TurnNotFound`` and ``StoreError``.
    """
    said = cell.seal.seal(record.session_id, "feedback", encode(feedback))
    counted = figures_id(*revision) if all(revision) else ""
    match await cell.run("rate", record.turn_id, said, feedback.score, counted, LASTS_MS):
        case [b"RATED", _]:
            return
        case [b"TURN_NOT_FOUND"]:
            raise unknown_turn(record.turn_id)
        case answer:
            raise unexpected("rate", answer)


def feedback_of(record: TurnRecord) -> Feedback | None:
    """Return the feedback about a turn, or None. Raises ``CorruptRecord``."""
    if not (said := record.fields.get("feedback")):
        return None
    with readable("The feedback about a turn", session_id=record.session_id, turn_id=record.turn_id):
        found = msgspec.json.decode(said, type=Feedback)
        return msgspec.structs.replace(found, at=int(record.fields.get("rated_at") or 0))


async def rated_turns(
    cell: Cell, since: int, tenant: str | None = None
) -> AsyncGenerator[tuple[int, str], None]:
    """Yield the time and id of each turn (of a tenant, if given) with feedback since a time, the last one first.

    Raises ``StoreError``.
    """
    key, after = cell.keys.rated if tenant is None else cell.keys.rated_of(tenant), None
    while found := await places(cell, key, after, PAGE, last_first=True, low=since):
        for at, turn in found:
            yield int(at), turn
        after = found[-1]


async def keep_figures(
    cell: Cell, revision: tuple[str, str], worker: str, found: Figures, *, known: bool
) -> bool:
    """Keep the totals that a worker process has counted since its start: repeating it changes nothing.

    Returns False if its figures that are ``known`` to Redis were added to those of other processes: it counts from zero
    again. Without a ``worker``, ``found`` are the figures of one turn. Raises ``StoreError``.
    """
    match await cell.run(
        "count", figures_id(*revision), worker, encode(found), "1" if known else "", LASTS_MS
    ):
        case [b"COUNTED"]:
            return True
        case [b"ADDED_UP"]:
            return False
        case answer:
            raise unexpected("count", answer)


async def figures_of(cell: Cell, revisions: Sequence[tuple[str, str]]) -> list[Figures]:
    """Return the figures of these revisions in a cell: those of all worker processes. Raises ``StoreError``."""
    pipe = cell.redis.pipeline(transaction=False)
    for revision in revisions:
        pipe.hgetall(cell.keys.figures(figures_id(*revision)))
    found: list[Any] = await asked(pipe.execute(raise_on_error=False)) if revisions else []
    return [Figures() if is_damaged(fields) else _sum(fields) for fields in found]


async def figures_of_workers(cell: Cell) -> dict[str, Figures]:
    """Return the figures of the revisions that live workers have, by agent@revision. Raises ``StoreError``."""
    known = await advertised(cell)
    revisions = sorted({(agent, one.id) for agents in known.values() for agent, one in agents.items()})
    figures = await figures_of(cell, revisions)
    return {figures_id(*revision): one for revision, one in zip(revisions, figures, strict=True)}


def _sum(fields: Mapping[bytes, bytes]) -> Figures:
    whole = Figures(rated=number(fields.get(b"rated")), scores=_score(fields.get(b"scores")))
    for name, value in fields.items():
        if text_of(name) not in ("rated", "scores"):
            with suppress(msgspec.MsgspecError, UnicodeError):
                whole += msgspec.json.decode(value, type=Figures)
    return whole


def _score(value: bytes | None) -> float:
    with suppress(ValueError):
        return round(float(value or 0), 9)
    return 0.0
