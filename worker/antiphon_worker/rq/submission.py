"""Submits a turn for an RQ job with the arguments ``(session_id, text, options)``."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from antiphon.errors import InvalidMessage
from antiphon.input.ids import session_id, turn_id
from antiphon.input.messages import to_input
from antiphon.input.request import OutputSpec, TurnRequest, encode_request, input_bytes
from antiphon.input.schema import output_schema
from antiphon.redis.cells import Cells
from antiphon.wire.cell import Cell

__all__ = ["OPTIONS", "submit_job"]


# The input of a job is its text, and its ``schema`` becomes the ``output`` of the request.
_FIELDS = {*TurnRequest.__struct_fields__} - {"messages", "output", "revises", "version"}
OPTIONS = _FIELDS | {"schema"}


async def submit_job(
    cell: Cell, cells: Cells, job_id: str, queue: str, arguments: list[Any], options: dict[str, Any]
) -> None:
    """Accept the turn under the job's own id. Raises ``InvalidMessage``, ``InvalidId``, ``UsageError``.

    ``cells`` are the cells of the deployment that this worker knows.
    """
    given = dict(options)
    match arguments:
        case [session, str() as text]:
            pass
        case [session, str() as text, dict() as more]:
            given |= more
        case _:
            raise InvalidMessage(
                "The job's arguments are neither the id of a known turn nor (session_id, text, options)."
            )
    for name in given.keys() - OPTIONS:
        raise InvalidMessage(f"The job's options are not those of a turn: remove {name!r}.")
    schema = given.pop("schema", None)
    try:
        request = msgspec.convert({**given, "messages": []}, TurnRequest)
    except msgspec.ValidationError as exc:
        raise InvalidMessage(f"The job's options are not those of a turn: {exc}.") from exc
    if schema is not None:
        request.output = _output(schema)
    request.messages = to_input(text)
    payload = encode_request(request)
    cells.check_place(cell, session_id(session), turn_id(job_id))
    await cell.submit(
        session_id(session), turn_id(job_id), payload, digest=hashlib.sha256(payload).hexdigest(), queue=queue,
        agent=msgspec.json.encode(request.agent) if request.agent else b"",
        input_bytes=input_bytes(request.messages),
    )  # fmt: skip


def _output(schema: Any) -> OutputSpec:
    if not isinstance(schema, dict):
        raise InvalidMessage("The job's option 'schema' must be a JSON schema.")
    return output_schema(schema)
