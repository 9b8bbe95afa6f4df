"""The stored request of a turn: its input, its agent, its options and its version."""

from __future__ import annotations

import hashlib
import sys
from contextlib import suppress
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, cast, runtime_checkable

import msgspec
from msgspec import Struct, field

from antiphon.errors import CorruptRecord, InvalidMessage, UsageError
from antiphon.input.ids import check_queue
from antiphon.input.limits import check_depth, check_plain, check_size
from antiphon.input.parameters import check_secrets
from antiphon.input.values import ModelServiceWord, WhileSuspended, is_a
from antiphon.model import AtLimit, CallerTool, FallbackModel, Item, Message, Retry, Timeouts, ToolCall
from antiphon.model.budget import Budget
from antiphon.model.usage import Limits
from antiphon.window import Window, window_of

KNOWN = {"request": 5, "agent": 5, "journal entry": 3}
"""The newest versions that this release can run. A record without a version has version 1."""


class NewerRecord(CorruptRecord):
    """A newer release has written this record. It is whole, but this release does not know how to run it."""


def refuse_newer(kind: str, data: bytes) -> None:
    """Raise ``NewerRecord`` if a record in JSON, or the agent within it, has a newer version.

    A version is a number, or its digits as text. Raises ``CorruptRecord`` if it is something else; other damage is left
    to the reader of the record.
    """
    if b'"version"' not in data:
        return
    try:
        record = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return
    _check(kind, record)
    if isinstance(agent := record.get("agent"), dict):
        _check("agent", cast("dict[str, Any]", agent))


def _check(kind: str, record: dict[str, Any]) -> None:
    if "version" not in record:
        return
    version = str(record["version"])
    if not version.isdecimal() or len(version) > 9:
        raise CorruptRecord(f"The {kind} of this turn has an invalid version: {version[:40]!r}.")
    if int(version) > KNOWN[kind]:
        raise NewerRecord(
            f"The {kind} of this turn has version {version}, but this worker supports versions up to {KNOWN[kind]}: "
            "a worker of a newer release must run the turn."
        )


REVISES = "2"
"""The version of a request that revises the history. It is text, so that older workers, which read only numbers here
and would append the turn, refuse it."""


CALLER_TOOLS = "3"
"""The version of a request with client-side tools, as text for the same reason."""


OWN_RULES = "4"
"""The version of a request with ``instructions`` or ``max_tool_calls``: older workers would run it without them."""


WITH_FILES = ',"version":"5"}'
"""The end of a request in a session with stored files. Scripts add it even to requests that name none, because older
workers would read the history without the files."""


IN_BATCHES = "5"
"""The version of a request that is answered in batches: older workers would run it at once, at the full price."""


AGENT_COUNTS = "2"
"""The version of a request whose agent has a version, as text for the same reason: a worker of release 0.1.0 ignores
versions of agents, and would run a tool without the approval that the agent requires."""


WAITS = 2
"""The version of an agent whose turns may wait for people or for the caller."""


LIMITED = 3
"""The version of an agent with limits: older workers would ignore them."""


WITH_FALLBACK = 4
"""The version of an agent with fallbacks or time-outs: older workers would fail its turns, or wait for longer."""


WITH_HANDOFFS = 5
"""The version of an agent with hand-offs: older workers would not let it pass a turn on."""


LAST_ANSWER = ""
"""The value of ``revises`` for a turn that answers the last question again. No message has this id."""


PassedOn: TypeAlias = Literal["all", "turn", "input"]
AfterHandoff: TypeAlias = Literal["return", "stay"]


class HandoffSpec(Struct, omit_defaults=True):
    """An agent to which another one may pass a turn: its name, and the options of its ``antiphon.handoffs.Handoff``.

    ``agent`` is the agent itself if it was sent with the turn; otherwise the worker's App has it.
    """

    name: str
    description: str = ""
    history: PassedOn = "all"
    after: AfterHandoff = "return"
    agent: AgentSpec | None = None


class AgentSpec(Struct, omit_defaults=True):
    """An agent as plain data, without code and keys. ``tools`` are names of tools in the worker's App.

    ``queue`` is used for turns if neither the turn nor its session names a queue. ``fallback`` are the models that
    answer if ``model`` fails. An agent with these, or with ``timeouts``, has at least the ``version``
    ``WITH_FALLBACK``. ``approval`` names the tools whose calls wait for an approval (True: all of them), for
    ``approval_timeout`` seconds. An agent with these, or with ``caller_tools``, has at least the ``version`` ``WAITS``;
    one with ``limits`` has at least ``LIMITED``, and one with ``handoffs`` has ``WITH_HANDOFFS``.
    """

    provider: str
    model: str
    name: str | None = None
    system: str | None = None
    tools: list[str] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=dict)
    max_steps: int | None = None
    window: int | Window | None = None
    queue: str | None = None
    retry: Retry | None = None
    timeouts: Timeouts | None = None
    fallback: list[FallbackModel] = field(default_factory=list)
    limits: Limits | None = None
    approval: bool | list[str] = False
    approval_timeout: float | None = None
    approval_at_limit: AtLimit = "reject"
    caller_tools: list[CallerTool] = field(default_factory=list)
    version: int | str = 1
    handoffs: list[HandoffSpec] = field(default_factory=list)

    def spec(self) -> AgentSpec:
        """Return this agent itself, as ``Agent.spec`` returns the plain data of an ``Agent``."""
        return self


class OutputSpec(Struct, omit_defaults=True):
    """The JSON schema of the requested structured output.

    The model service receives ``schema``, without what strict schemas cannot express. The answer is checked against
    ``whole``, or against ``schema`` if that is None. If ``wrapped``, the value is the field ``value`` of an object.
    """

    name: str
    schema: dict[str, Any]
    strict: bool = True
    whole: dict[str, Any] | None = None
    wrapped: bool = False


class PayingTurn(Struct, omit_defaults=True):
    """A turn above a child, whose budgets also pay for the child. ``budgets`` are the budgets that its App declares."""

    session_id: str
    turn_id: str
    agent: str = ""
    budgets: list[Budget] = field(default_factory=list)


class ParentTurn(Struct, omit_defaults=True):
    """The turn that waits for a child, in one of its runs. ``depth`` is the child's: 1 if its parent has no parent.

    ``paying`` are this turn and those above it. ``call_id`` is the waiting tool call, requested by its model call
    ``step``; ``deltas`` is whether its stream has the child's deltas. ``seconds`` is how long the child may take after
    it was submitted.
    """

    session_id: str
    turn_id: str
    run: int = 1
    depth: int = 1
    paying: list[PayingTurn] = field(default_factory=list)
    step: int = 0
    call_id: str = ""
    deltas: bool = False
    seconds: float | None = None


class TurnRequest(Struct, omit_defaults=True):
    """The input of a turn and the options for running it.

    ``agent`` is the agent, or the name of an agent in the worker's App. ``messages`` are added to the history before
    the answer, usually one user message. ``timeout`` is in seconds from the start of a run. ``revises`` is set if the
    turn replaces part of the history: the id of the first message that it replaces, or ``LAST_ANSWER``. Such a request
    has the ``version`` ``REVISES``. ``caller_tools`` are client-side tools in addition to the agent's; such a request
    has the ``version`` ``CALLER_TOOLS``. ``while_suspended`` is whether the session's next turns may overtake this one
    while it is suspended. ``instructions`` replace the system prompt, and ``max_tool_calls`` is how many calls of the
    workers' tools the turn may make; a request with one of them has the ``version`` ``OWN_RULES``. ``trace`` is the W3C
    ``traceparent`` of the span in which it was submitted, if its process uses OpenTelemetry. ``user`` is the turn's
    user, and ``parent`` the parent of a child turn. ``service`` is how the model service answers: at once, or in
    batches; a request with batches has the ``version`` ``IN_BATCHES``.
    """

    messages: list[Message]
    agent: str | AgentSpec | None = None
    params: dict[str, Any] = field(default_factory=dict)
    output: OutputSpec | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    timeout: float | None = None
    revises: str | None = None
    caller_tools: list[CallerTool] = field(default_factory=list)
    while_suspended: WhileSuspended = "wait"
    instructions: str | None = None
    max_tool_calls: int | None = None
    version: int | str = 1
    trace: str = ""
    user: str | None = None
    parent: ParentTurn | None = None
    service: ModelServiceWord = "standard"

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)


_decoder = msgspec.json.Decoder(TurnRequest)


def decode_request(data: bytes) -> TurnRequest:
    """Read a stored request. Raises ``CorruptRecord``, and ``NewerRecord`` if only a newer release can run it."""
    refuse_newer("request", data)
    return _decoded(data)


def shown_request(data: bytes) -> TurnRequest:
    """Read a stored request to show it; if a newer release wrote it, as far as possible. Raises ``CorruptRecord``."""
    try:
        return decode_request(data)
    except NewerRecord:
        with suppress(CorruptRecord):
            return _decoded(data)
        return TurnRequest([])


def _decoded(data: bytes) -> TurnRequest:
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        raise CorruptRecord(f"Cannot decode the stored request of a turn: {exc}.") from exc


@runtime_checkable
class Travelling(Protocol):
    """An agent that can be sent with a turn."""

    def spec(self) -> AgentSpec: ...


MOST_INPUT_BYTES = 4096


class EncodedTurn(NamedTuple):
    """A turn as it is submitted: its request, the digest that a key compares, its agent and the agent's queue.

    ``input_bytes`` is the length of the input, which begins the request, or 0 if it is too long for an event.
    ``named`` is an inline agent reduced to its name.
    """

    request: bytes
    digest: str
    agent: bytes
    agent_queue: str
    input_bytes: int
    named: bytes


def encoded_turn(request: TurnRequest) -> EncodedTurn:
    """Return the stored form of a turn, whose messages ``to_input`` has checked.

    Raises ``InvalidMessage`` if it cannot be encoded, ``LimitReached`` if it is too large, and ``UsageError`` if it
    contains a secret.
    """
    agent = request.agent
    if request.version == 1 and isinstance(agent, AgentSpec) and agent.version != 1:
        request.version = AGENT_COUNTS
    try:
        rest = msgspec.structs.replace(request, messages=[]).to_json()
        msgspec.json.decode(rest, type=TurnRequest)
        messages = msgspec.json.encode(request.messages)
    except (msgspec.MsgspecError, TypeError, UnicodeEncodeError, RecursionError) as exc:
        raise InvalidMessage(f"The turn cannot be encoded: {exc}.") from exc
    payload = rest.replace(b"[]", messages, 1)
    check_request(request, len(payload))
    check_secrets(request.params)
    if isinstance(agent, AgentSpec):
        check_secrets(agent.params)
        for model in agent.fallback:
            check_secrets(model.params)
    stored = b"" if agent is None else msgspec.json.encode(agent)
    shown = len(messages) if len(messages) <= MOST_INPUT_BYTES else 0
    named = (
        msgspec.json.encode({"name": agent.name} if agent.name else {})
        if isinstance(agent, AgentSpec)
        else b""
    )
    return EncodedTurn(payload, hashlib.sha256(payload).hexdigest(), stored, queue_of(agent), shown, named)


def input_bytes(messages: list[Message]) -> int:
    """Return the length of an input in its request, or 0 if it is too long for an event."""
    size = len(msgspec.json.encode(messages))
    return size if size <= MOST_INPUT_BYTES else 0


def encode_request(request: TurnRequest) -> bytes:
    """Return the stored form of a request. Raises the errors of ``encoded_turn``."""
    return encoded_turn(request).request


def with_trace(request: bytes) -> bytes:
    """Add the W3C ``traceparent`` of the current span to an encoded request, if there is one.

    The digest that a key compares excludes it: a repetition from another span is the same turn. If the process has not
    imported OpenTelemetry, the request is returned unchanged.
    """
    propagate = sys.modules.get("opentelemetry.propagate")
    if propagate is None:
        return request
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    trace = carrier.get("traceparent", "")
    return request[:-1] + b',"trace":"' + trace.encode() + b'"}' if trace.isascii() and trace else request


def check_request(request: TurnRequest, size: int) -> None:
    """Check a request against the limits. ``size`` is its stored size in bytes. Raises ``LimitReached``."""
    check_size("request_bytes", size, "The turn in bytes", "Add large files with session.add_file.")
    if request.params:
        check_plain("params", request.params)
    if request.metadata:
        check_plain("metadata", request.metadata)
    if request.instructions:
        check_size("system_bytes", len(request.instructions.encode()), "The turn's instructions in bytes")
    if request.output is not None:
        check_depth(request.output.schema, "The schema of the output")
        check_depth(request.output.whole, "The schema of the output")
    for message in request.messages:
        for part in message.parts:
            if isinstance(part, Item | ToolCall):
                check_depth(msgspec.to_builtins(part), "A message")
    if isinstance(request.agent, AgentSpec):
        _check_agent(request.agent)


def _check_agent(agent: AgentSpec) -> None:
    if agent.params:
        check_plain("params", agent.params)
    check_size("fallbacks", len(agent.fallback), "The agent's fallbacks")
    for model in agent.fallback:
        check_plain("params", model.params)
    if agent.system:
        check_size("system_bytes", len(agent.system.encode()), "The agent's system prompt")
    if agent.max_steps:
        check_size("max_steps", agent.max_steps, "The agent's max_steps")


def travelling_agent(agent: str | AgentSpec | Travelling | None) -> str | AgentSpec | None:
    if agent is None or isinstance(agent, str):
        return agent
    if not isinstance(agent, AgentSpec) and is_a(
        agent, Travelling
    ):  # a protocol check is slow, so it comes last
        agent = agent.spec()
    if isinstance(agent, AgentSpec):
        window_of(agent.window)
        return agent
    raise UsageError(f"agent= must be an agent's name or an Agent, not {type(agent).__name__}.")


def queue_of(agent: str | AgentSpec | None) -> str:
    """Return the queue of an agent that is sent with a turn, or '' if it has none. Raises ``UsageError``."""
    return "" if agent is None or isinstance(agent, str) or agent.queue is None else check_queue(agent.queue)
