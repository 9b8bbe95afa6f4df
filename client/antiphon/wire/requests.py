"""The requests to models that a turn keeps if its App asks for it."""

from __future__ import annotations

from typing import Any

import msgspec

from antiphon.input.ids import Fence
from antiphon.model import encode
from antiphon.model.recording import KeptRequest
from antiphon.wire.cell import Cell
from antiphon.wire.errors import asked, unexpected
from antiphon.wire.records import TurnRecord, readable

LASTS_MS = 7 * 86_400_000
MOST = 200  # per turn
MOST_BYTES_OF_TURN = 8 * 1024 * 1024


async def keep_request(
    cell: Cell, session_id: str, turn_id: str, fence: Fence, number: int, request: KeptRequest
) -> bool:
    """Keep a request, the ``number``-th of its attempt. Repeating it changes nothing.

    Beyond ``MOST_BYTES_OF_TURN`` it is kept without its body, beyond ``MOST`` not at all. Returns False if the turn has
    another holder now. Raises ``StoreError``.
    """
    whole, brief = (
        cell.seal.seal(session_id, "kept", encode(one))
        for one in (request, msgspec.structs.replace(request, body=None))
    )
    name = f"{request.run}.{request.attempt}.{number}"
    match await cell.run(
        "keep_request", session_id, turn_id, fence, name, whole, brief, MOST, MOST_BYTES_OF_TURN, LASTS_MS
    ):
        case [b"KEPT" | b"FULL"]:
            return True
        case [b"SUPERSEDED"]:
            return False
        case answer:
            raise unexpected("keep_request", answer)


async def kept_requests(cell: Cell, record: TurnRecord) -> list[KeptRequest]:
    """Return the kept requests of a turn, in order. Raises ``CorruptRecord`` and ``StoreError``."""
    found: dict[bytes, bytes] = await asked(cell.redis.hgetall(cell.keys.requests(record.turn_id)))
    with readable("A kept request", session_id=record.session_id, turn_id=record.turn_id):
        return [
            msgspec.json.decode(cell.seal.open(record.session_id, "kept", data), type=KeptRequest)
            for _, data in sorted((_place(name), data) for name, data in found.items() if name != b"bytes")
        ]


def _place(name: bytes) -> tuple[Any, ...]:
    return tuple(int(part) for part in name.split(b"."))
