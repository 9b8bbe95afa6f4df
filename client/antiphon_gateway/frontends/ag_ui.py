"""AG-UI: a POST runs an agent in a thread, answers its interrupts, or resumes the run in progress."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct
from starlette.responses import Response

from antiphon.errors import AgentError, InvalidId, MissingPackage, NotFound, WrongTenant
from antiphon.events import Event, TurnSuspended
from antiphon.model import CallerTool
from antiphon.redis.turn import AsyncTurn
from antiphon_gateway.access.caller import user_named_by
from antiphon_gateway.frontends.answers import Answer, behind_suspension, give, still_open
from antiphon_gateway.http.operations import Call, operation
from antiphon_gateway.problems import Refused

if TYPE_CHECKING:
    from antiphon_gateway.frontends.ag_ui_events import RunEvents


class RunTool(Struct, rename="camel"):
    """A tool that the client runs."""

    name: str
    description: str = ""
    parameters: Any = None


class ResumeEntry(Struct, rename="camel"):
    """The answer to an interrupt: ``payload`` has ``approved``, and perhaps a ``reason`` or other ``arguments``."""

    interrupt_id: str
    status: str
    payload: Any = None


class RunInput(Struct, rename="camel", kw_only=True):
    """AG-UI's ``RunAgentInput``.

    ``threadId`` is the session. Only the last ``messages`` are read, as the session has the others: a message of the
    user, or the results of the client's ``tools``. ``state``, ``context`` and ``forwardedProps`` are kept as the turn's
    metadata ``ag_ui``, which tools can read; the model does not receive them. A text ``user`` in ``forwardedProps``
    names the user of the turn.
    """

    thread_id: str
    run_id: str
    messages: list[dict[str, Any]]
    tools: list[RunTool] | None = None
    resume: list[ResumeEntry] | None = None
    state: Any = None
    context: list[dict[str, Any]] | None = None
    forwarded_props: Any = None
    protocol_version: str | None = None
    parent_run_id: str | None = None


@operation("POST", "/ag-ui/{agent}", right="write", streams=True)
async def run_agent(call: Call[None, RunInput]) -> Response:
    """Run an agent of the workers in an AG-UI thread, and stream its events

    The session is the `threadId`. A new message of the user is a turn, and its id is the key: sent again, the same
    turn is streamed from its beginning. So a client that has lost the connection repeats its request, to any gateway.
    Interrupts are approvals, and `resume` answers them; messages of the role `tool` answer calls of the client's
    tools. Both continue the turn as a new run.
    """
    given = call.body
    call.caller.check_session(given.thread_id)
    answers = [*map(_resumed, given.resume or ()), *_results(given.messages)]
    if answers:
        turn = await _waiting_turn(call, answers)
        return _stream(call, turn, await give(turn, answers, call.caller.name))
    last = given.messages[-1] if given.messages else {}
    if last.get("role") != "user":
        return _stream(call, await _taken_up(call, last))
    tools = [CallerTool(one.name, one.description, one.parameters or {}) for one in given.tools or ()]
    named = last.get("id")
    turn = await call.client.submit(
        given.thread_id, _said(last), agent=call.path["agent"], tenant=call.caller.tenant,
        key=f"ag-ui:{named}" if named else None, caller_tools=tools or None, metadata=_metadata(given),
        user=call.caller.user_for(user_named_by(given.forwarded_props)),
    )  # fmt: skip
    return _stream(call, turn)


def _resumed(entry: ResumeEntry) -> Answer:
    payload: Any = entry.payload
    said: dict[str, Any] = payload if isinstance(payload, dict) else {"approved": payload is True}
    if entry.status == "resolved" and said.get("approved") is True:
        return Answer(entry.interrupt_id, "approve", said.get("arguments"))
    return Answer(entry.interrupt_id, "reject", said.get("reason"))


def _results(messages: list[dict[str, Any]]) -> list[Answer]:
    """Return the results at the end of the messages."""
    found: list[Answer] = []
    for message in reversed(messages):
        match message:
            case {"role": "tool", "toolCallId": str(call), "content": content}:
                error = message.get("error")
                found.append(
                    Answer(call, "result", _plain(content) if error is None else error, error is not None)
                )
            case _:
                break
    return found[::-1]


def _plain(content: Any) -> Any:
    """Return a result as the client has sent it, but the text of a list of parts."""
    if isinstance(content, list):
        parts = [
            cast("dict[str, Any]", part) for part in cast("list[Any]", content) if isinstance(part, dict)
        ]
        return "".join(str(part.get("text", "")) for part in parts)
    return content


def _said(message: dict[str, Any]) -> Any:
    content = message.get("content")
    if isinstance(content, str):
        return content
    return {"role": "user", "content": [_part(part) for part in content or ()]}


def _part(part: Any) -> dict[str, Any]:
    match part:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "image", "source": {"value": str(value)} as source}:
            return {"type": "image_url", "image_url": _url(source, value)}
        case {"type": "document", "source": {"type": "file", "value": str(value)}}:
            return {"type": "file", "file": {"file_id": value}}
        case {"type": "document", "source": {"type": "data", "value": str(value)} as source}:
            return {"type": "file", "file": {"file_data": _url(source, value)}}
        case {"type": "document", "source": {"value": str(value)}}:
            return {"type": "file", "file": {"file_url": value}}
        case _:
            raise Refused(400, "invalid_message", "A message may have the parts text, image and document.")


def _url(source: dict[str, Any], value: str) -> str:
    return f"data:{source.get('mimeType', '')};base64,{value}" if source.get("type") == "data" else value


def _metadata(given: RunInput) -> dict[str, Any]:
    kept = {"state": given.state, "context": given.context, "forwardedProps": given.forwarded_props}
    kept = {name: value for name, value in kept.items() if value not in (None, {}, [])}
    return {"ag_ui": kept} if kept else {}


async def _waiting_turn(call: Call[None, RunInput], answers: list[Answer]) -> AsyncTurn:
    """Return the turn of the thread that these answers are for. Raises ``Refused``."""
    named = {one.call_id for one in answers}
    turns = call.client.turns(call.body.thread_id, tenant=call.caller.tenant)
    looked_at = 0
    async for turn in turns:
        info = await turn.info()
        asked = {one.call_id for one in info.calls} | {one.call_id for one in info.decisions}
        if asked & named:
            await turns.aclose()
            return turn
        looked_at += 1
        if looked_at == MOST_TURNS:
            break
    await turns.aclose()
    raise Refused(409, "not_suspended", "No turn of this thread waits for these calls.")


MOST_TURNS = 20


async def _taken_up(call: Call[None, RunInput], last: dict[str, Any]) -> AsyncTurn:
    """Return the turn that wrote the last message, or else the first pending one of the thread. Raises ``Refused``."""
    thread, tenant = call.body.thread_id, call.caller.tenant
    named = str(last.get("id", "")).partition(".")[0]
    with suppress(NotFound, InvalidId, WrongTenant):
        turn = await call.client.turn(named, tenant=tenant)
        if turn.session_id == thread:
            return turn
    snapshot = await call.client.snapshot(thread, tenant=tenant, last=0)
    pending = [turn for turn in snapshot.pending if turn.due is None]
    if not pending:
        raise Refused(
            400, "invalid_body", "Nothing runs in this thread: end the messages with one of the user's."
        )
    return await call.client.turn(pending[0].turn_id, tenant=tenant)


def _stream(call: Call[None, RunInput], turn: AsyncTurn, behind: Collection[str] = ()) -> Response:
    try:
        from ag_ui.core import RunAgentInput

        from antiphon_gateway.frontends.ag_ui_events import RunEvents
    except ImportError:
        raise MissingPackage(
            "AG-UI needs the package ag-ui-protocol: pip install 'antiphon[ag-ui]'."
        ) from None
    given = call.body
    try:
        known = RunAgentInput(
            thread_id=given.thread_id, run_id=given.run_id, messages=cast("Any", given.messages)
        )
    except ValueError as exc:
        raise Refused(400, "invalid_body", f"Invalid AG-UI messages: {exc}.") from None
    run = RunEvents(given.thread_id, given.run_id, turn.id, known.messages, continues=bool(behind))
    events = turn.stream()
    return call.stream(events, _run_events(behind_suspension(events, behind), turn, run))


async def _run_events(events: AsyncIterator[Event], turn: AsyncTurn, run: RunEvents) -> AsyncGenerator[bytes]:
    from ag_ui.encoder import EventEncoder

    encode = EventEncoder().encode

    def written(found: Any) -> bytes:
        return "".join(map(encode, found)).encode()

    yield written(run.start())
    try:
        async for event in events:
            if found := run.of(event):
                yield written(found)
            if isinstance(event, TurnSuspended) and (waiting := await still_open(turn, event)):
                yield written(run.suspended(waiting))
                return
    except AgentError as exc:
        if not exc.retryable:
            yield written(run.failed(str(exc.code)))


OPERATIONS = [run_agent]
