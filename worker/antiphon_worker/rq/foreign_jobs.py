"""Handles jobs in our queues that our clients did not create: turns submitted through RQ, and unrelated jobs.

Only this module of the worker reads RQ's payloads.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
from redis.exceptions import RedisError

from antiphon.errors import AgentError, InvalidMessage, StoreError, UsageError
from antiphon.input.ids import session_id, turn_id
from antiphon.input.limits import LIMITS, check_size
from antiphon.input.options import given, json_fields
from antiphon.input.values import lifetime
from antiphon.input.wrong_values import wrong_value
from antiphon.redis.cells import Cells
from antiphon.redis.connections import new_turn, without_contents
from antiphon.session.runtime import SessionRef
from antiphon.session.work import options_of, work_of_client
from antiphon.wire.cell import Cell
from antiphon.wire.errors import asked, store_error
from antiphon.wire.records import DAMAGE, ForeignJob

_DECLARED = options_of("job")
_Options: Any = msgspec.defstruct("JobOptions", [*json_fields(_DECLARED), ("trace", str, "")])
OPTIONS: tuple[str, ...] = _Options.__struct_fields__


async def submit_job(
    cell: Cell, cells: Cells, job_id: str, queue: str, arguments: list[Any], options: dict[str, Any]
) -> None:
    """Accept the turn under the job's own id. Raises ``InvalidMessage``, ``InvalidId``, ``UsageError``.

    ``cells`` are the cells of the deployment that this worker knows.
    """
    match arguments:
        case [session, str() as text]:
            asked = options
        case [session, str() as text, dict() as more]:
            asked = options | more
        case _:
            raise InvalidMessage(
                "The job's arguments are neither the id of a known turn nor (session_id, text, options)."
            )
    for name in asked.keys() - {*OPTIONS}:
        raise InvalidMessage(f"The job's options are not those of a turn: remove {name!r}.")
    if not isinstance(asked.get("schema"), dict | None):
        raise InvalidMessage("The job's option 'schema' must be a JSON schema.")
    try:
        found = msgspec.convert(asked, _Options)
    except msgspec.ValidationError as exc:
        raise InvalidMessage(
            f"The job's options are not those of a turn: {wrong_value(exc, _Options)[0]}"
        ) from exc
    named = given(found, _DECLARED)
    agent, ttl = named.pop("agent", None), named.pop("ttl", msgspec.UNSET)
    work = work_of_client(text, named | {"queue": queue})
    ref, turn = SessionRef(session_id(session), ttl=lifetime(ttl)), turn_id(job_id)
    cells.check_place(cell, ref.id, turn)
    work = await without_contents(cell, ref, work)
    request = work.request(agent)
    request.trace = found.trace
    await cell.submit(new_turn(ref, turn, work, request))


log = logging.getLogger("antiphon.foreign")

RUN_TURN = "antiphon_worker.jobs.run_turn"
RETRY_SECONDS = 0.5
IN_THE_CLEAR = (
    "This deployment is encrypted, and jobs hold what users wrote in plain text: submit turns with a client of ours or "
    "through the gateway."
)


class ForeignJobs:
    """Submits jobs that ask for a turn, and visibly fails all others without running them.

    ``cells`` returns the cells of the deployment. It is called once, for the first job.
    """

    def __init__(self, cell: Cell, worker: str, cells: Callable[[], Cells]) -> None:
        self._cell = cell
        self._worker = worker
        self._cells = cache(cells)

    async def handle(self, job: ForeignJob) -> None:
        """Submit or fail one job, as soon as Redis accepts it."""
        while True:
            try:
                return await self._handle(job)
            except StoreError as exc:
                if not exc.retryable:
                    raise
                log.warning(
                    "job %r in queue %s must wait: %s", job.job_id, job.queue, exc, extra={"action": "outage"}
                )
            await asyncio.sleep(RETRY_SECONDS)

    async def _handle(self, job: ForeignJob) -> None:
        if await self._is_cancelled(job):
            return await self._forget_claim(job)
        try:
            arguments, options = _call(job.data)
            if self._cell.seal.on:
                raise UsageError(IN_THE_CLEAR)
            await submit_job(self._cell, self._cells(), job.job_id, job.queue, arguments, options)
        except StoreError:
            raise
        except (AgentError, *DAMAGE) as exc:
            why = exc.message if isinstance(exc, AgentError) else f"It cannot be read ({type(exc).__name__})."
            code = exc.code if isinstance(exc, AgentError) else type(exc).__name__
            log.error(
                "job %r in queue %s is refused: %s (RQ's tools show the reason)", job.job_id, job.queue, code,
                extra={"action": "job_refused"},
            )  # fmt: skip
            log.debug("job %r in queue %s is refused: %s", job.job_id, job.queue, why)
            # The text may quote the job, which an encrypted deployment must not store.
            return await self._cell.fail_job(job, self._worker, IN_THE_CLEAR if self._cell.seal.on else why)
        return await self._forget_claim(job)

    async def _is_cancelled(self, job: ForeignJob) -> bool:
        """Return whether RQ's ``job.cancel()`` was called after the claim. A new turn would overwrite its mark."""
        key = self._cell.keys.of_rq("rq_job", job.job_id).encode(errors="surrogateescape")
        return await asked(self._cell.redis.hget(key, "status")) == b"canceled"

    async def _forget_claim(self, job: ForeignJob) -> None:
        """Remove the claim's entry from RQ's running jobs, because the turn now has its own entry."""
        try:
            await self._cell.redis.zrem(
                self._cell.keys.of_rq("rq_started", job.queue), _entry(job, self._worker)
            )
        except (RedisError, OSError) as exc:
            raise store_error(exc) from exc


def _entry(job: ForeignJob, worker: str) -> bytes:
    return f"{job.job_id}:{worker}".encode(errors="surrogateescape")


def _decompressed(data: bytes) -> bytes:
    """Decompress RQ's payload up to the limit of a turn; return other data as it is. Raises ``LimitReached``."""
    decompressor = zlib.decompressobj()
    try:
        text = decompressor.decompress(data, LIMITS.request_bytes + 1)
    except zlib.error:
        return data
    check_size("request_bytes", len(text), "The job's payload")
    return text


def _call(data: bytes) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call of `run_turn`. Raises ``InvalidMessage`` for anything else."""
    text = _decompressed(data)
    try:
        function, _instance, arguments, options = msgspec.json.decode(
            text, type=tuple[str, Any, list[Any], dict[str, Any]]
        )
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise InvalidMessage(
            "The job's payload is not JSON as RQ writes it: enqueue it with serializer='json' "
            "(pickled jobs are not read)."
        ) from None
    if function != RUN_TURN:
        raise InvalidMessage(
            f"This worker runs only {RUN_TURN}, not {function[:200]}: use another queue for that function."
        )
    return arguments, options
