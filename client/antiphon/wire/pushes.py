"""Push notifications about single turns: that a turn has ended, or waits for decisions.

They belong to their turn, and are deleted with it. Workers send them like the deliveries of webhooks.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import msgspec
from msgspec import Struct

from antiphon.errors import CorruptRecord, KeyMissing, LimitReached
from antiphon.input.ids import SessionId, TurnId
from antiphon.model import encode
from antiphon.text import text_of
from antiphon.wire.cell import Cell
from antiphon.wire.errors import asked, unexpected, unknown_turn
from antiphon.wire.lists.notices import KEEP_SECONDS
from antiphon.wire.records import readable

MOST_PUSHES = 10
"""Per turn."""
AT_ONCE = 100
KEEP_MS = int(KEEP_SECONDS * 1000)


class Push(Struct, omit_defaults=True):
    """Where notifications about a turn are sent, and with which headers.

    ``by`` is the caller that requested them, and ``id`` its name for them. ``kinds`` are the types of the events to
    report. ``private`` allows addresses that are not public.
    """

    id: str
    by: str
    url: str
    kinds: list[str]
    token: str = ""
    scheme: str = ""
    credentials: str = ""
    private: bool = False


class Due(NamedTuple):
    """A notification to be sent: ``kind`` happened to the turn at ``at``, in ms; it was handed out at ``since``.

    ``push`` is None if it cannot be read, and ``locked`` is true if only its key is missing here.
    """

    delivery: str
    since: int
    at: int
    kind: str
    turn_id: TurnId
    session_id: SessionId
    push: Push | None
    locked: bool = False


async def set_push(cell: Cell, turn_id: TurnId, session_id: SessionId, push: Push) -> None:
    """Request notifications about a turn, including one about what has already happened. Repeating it changes nothing.

    Raises ``LimitReached`` beyond 10 per turn, ``TurnNotFound`` and ``StoreError``.
    """
    content = cell.seal.seal(session_id, "push", encode(push))
    match await cell.run("pushes/set", turn_id, _digest(push.by, push.id), content, MOST_PUSHES, KEEP_MS):
        case [b"OK"]:
            return
        case [b"FULL"]:
            raise LimitReached(
                f"The turn has {MOST_PUSHES} notifications already: delete one.", limit="pushes"
            )
        case [b"TURN_NOT_FOUND"]:
            raise unknown_turn(turn_id)
        case answer:
            raise unexpected("pushes/set", answer)


async def pushes_of(cell: Cell, turn_id: TurnId, session_id: SessionId, by: str) -> list[Push]:
    """Return the notifications about a turn that one caller has set, in the order in which they were first set.

    Raises ``CorruptRecord``, ``KeyMissing`` and ``StoreError``.
    """
    key = cell.keys.turn(turn_id)
    names = text_of(await asked(cell.redis.hget(key, "pushes"))).split()
    if not names:
        return []
    raw: list[bytes | None] = await asked(cell.redis.hmget(key, [f"push:{one}" for one in names]))
    with readable("A notification about a turn", turn_id=turn_id):
        found = [_push(cell, session_id, one.partition(b" ")[2]) for one in raw if one]
    return [one for one in found if one.by == by]


async def delete_push(cell: Cell, turn_id: TurnId, by: str, name: str) -> None:
    """Stop sending these notifications. Repeating it changes nothing. Raises ``StoreError``."""
    await cell.run_for(b"OK", "pushes/delete", turn_id, _digest(by, name))


async def take_pushes(cell: Cell, lease_ms: int) -> tuple[list[Due], int, bool]:
    """Take due notifications for ``lease_ms``. Also returns the time of Redis in ms, and whether there are more.

    Raises ``StoreError``.
    """
    more, now, *taken = await cell.run_for(b"OK", "pushes/take", lease_ms, KEEP_MS, AT_ONCE)
    return [_due(cell, *one) for one in taken], int(now), more == b"1"


async def settle_push(cell: Cell, due: Due, again_ms: int | None = None) -> None:
    """Record that a notification was acknowledged or dropped, or when it is tried again. Raises ``StoreError``."""
    await cell.run_for(b"OK", "pushes/settle", due.delivery, "" if again_ms is None else again_ms)


def _digest(by: str, name: str) -> str:
    return hashlib.sha256(encode([by, name])).hexdigest()[:32]


def _push(cell: Cell, session_id: str, content: bytes) -> Push:
    return msgspec.json.decode(cell.seal.open(session_id, "push", content), type=Push)


def _due(cell: Cell, delivery: bytes, session: bytes, content: bytes) -> Due:
    _, since, at, kind, turn = text_of(delivery).split(" ")
    push, locked = None, False
    try:
        push = _push(cell, text_of(session), content)
    except KeyMissing:
        locked = True
    except (CorruptRecord, msgspec.MsgspecError):
        pass
    where = TurnId(turn), SessionId(text_of(session))
    return Due(text_of(delivery), _number(since), _number(at), kind, *where, push, locked)


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0
