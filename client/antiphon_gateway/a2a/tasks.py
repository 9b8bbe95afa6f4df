"""Turns as tasks, and their events as updates of tasks. Without HTTP or Redis.

A task has one artifact, ``answer``: the last text that counts. A step that begins again, or follows one with tool
calls, replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import msgspec
from a2a.types import a2a_pb2 as pb
from google.protobuf.struct_pb2 import Struct as ProtoStruct

from antiphon.events import ChildEvent, Event, decode_event
from antiphon.model import Message, OpenCall, Status, Wait
from antiphon.session.turn_info import TurnInfo
from antiphon.text import time_text
from antiphon_gateway.a2a.parts import Address, data_parts, filled, history_of, theirs

ANSWER = "answer"
METADATA = "a2a"
"""The key of a message's id, metadata and references in the metadata of its turn."""
STATES: dict[Status, pb.TaskState] = {
    "queued": pb.TASK_STATE_SUBMITTED, "waiting": pb.TASK_STATE_SUBMITTED, "running": pb.TASK_STATE_WORKING,
    "retrying": pb.TASK_STATE_WORKING, "suspended": pb.TASK_STATE_WORKING, "finished": pb.TASK_STATE_COMPLETED,
    "failed": pb.TASK_STATE_FAILED, "cancelled": pb.TASK_STATE_CANCELED,
}  # fmt: skip
ASKING = ("turn_suspended", "turn_sleeping", "child_event")
"""Events after which a task may ask for input."""


class Open:
    """What a task waits for: decisions about ``calls``, and answers to the questions of ``waits``."""

    def __init__(self, calls: Sequence[OpenCall], waits: Iterable[Wait] = ()) -> None:
        self.calls = calls
        self.waits = [one for one in waits if one.about and one.event]

    def __bool__(self) -> bool:
        return bool(self.calls or self.waits)

    @property
    def names(self) -> frozenset[str]:
        """The ids of these calls and waits."""
        return frozenset({*(one.call_id for one in self.calls), *(one.id for one in self.waits)})

    def among(self, names: frozenset[str]) -> Open:
        """Return the calls and waits with one of these ids."""
        return Open(
            [one for one in self.calls if one.call_id in names],
            [one for one in self.waits if one.id in names],
        )

    def message(self, turn: str, session: str) -> pb.Message:
        """Return the message that asks the client."""
        questions = [
            (wait, one) for wait in self.waits for one in (wait.about or {}).get("questions", {}).values()
        ]
        lines = [*map(_asked, self.calls), *(str(one.get("message", "")) for _, one in questions)]
        data: dict[str, Any] = {}
        if self.calls:
            data["calls"] = [_shown(call) for call in self.calls]
        if self.waits:
            data["questions"] = {wait.id: (wait.about or {}).get("questions") for wait in self.waits}
        first = self.calls[0].call_id if self.calls else self.waits[0].id
        return pb.Message(
            message_id=f"{turn}.{first}", role=pb.ROLE_AGENT, task_id=turn, context_id=session,
            parts=[pb.Part(text="\n".join(lines)), *data_parts(data)],
        )  # fmt: skip


def _asked(call: OpenCall) -> str:
    arguments = msgspec.json.encode(call.arguments).decode()
    if call.kind == "approval":
        return f"May {call.name} run with {arguments}? Reply approve, or anything else to reject it."
    return f"What is the result of {call.name} with {arguments}?"


def _shown(call: OpenCall) -> dict[str, Any]:
    return {
        "callId": call.call_id, "name": call.name, "kind": call.kind, "arguments": call.arguments,
        **({} if call.until is None else {"until": time_text(call.until)}),
    }  # fmt: skip


def open_of(info: TurnInfo) -> Open:
    """Return what a turn waits for now."""
    return Open(info.calls, info.waits)


def state_of(info: TurnInfo) -> pb.TaskState:
    """Return the state of a turn as that of a task."""
    return pb.TASK_STATE_INPUT_REQUIRED if open_of(info) else STATES[info.status]


def as_submitted(info: TurnInfo) -> TurnInfo:
    """Return a turn as it was before its first event."""
    return TurnInfo(
        info.turn_id, info.session_id, "queued", info.input, info.agent, info.metadata, created=info.created
    )


def changed_at(info: TurnInfo) -> int:
    """Return about when the state of a turn last changed, in ms since 1970."""
    decided = max((one.at for one in info.decisions), default=0)
    return info.ended or max(info.started or 0, info.created, decided)


def task_of(
    info: TurnInfo,
    address: Address,
    *,
    history: int | None = None,
    text: str | None = None,
    artifacts: bool = True,
) -> pb.Task:
    """Return a turn as a task, with its last ``history`` messages. ``text`` is the answer as far as it is known."""
    turn, session = info.turn_id, info.session_id
    task = pb.Task(id=turn, context_id=session, status=_status(info))
    if artifacts and info.status == "finished" and (parts := answer_parts(info.messages, address)):
        task.artifacts.append(pb.Artifact(artifact_id=ANSWER, name=ANSWER, parts=parts))
    if history != 0:
        first = message_id(info) or f"{turn}.0"
        said = history_of([*info.input, *info.messages], turn, session, first, address)
        task.history.extend(said if history is None else said[-history:])
    if found := filled(_brought(info).get("metadata"), ProtoStruct()):
        task.metadata.CopyFrom(found)
    return task


def message_id(info: TurnInfo) -> str | None:
    """Return the id of the message that began a turn, if that was one of the protocol."""
    found = _brought(info).get("messageId")
    return found if isinstance(found, str) else None


def _brought(info: TurnInfo) -> dict[str, Any]:
    """Return what the message of a turn brought along. Other turns may have anything under this key."""
    found = info.metadata.get(METADATA)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _status(info: TurnInfo) -> pb.TaskStatus:
    status = pb.TaskStatus(state=state_of(info))
    status.timestamp.FromMilliseconds(changed_at(info))
    if waits := open_of(info):
        status.message.CopyFrom(waits.message(info.turn_id, info.session_id))
    elif info.user_error:
        status.message.CopyFrom(_sentence(info.turn_id, info.session_id, "error", info.user_error, info.code))
    return status


def _sentence(turn: str, session: str, name: str, text: str, code: str | None = None) -> pb.Message:
    found = pb.Message(
        message_id=f"{turn}.{name}",
        role=pb.ROLE_AGENT,
        task_id=turn,
        context_id=session,
        parts=[pb.Part(text=text)],
    )
    if code:
        found.metadata.update({"code": code})
    return found


def answer_parts(messages: Sequence[Message], address: Address) -> list[pb.Part]:
    """Return the parts of the last answer among these messages."""
    said = (one for one in reversed(messages) if one.role == "assistant")
    return next((parts for one in said if (parts := theirs(one.parts, address))), list[pb.Part]())


class Updates:
    """Converts the events of a turn to updates of its task, for a reader to whom these types of events are ``shown``.

    Pure: every such reader gets the same ones.
    """

    def __init__(
        self, turn: str, session: str, address: Address, shown: Callable[[str], bool] = lambda kind: True
    ) -> None:
        self._turn, self._session, self._address, self._shown = turn, session, address, shown
        self.status = pb.TaskStatus(state=pb.TASK_STATE_SUBMITTED)
        self._pieces: list[str] = []  # of the answer, as far as it was sent
        self._fresh = True  # whether the next piece replaces them
        self._answer: list[pb.Part] = []  # that was sent as a whole

    def of(self, event: Event) -> list[pb.StreamResponse]:
        """Return the updates of an event."""
        found = self._made_by(event)
        return found if self._shown(event.type) else []

    def _made_by(self, event: Event) -> list[pb.StreamResponse]:
        match event.type:
            case "text_delta" | "refusal_delta":
                return [self._grown(event.text)] if event.text and self._shown(event.type) else []
            case "step_finished" | "turn_retrying":
                self._fresh = True
                return []
            case "turn_started" | "turn_resumed":
                return self._working(event)
            case "tool_progress" if event.text:
                message = _sentence(self._turn, self._session, str(event.seq), event.text)
                return [self._changed(event, pb.TASK_STATE_WORKING, message)]
            case "turn_suspended" | "turn_sleeping":
                return self._asked(event, Open(getattr(event, "calls", ()), event.waits))
            case "child_event":
                return self._below(event)
            case "turn_finished":
                return [*self._whole(event), self._changed(event, pb.TASK_STATE_COMPLETED)]
            case "turn_failed":
                message = _sentence(self._turn, self._session, "error", event.user_message, event.code)
                return [self._changed(event, pb.TASK_STATE_FAILED, message)]
            case "turn_cancelled":
                return [self._changed(event, pb.TASK_STATE_CANCELED)]
            case _:
                return []

    def task(self, info: TurnInfo) -> pb.Task:
        """Return the task after these updates."""
        found = task_of(as_submitted(info), self._address)
        found.status.CopyFrom(self.status)
        if parts := self._answer or ([pb.Part(text="".join(self._pieces))] if self._pieces else []):
            found.artifacts.append(pb.Artifact(artifact_id=ANSWER, name=ANSWER, parts=parts))
        return found

    def asks(self, event: Event) -> bool:
        """Return whether the task asks for input after the updates of this event."""
        return self.status.state == pb.TASK_STATE_INPUT_REQUIRED and event.type in ASKING

    def _working(self, event: Event) -> list[pb.StreamResponse]:
        return (
            []
            if self.status.state == pb.TASK_STATE_WORKING
            else [self._changed(event, pb.TASK_STATE_WORKING)]
        )

    def _asked(self, event: Event, waits: Open) -> list[pb.StreamResponse]:
        if not waits:
            return []
        return [self._changed(event, pb.TASK_STATE_INPUT_REQUIRED, waits.message(self._turn, self._session))]

    def _below(self, event: ChildEvent) -> list[pb.StreamResponse]:
        """Return the updates for an event of a child turn: its pending calls are answered through this task."""
        inner = decode_event(msgspec.json.encode(event.event))
        if inner.type == "turn_suspended":
            calls = [
                msgspec.structs.replace(one, call_id=f"{event.child_id}:{one.call_id}") for one in inner.calls
            ]
            return self._asked(event, Open(calls))
        return self._working(event) if inner.type == "turn_resumed" else []

    def _grown(self, text: str) -> pb.StreamResponse:
        append, self._fresh = not self._fresh, False
        if not append:
            self._pieces.clear()
        self._pieces.append(text)
        return self._artifact([pb.Part(text=text)], append=append)

    def _whole(self, event: Any) -> list[pb.StreamResponse]:
        """Return the whole answer, unless it was sent in pieces."""
        parts = answer_parts(event.response.messages if event.response else (), self._address)
        if not parts or [part.text for part in parts] == ["".join(self._pieces)]:
            return []
        self._answer = parts
        return [self._artifact(parts, append=False, last=True)]

    def _artifact(self, parts: Iterable[pb.Part], *, append: bool, last: bool = False) -> pb.StreamResponse:
        update = pb.TaskArtifactUpdateEvent(
            task_id=self._turn, context_id=self._session, append=append, last_chunk=last,
            artifact=pb.Artifact(artifact_id=ANSWER, name=ANSWER, parts=parts),
        )  # fmt: skip
        return pb.StreamResponse(artifact_update=update)

    def _changed(
        self, event: Event, state: pb.TaskState, message: pb.Message | None = None
    ) -> pb.StreamResponse:
        self.status = pb.TaskStatus(state=state, message=message)
        self.status.timestamp.FromMilliseconds(event.at)
        update = pb.TaskStatusUpdateEvent(task_id=self._turn, context_id=self._session, status=self.status)
        return pb.StreamResponse(status_update=update)
