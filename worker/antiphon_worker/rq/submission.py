"""Submitting a turn on behalf of an RQ job that carries ``(session_id, text, options)``."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from antiphon.errors import InvalidMessage
from antiphon.input.ids import session_id, turn_id
from antiphon.input.messages import to_input
from antiphon.input.request import TurnRequest, encode_request
from antiphon.redis.cells import Cells
from antiphon.wire.cell import Cell

__all__ = ["OPTIONS", "submit_job"]


# What the job does not say: the input is its text, and nobody waits for structured output.
OPTIONS = {*TurnRequest.__struct_fields__} - {"messages", "output", "version"}


async def submit_job(
    cell: Cell, cells: Cells, job_id: str, queue: str, arguments: list[Any], options: dict[str, Any]
) -> None:
    """Accept the turn under the job's own id. Raises ``InvalidMessage``, ``InvalidId``, ``UsageError``.

    ``cells`` are those of the deployment, as far as this worker knows them.
    """
    given = dict(options)
    match arguments:
        case [session, str() as text]:
            pass
        case [session, str() as text, dict() as more]:
            given |= more
        case _:
            raise InvalidMessage(
                "The job's arguments are neither a turn id that is known nor (session_id, text, options)."
            )
    for name in given.keys() - OPTIONS:
        raise InvalidMessage(f"The job's options are not those of a turn: {name!r} is none.")
    try:
        request = msgspec.convert({**given, "messages": []}, TurnRequest)
    except msgspec.ValidationError as exc:
        raise InvalidMessage(f"The job's options are not those of a turn: {exc}.") from exc
    request.messages = to_input(text)
    payload = encode_request(request)
    cells.check_place(cell, session_id(session), turn_id(job_id))
    await cell.submit(
        session_id(session), turn_id(job_id), payload, digest=hashlib.sha256(payload).hexdigest(), queue=queue,
        agent=msgspec.json.encode(request.agent) if request.agent else b"",
    )  # fmt: skip
