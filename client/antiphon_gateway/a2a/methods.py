"""The methods of the protocol, on the turns of one published agent. Any gateway serves any request about any task."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, nullcontext, suppress
from typing import Any, NamedTuple

import msgspec
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import (
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.empty_pb2 import Empty

from antiphon.errors import (
    AlreadyDecided,
    InvalidId,
    KeyReused,
    NotFound,
    NotSuspended,
    StreamGap,
    TurnNotFound,
    WrongTenant,
)
from antiphon.input.ids import session_id, turn_id_of_key
from antiphon.model import TERMINAL, Message
from antiphon.redis.trees import decide_in_tree
from antiphon.redis.turn import AsyncTurn
from antiphon.session.turn_info import TurnInfo
from antiphon.text import number
from antiphon.wire.answered import Answered, answered_by, keep_answered
from antiphon.wire.keys import PREFIX
from antiphon.wire.pushes import Push
from antiphon_gateway.a2a.answers import Given, read_answers
from antiphon_gateway.a2a.listing import history_length, list_tasks
from antiphon_gateway.a2a.parts import Address, check_parts, ours, plain
from antiphon_gateway.a2a.pushes import configs_of, delete_config, get_config, push_of, set_config
from antiphon_gateway.a2a.tasks import METADATA, Open, Updates, as_submitted, open_of, task_of
from antiphon_gateway.access.caller import user_named_by
from antiphon_gateway.http.operations import Call, idempotency_key
from antiphon_gateway.published import A2AAgent

BLOCK_SECONDS = 300.0
"""How long a message waits for its task; after that, the task is returned as it is."""
CANCEL_SECONDS = 10.0
LONGEST_ID = 500
"""Of a message, in characters."""


class Update(msgspec.Struct):
    """An update for the reader of a task. ``seq`` is that of its event, if this is the last update of that event."""

    value: pb.StreamResponse
    seq: int | None = None


class Sent(NamedTuple):
    """The turn of a message. Its updates follow the cursor ``after``, at which it was as in ``before``.

    ``asks`` is whether the turn still waits for something that the message did not answer.
    """

    turn: AsyncTurn
    after: int
    before: TurnInfo
    asks: bool = False


class Methods:
    """The methods, for one request to one agent."""

    def __init__(self, call: Call[Any, Any], agent: A2AAgent, url: str) -> None:
        self._call, self._agent, self._url = call, agent, url

    async def send(self, asked: pb.SendMessageRequest) -> pb.SendMessageResponse:
        """Begin a task or continue one, and return it when it has ended or asks for input."""
        blocks = not asked.configuration.return_immediately
        with self._call.held() if blocks else nullcontext():  # refused before anything is written
            sent = await self._sent(asked)
            if blocks and not sent.asks:
                await self._until_it_stops(sent)
        return pb.SendMessageResponse(task=await self._task(sent.turn, history_length(asked.configuration)))

    async def stream(self, asked: pb.SendMessageRequest) -> AsyncGenerator[Update]:
        """Begin a task or continue one, and follow it until it has ended or asks for input."""
        sent = await self._sent(asked)
        first = task_of(sent.before, self.address(sent.before), history=history_length(asked.configuration))
        if sent.before.status in TERMINAL or sent.asks:
            return _only(first)
        return self._followed(sent.turn, first, sent.after, stops=True)

    async def get(self, asked: pb.GetTaskRequest) -> pb.Task:
        """Return a task as it is now."""
        self._call.caller.check_right("read")
        return await self._task(await self._turn(asked.id), history_length(asked))

    async def list(self, asked: pb.ListTasksRequest) -> pb.ListTasksResponse:
        """Return tasks of the agent, the latest change first."""
        self._call.caller.check_right("read")
        return await list_tasks(self._call, self._agent, asked, self.address)

    async def cancel(self, asked: pb.CancelTaskRequest) -> pb.Task:
        """Cancel a task, and return it once it has ended."""
        self._call.caller.check_right("write")
        turn = await self._turn(asked.id)
        status = await turn.status()
        if status not in TERMINAL:
            status = await turn.cancel("cancelled by the client")
            status = "" if status == "cancelled" else status
        if status in TERMINAL:
            raise TaskNotCancelableError(f"The task is {status} already.")
        if status == "requested":
            with suppress(TimeoutError):
                await self._call.services.stopping.within(CANCEL_SECONDS, turn.ended())
        return await self._task(turn, None)

    async def subscribe(
        self, asked: pb.SubscribeToTaskRequest, after: int | None = None
    ) -> AsyncGenerator[Update]:
        """Follow a task to its end, after the update with the ``seq`` that a reader has seen last."""
        self._call.caller.check_right("read")
        turn = await self._turn(asked.id)
        info = await turn.info()
        if info.status in TERMINAL and after is None:
            raise UnsupportedOperationError(f"The task is {info.status}: read it with GetTask.")
        newest = await self._newest(turn)
        cursor = newest if after is None else min(after, newest)
        updates = await self._folded(turn, info, cursor)
        first = task_of(info, self.address(info)) if updates is None else updates.task(info)
        return self._followed(turn, first, cursor, stops=False, updates=updates)

    async def create_push(self, asked: pb.TaskPushNotificationConfig) -> pb.TaskPushNotificationConfig:
        """Set up push notifications about a task."""
        self._call.caller.check_right("write")
        push = self._push(asked)
        return await set_config(self._call, await self._turn(asked.task_id), push)

    async def get_push(self, asked: pb.GetTaskPushNotificationConfigRequest) -> pb.TaskPushNotificationConfig:
        """Return one of the caller's push notification configs of a task."""
        self._call.caller.check_right("read")
        return await get_config(self._call, await self._turn(asked.task_id), asked.id)

    async def list_push(
        self, asked: pb.ListTaskPushNotificationConfigsRequest
    ) -> pb.ListTaskPushNotificationConfigsResponse:
        """Return all of the caller's push notification configs of a task. They fit on one page."""
        self._call.caller.check_right("read")
        turn = await self._turn(asked.task_id)
        return pb.ListTaskPushNotificationConfigsResponse(configs=await configs_of(self._call, turn))

    async def delete_push(self, asked: pb.DeleteTaskPushNotificationConfigRequest) -> Empty:
        """Delete a push notification config of a task."""
        self._call.caller.check_right("write")
        await delete_config(self._call, await self._turn(asked.task_id), asked.id)
        return Empty()

    def _push(self, asked: pb.TaskPushNotificationConfig) -> Push:
        return push_of(asked, self._call.caller, private=self._agent.private_push)

    def check_supported(self, method: str) -> None:
        """Refuse the extended card, whatever the request contains."""
        if method == "GetExtendedAgentCard":
            raise UnsupportedOperationError("The agent has no extended card.")

    def address(self, info: TurnInfo) -> Address:
        """Return the function that returns the URL of a stored file of the turn's session."""

        def url(name: str) -> str:
            return self._url + self._call.address("sessions", info.session_id, "files", name)

        return url

    # A message.

    async def _sent(self, asked: pb.SendMessageRequest) -> Sent:
        """Return the turn of a message: a new one, one that continues, or that of the same message sent before."""
        self._call.caller.check_right("write")
        message = asked.message
        if message.role != pb.ROLE_USER:
            raise InvalidParamsError("A message to an agent has the role ROLE_USER.")
        if len(message.message_id) > LONGEST_ID:
            raise InvalidParamsError(f"A messageId has at most {LONGEST_ID} characters.")
        check_parts(message.parts, self._agent, answers=bool(message.task_id))
        history_length(asked.configuration)
        config = asked.configuration.task_push_notification_config
        pushes = asked.configuration.HasField("task_push_notification_config")
        push = self._push(config) if pushes else None  # refused before anything is written
        found = await (self._continued(message) if message.task_id else self._begun(asked))
        if push is not None:
            await set_config(self._call, found.turn, push)
        return found

    async def _begun(self, asked: pb.SendMessageRequest) -> Sent:
        """Submit a new turn, or find the one that the message has begun."""
        message, call = asked.message, self._call
        said = [Message.user(ours(message.parts))]
        brought = {
            "messageId": message.message_id,
            "metadata": plain(message.metadata) | plain(asked.metadata),
        }
        if message.reference_task_ids:
            brought["referenceTaskIds"] = [*message.reference_task_ids]
        options: dict[str, Any] = {
            "agent": self._agent.name, "tenant": call.caller.tenant, "key": f"a2a:{message.message_id}",
            "metadata": {METADATA: {name: value for name, value in brought.items() if value}},
            "user": call.caller.user_for(user_named_by(brought["metadata"])),
        }  # fmt: skip
        if message.context_id:
            call.caller.check_session(message.context_id)
            turn = await call.client.submit(message.context_id, said, **options)
        else:
            turn = await self._in_new_context(message.message_id, said, options)
        info = await turn.info()
        return Sent(turn, 0, as_submitted(info))

    async def _in_new_context(self, message: str, said: list[Message], options: dict[str, Any]) -> AsyncTurn:
        """Submit the first turn of a session. Until that turn ends, a repeated message joins it.

        Without a context, the same id may mean another conversation; with the header ``Idempotency-Key`` it does not.
        """
        call, route, named = self._call, f"a2a/{self._agent.name}", idempotency_key(self._call)
        if named is not None:
            return await call.client.submit(call.new_session(named, f"{route}/key"), said, **options)
        session, key = call.new_session(message, route), options["key"]
        with suppress(KeyReused):
            prefix = call.client.connections.cell_of_session(session_id(session)).keys.deployment
            known = turn_id_of_key(session, key, "" if prefix == PREFIX else prefix)
            if not await _has_ended(AsyncTurn(call.client.connections, known, session_id(session))):
                return await call.client.submit(session, said, **options)
        return await call.client.submit(call.new_session(None), said, **options)

    async def _continued(self, message: pb.Message) -> Sent:
        """Give the answers of a message to the turn that waits for them, once."""
        turn = await self._turn(message.task_id)
        if message.context_id not in ("", turn.session_id):
            raise InvalidParamsError("The task belongs to another context: leave contextId out.")
        cell, said = self._call.client.connections.cell_of_turn(turn.id), message.message_id
        newest, before = await self._newest(turn), await answered_by(cell, turn.id, said)
        info = await turn.info()
        waits = open_of(info)
        if before is None:
            _check_waits(info, waits)
        elif before.done:
            waits = Open([])
        else:
            waits = waits.among(before.names)
        given = Given([], {})
        if waits:
            known: frozenset[str] = before.names if before else frozenset()
            given = read_answers(waits, message.parts, self._call.caller.name, known)
        answers = _names(waits, given)
        first = before or await keep_answered(cell, turn.id, said, Answered(answers))
        if not first.done and answers <= first.names:
            await self._answer(turn, info, said, given)
            await keep_answered(cell, turn.id, said, Answered(first.names, done=True))
        return Sent(turn, newest, info, asks=not open_of(info).names <= first.names)

    async def _answer(self, turn: AsyncTurn, info: TurnInfo, message: str, given: Given) -> None:
        """Give a turn these answers. A repeated answer, or one after another caller's, changes nothing."""
        for one in given.decisions:
            decision = msgspec.structs.replace(one, on_behalf_of=f"message {message}")
            with suppress(AlreadyDecided, NotSuspended):
                await decide_in_tree(self._call.client.connections.cells, turn.id, decision)
        for event, data in given.events.items():
            await self._call.client.send_event(event, data, key=message, tenant=info.tenant)

    # A task.

    async def _turn(self, task: str) -> AsyncTurn:
        """Return the turn of a task of this agent. Raises ``TaskNotFoundError`` if the caller may not see it."""
        try:
            turn = await self._call.turn(task)
            if (await turn.info()).agent == self._agent.name:
                return turn
        except (NotFound, InvalidId, WrongTenant):
            pass
        raise TaskNotFoundError(f"Unknown task {task[:100]!r}.")

    async def _newest(self, turn: AsyncTurn) -> int:
        """Return the number of the newest event of a turn's session."""
        cell = self._call.client.connections.cell_of_turn(turn.id)
        (found,) = await cell.session_fields(turn.session_id, "seq")
        return number(found)

    async def _task(self, turn: AsyncTurn, history: int | None) -> pb.Task:
        info = await turn.info()
        return task_of(info, self.address(info), history=history)

    async def _until_it_stops(self, sent: Sent) -> None:
        """Wait until a turn has ended or asks for input, but not forever. Raises ``Draining``."""
        with suppress(TimeoutError):
            await self._call.services.stopping.within(BLOCK_SECONDS, _stopped(sent))

    async def _folded(self, turn: AsyncTurn, info: TurnInfo, cursor: int) -> Updates | None:
        """Return the updates of a turn up to a cursor, or None if its events are no longer kept."""
        updates = self._updates(turn, info)
        events = turn.stream()
        events.until = cursor
        try:
            async with aclosing(events):
                async for event in events:
                    if event.seq <= cursor:
                        updates.of(event)
        except StreamGap:
            return None
        return updates

    def _updates(self, turn: AsyncTurn, info: TurnInfo) -> Updates:
        return Updates(turn.id, turn.session_id, self.address(info), self._call.caller.may_see)

    async def _followed(
        self, turn: AsyncTurn, first: pb.Task, after: int, *, stops: bool, updates: Updates | None = None
    ) -> AsyncGenerator[Update]:
        """Yield a task and its updates after a cursor. With ``stops``, they end when the task asks for input."""
        yield Update(pb.StreamResponse(task=first))
        updates = updates or self._updates(turn, await turn.info())
        async with aclosing(turn.stream(after or None)) as events:
            async for event in events:
                found = updates.of(event)
                for one in found[:-1]:
                    yield Update(one)
                if found:
                    yield Update(found[-1], event.seq)
                if stops and updates.asks(event) and open_of(await turn.info()):
                    return


def _check_waits(info: TurnInfo, waits: Open) -> None:
    """Raise ``UnsupportedOperationError`` unless a turn waits for input."""
    if info.status in TERMINAL:
        raise UnsupportedOperationError(
            f"The task is {info.status}: send the message with its contextId alone."
        )
    if not waits:
        raise UnsupportedOperationError(
            "The task does not wait for input: send the message with its contextId alone, and a new task follows."
        )


def _names(waits: Open, given: Given) -> frozenset[str]:
    """Return the ids of the calls and waits that these answers are for."""
    return frozenset(
        {
            *(one.call_id for one in given.decisions),
            *(one.id for one in waits.waits if one.event in given.events),
        }
    )


async def _only(task: pb.Task) -> AsyncGenerator[Update]:
    yield Update(pb.StreamResponse(task=task))


async def _stopped(sent: Sent) -> None:
    """Return when a turn has ended or asks for input.

    Events decide, because a turn's record contains the answer to a child turn's call only a moment later.
    """
    turn = sent.turn
    updates = Updates(turn.id, turn.session_id, lambda name: name)
    async with aclosing(turn.stream(sent.after or None)) as events:
        async for event in events:
            updates.of(event)
            if updates.asks(event) and open_of(await turn.info()):
                return


async def _has_ended(turn: AsyncTurn) -> bool:
    try:
        return await turn.status() in TERMINAL
    except TurnNotFound:
        return False
