"""The webhooks of a cell: which endpoints receive which completion events, and the deliveries that wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from antiphon.encryption.records import WEBHOOK
from antiphon.errors import CorruptRecord, LimitReached
from antiphon.input.ids import SessionId, TurnId
from antiphon.text import text_of
from antiphon.wire.cell import Cell
from antiphon.wire.errors import asked, unexpected
from antiphon.wire.lists.notices import KEEP_SECONDS, Notice
from antiphon.wire.lists.reading import is_damaged
from antiphon.wire.records import pairs

What = Literal["delivered", "dropped", "skipped", "later"]
"""What became of a delivery; ``skipped``: the webhook does not subscribe to it."""

MOST_WEBHOOKS = 100
AT_ONCE = 100
KEEP_MS = int(KEEP_SECONDS * 1000)


_DAMAGED = b"Its records are damaged: it misses events until it is deleted and set again."


class StoredWebhook(NamedTuple):
    """A webhook as Redis has it, and how many deliveries wait."""

    name: str
    fields: dict[str, bytes]
    waiting: int


class Delivery(NamedTuple):
    """A delivery of a webhook: ``id`` is its entry in Redis, ``at`` when the notice was handed out, in ms."""

    id: str
    at: int
    notice: Notice


class DamagedWebhook(NamedTuple):
    """A webhook that cannot be taken before it is repaired, and why."""

    name: str
    why: str


class Taken(NamedTuple):
    """A webhook that this worker holds, and what is due. ``now`` is the time of Redis, in ms."""

    name: str
    fence: int
    now: int
    fields: dict[str, bytes]
    deliveries: list[Delivery]


class Handed(NamedTuple):
    """What became of the notices: after which one some were lost ('' if none were), and whether there are more.

    ``pushes`` is whether single turns may have notifications (see ``antiphon.wire.pushes``).
    """

    missed: str
    more: bool
    pushes: bool


async def write_webhook(cell: Cell, name: str, fields: Mapping[str, str]) -> None:
    """Write a webhook, or without fields remove it. Raises ``LimitReached``, ``StoreError``."""
    encoded = {field: value.encode() for field, value in fields.items()}
    flat = [value for pair in cell.seal.seal_fields(name, WEBHOOK, encoded).items() for value in pair]
    match await cell.run("webhooks/write", name, MOST_WEBHOOKS, KEEP_MS, *flat):
        case [b"OK"]:
            return
        case [b"FULL", limit]:
            raise LimitReached(f"There are {int(limit)} webhooks already: delete one.", limit="webhooks")
        case answer:
            raise unexpected("webhooks/write", answer)


async def take_webhook(
    cell: Cell, lease_ms: int, pause_ms: int
) -> tuple[Taken | DamagedWebhook | None, Handed]:
    """Hand out new notices, and take a webhook with due deliveries. Raises ``StoreError``, and ``KeyMissing`` after it
    has taken the webhook: then another worker takes it at the end of the lease.
    """
    match await cell.run("webhooks/take", lease_ms, pause_ms, KEEP_MS, AT_ONCE):
        case [b"NONE", *handed]:
            return None, _handed(handed)
        case [b"TAKEN", missed, more, pushes, name, fence, now, flat, due]:
            fields = cell.seal.open_fields(text_of(name), WEBHOOK, pairs(flat))
            found = [_delivery(text_of(one)) for one in due]
            taken = Taken(text_of(name), int(fence), int(now), fields, found)
            return taken, _handed([missed, more, pushes])
        case [b"DAMAGED", missed, more, pushes, name, why]:
            return DamagedWebhook(text_of(name), text_of(why)), _handed([missed, more, pushes])
        case answer:
            raise unexpected("webhooks/take", answer)


async def settle(
    cell: Cell, taken: Taken, delivery: Delivery, what: What, ms: int = 0,
    error: str = "",
) -> bool:  # fmt: skip
    """Record what became of a delivery. Returns False if another worker holds the webhook now."""
    sealed = cell.seal.seal(taken.name, "webhook_error", error.encode())
    return await cell.run_held(
        b"OK", "webhooks/settle", taken.name, taken.fence, delivery.id, what, ms, sealed
    )


async def release_webhook(cell: Cell, taken: Taken) -> None:
    """Release a webhook."""
    await cell.run_held(b"OK", "webhooks/release", taken.name, taken.fence)


async def stored_webhooks(cell: Cell, names: Sequence[str] | None = None) -> list[StoredWebhook]:
    """Read the webhooks with these names, or all. Deleted ones and fields that cannot be decrypted are left out.

    A webhook whose record has another type has only an error.
    """
    if names is None:
        known: list[bytes] = await asked(cell.redis.zrange(cell.keys.webhooks, 0, -1))
        names = sorted(text_of(name) for name in known)
    pipe = cell.redis.pipeline(transaction=True)
    for name in names:
        pipe.hgetall(cell.keys.webhook(name))
        pipe.zcard(cell.keys.deliveries(name))
    answers: list[Any] = await asked(pipe.execute(raise_on_error=False)) if names else []
    return [
        _stored(cell, name, raw, waiting)
        for name, raw, waiting in zip(names, answers[::2], answers[1::2], strict=True)
        if raw
    ]


def _handed(raw: Sequence[bytes]) -> Handed:
    missed, more, pushes = raw
    return Handed(text_of(missed), more == b"1", pushes == b"1")


def _stored(cell: Cell, name: str, raw: Any, waiting: Any) -> StoredWebhook:
    fields = {} if is_damaged(raw) else _fields(cell, name, raw)
    if is_damaged(waiting) or "types" not in fields or "tenant" not in fields:
        return StoredWebhook(name, fields | {"error": _DAMAGED}, 0)
    return StoredWebhook(name, fields, waiting)


def _fields(cell: Cell, name: str, raw: Mapping[bytes, bytes]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for key, value in raw.items():
        with suppress(CorruptRecord):
            found |= cell.seal.open_fields(name, WEBHOOK, {text_of(key): value})
    return found


def _delivery(text: str) -> Delivery:
    entry, at, kind, seq, turn, session = [*text.split(" ", 5), *([""] * 6)][:6]
    notice = Notice(entry, kind, SessionId(session), TurnId(turn), int(seq) if seq.isdigit() else 0, None)
    return Delivery(text, int(at) if at.isdigit() else 0, notice)
