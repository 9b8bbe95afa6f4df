"""Push notifications of the protocol: the URLs that receive a caller's updates of a task."""

from __future__ import annotations

from typing import Any

from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError

from antiphon.errors import UsageError
from antiphon.redis.turn import AsyncTurn
from antiphon.redis.webhooks import check_url
from antiphon.wire.cell import Cell
from antiphon.wire.pushes import Push, delete_push, pushes_of, set_push
from antiphon_gateway.access.caller import Caller
from antiphon_gateway.http.operations import Call

KINDS = ("turn_finished", "turn_failed", "turn_cancelled", "turn_suspended")
LONGEST_ID, LONGEST_SECRET = 200, 4096


def push_of(asked: pb.TaskPushNotificationConfig, caller: Caller, *, private: bool) -> Push:
    """Return the push notification that a caller asks for. Raises ``InvalidParamsError``."""
    if len(asked.id) > LONGEST_ID:
        raise InvalidParamsError(f"The id of a push notification has at most {LONGEST_ID} characters.")
    secrets = {
        "token": asked.token, "authentication.scheme": asked.authentication.scheme,
        "authentication.credentials": asked.authentication.credentials,
    }  # fmt: skip
    for name, value in secrets.items():
        if (
            len(value) > LONGEST_SECRET
            or not (value.isascii() and value.isprintable())
            or value != value.strip()
        ):
            raise InvalidParamsError(
                f"{name} is sent in a header: use at most {LONGEST_SECRET} printable ASCII characters."
            )
    try:
        check_url(asked.url, private)
    except UsageError:
        http = "http:// or https://" if private else "https:// and a public host"
        raise InvalidParamsError(
            f"The url of a push notification needs {http}, without a password."
        ) from None
    kinds = [one for one in KINDS if caller.may_see(one)]
    return Push(asked.id, caller.name, asked.url, kinds, *secrets.values(), private=private)


async def set_config(call: Call[Any, Any], turn: AsyncTurn, push: Push) -> pb.TaskPushNotificationConfig:
    """Set up push notifications about a turn. The id defaults to the task's."""
    push.id = push.id or turn.id
    await set_push(_cell(call, turn), turn.id, turn.session_id, push)
    return _config(turn, push)


async def configs_of(call: Call[Any, Any], turn: AsyncTurn) -> list[pb.TaskPushNotificationConfig]:
    """Return this caller's push notification configs of a turn."""
    found = await pushes_of(_cell(call, turn), turn.id, turn.session_id, call.caller.name)
    return [_config(turn, one) for one in found]


async def get_config(call: Call[Any, Any], turn: AsyncTurn, name: str) -> pb.TaskPushNotificationConfig:
    """Return one of these configs. Raises ``TaskNotFoundError``."""
    for one in await configs_of(call, turn):
        if one.id == name:
            return one
    raise TaskNotFoundError(f"The task has no push notification {name[:100]!r} of this caller.")


async def delete_config(call: Call[Any, Any], turn: AsyncTurn, name: str) -> None:
    """Delete one of these configs."""
    await delete_push(_cell(call, turn), turn.id, call.caller.name, name)


def _cell(call: Call[Any, Any], turn: AsyncTurn) -> Cell:
    return call.client.connections.cell_of_turn(turn.id)


def _config(turn: AsyncTurn, push: Push) -> pb.TaskPushNotificationConfig:
    found = pb.TaskPushNotificationConfig(id=push.id, task_id=turn.id, url=push.url, token=push.token)
    if push.scheme:
        found.authentication.CopyFrom(pb.AuthenticationInfo(scheme=push.scheme, credentials=push.credentials))
    return found
