"""Lists the tasks of an agent: of one context, or of all that the caller may use."""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from bisect import insort
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from a2a.types import a2a_pb2 as pb
from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE, MAX_LIST_TASKS_PAGE_SIZE
from a2a.utils.errors import InvalidParamsError

from antiphon.errors import InvalidId, WrongTenant
from antiphon.redis.trees import listed
from antiphon.redis.turn import AsyncTurn
from antiphon.session.turn_info import TurnInfo
from antiphon_gateway.a2a.parts import Address
from antiphon_gateway.a2a.tasks import changed_at, state_of, task_of
from antiphon_gateway.http.operations import Call
from antiphon_gateway.published import A2AAgent

MOST_LOOKED_AT = 1000
"""The most turns that are searched: the newest ones of the most recently used sessions."""
AT_ONCE = 50


async def list_tasks(
    call: Call[Any, Any], agent: A2AAgent, asked: pb.ListTasksRequest, address: Callable[[TurnInfo], Address]
) -> pb.ListTasksResponse:
    """Return a page of tasks, the latest change first. Raises ``InvalidParamsError``."""
    size, history = _size(asked), history_length(asked)
    after = _place(asked.page_token) if asked.page_token else None
    since = asked.status_timestamp_after.ToMilliseconds() if asked.HasField("status_timestamp_after") else 0
    total, newest = 0, list[TurnInfo]()  # the page and one more: a turn may have megabytes of messages
    async for info in _turns(call, asked.context_id):
        if (
            info.agent != agent.name or asked.status not in (pb.TASK_STATE_UNSPECIFIED, state_of(info))
            or changed_at(info) < since
        ):  # fmt: skip
            continue
        total += 1
        if after is None or _key(info) < after:
            insort(newest, info, key=_key)
            del newest[: -size - 1]
    page = newest[: -size - 1 : -1]
    tasks = [task_of(one, address(one), history=history, artifacts=asked.include_artifacts) for one in page]
    token = _token(page[-1]) if len(newest) > size else ""
    return pb.ListTasksResponse(tasks=tasks, next_page_token=token, page_size=size, total_size=total)


async def _turns(call: Call[Any, Any], context: str) -> AsyncGenerator[TurnInfo]:
    some: list[AsyncTurn] = []
    async with aclosing(_handles(call, context)) as handles:
        looked_at = 0
        async for turn in handles:
            looked_at += 1
            some.append(turn)
            if len(some) == AT_ONCE or looked_at == MOST_LOOKED_AT:
                for info in await _read(some):
                    yield info
                some = []
            if looked_at == MOST_LOOKED_AT:
                return
    for info in await _read(some):
        yield info


async def _handles(call: Call[Any, Any], context: str) -> AsyncGenerator[AsyncTurn]:
    if context:
        sessions = [context] if call.caller.may_use(context) else []
    else:
        known = call.client.sessions(tenant=call.caller.tenant, limit=MOST_LOOKED_AT)
        sessions = [one.session_id async for one in known if call.caller.may_use(one.session_id)]
    await call.check_life()
    for session in sessions:
        try:
            async for turn in call.client.turns(session, tenant=call.caller.tenant):
                yield turn
        except (InvalidId, WrongTenant):
            continue


async def _read(turns: list[AsyncTurn]) -> list[TurnInfo]:
    """Read turns concurrently, without those that have since been deleted or are damaged."""
    found = await asyncio.gather(*map(listed, turns))
    return [one for one in found if one is not None]


def history_length(asked: Any) -> int | None:
    """Return how many messages of the history are wanted, None for all. Raises ``InvalidParamsError``."""
    if not asked.HasField("history_length"):
        return None
    if asked.history_length < 0:
        raise InvalidParamsError("historyLength must not be negative.")
    return asked.history_length


def _size(asked: pb.ListTasksRequest) -> int:
    if not asked.HasField("page_size"):
        return DEFAULT_LIST_TASKS_PAGE_SIZE
    if not 1 <= asked.page_size <= MAX_LIST_TASKS_PAGE_SIZE:
        raise InvalidParamsError(f"pageSize must be between 1 and {MAX_LIST_TASKS_PAGE_SIZE}.")
    return asked.page_size


def _key(info: TurnInfo) -> tuple[int, str]:
    return changed_at(info), info.turn_id


def _token(info: TurnInfo) -> str:
    return urlsafe_b64encode("{} {}".format(*_key(info)).encode()).decode()


def _place(token: str) -> tuple[int, str]:
    try:
        at, _, turn = urlsafe_b64decode(token.encode()).decode().partition(" ")
        return int(at), turn
    except (Error, ValueError):
        raise InvalidParamsError("pageToken must be the nextPageToken of a list of tasks.") from None
