"""The entries of a turn's journal, and the steps they form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec
from msgspec import Struct, field

from antiphon.errors import CorruptRecord, TurnFailed
from antiphon.events import Event
from antiphon.input.limits import check_size
from antiphon.input.request import AfterHandoff, PassedOn, refuse_newer
from antiphon.model import Decision, Message, StopReason, ToolCall, ToolResult, TurnStep, Usage
from antiphon.tools.results import at_the_end, noted
from antiphon_worker.providers.base import Published

REPAIR = "Your answer is unusable: {reason} Answer again, with nothing but JSON that fits the schema."


class SentPart(Struct, omit_defaults=True):
    """The part of the history, from ``start`` on, that a turn sends after a new summary or a refusal for its length.

    ``summary`` is a new summary of the first ``summarized`` messages, and ``usage`` its usage. ``bare``: no history
    is sent. ``results_cut``: long tool results of the turn itself are cut short.
    """

    start: int | None
    summary: str = ""
    summarized: int = 0
    usage: Usage | None = None
    bare: bool = False
    results_cut: bool = False


class StepEntry(Struct, tag="step", tag_field="type", omit_defaults=True):
    """A finished model call. ``rejected`` is why its answer does not match the schema of the turn.

    ``fallback`` is the place of the model that answered among the agent's fallbacks, from 1; 0 is the agent's own.
    ``sent`` is the part of the history that a continued turn sends; it is set in the first step that sent it.
    """

    step: int
    message: Message
    usage: Usage
    stop_reason: StopReason
    raw_stop_reason: str | None
    model: str
    rejected: str = ""
    fallback: int = 0
    sent: SentPart | None = None


class ToolStarted(Struct, tag="tool_started", tag_field="type", omit_defaults=True):
    """A call that is about to start: one of an ``at_most_once`` tool, or an approved one, which may run ``again``."""

    step: int
    call_id: str
    again: bool = False


class ToolFinished(Struct, tag="tool_finished", tag_field="type", omit_defaults=True):
    """A tool call with its result. ``variables`` are the session's variables after the call if it changed them.

    ``created`` is when the result arrived, in ms since 1970; None in entries of older releases. ``decision`` is the
    decision about the call, without the result.
    """

    step: int
    result: ToolResult
    variables: dict[str, Any] | None = None
    created: int | None = None
    decision: Decision | None = None


class Steering(Struct):
    """The part of another turn's request that steers a turn: its input."""

    messages: list[Message]


class Steered(Struct, tag="steered", tag_field="type", omit_defaults=True):
    """The input of another turn, to include in the next model call. ``created`` is when that turn was submitted.

    The scripts wrap it around the submitted request. The version prevents older releases from skipping it.
    """

    turn_id: str
    request: Steering
    created: int = 0
    version: int = 2

    @property
    def messages(self) -> list[Message]:
        for message in self.request.messages:
            message.created = message.created or self.created
        return self.request.messages


class CallsOpened(Struct, tag="calls_opened", tag_field="type"):
    """The calls of a step that wait for decisions, written before the turn is suspended.

    Its ``version`` prevents workers of releases without decisions from running the calls. Version 3 is for calls
    whose tools belong to a turn function.
    """

    step: int
    call_ids: list[str]
    version: int = 2


class DurableStart(Struct, tag="durable_start", tag_field="type"):
    """A durable step that must not start twice is about to start.

    ``place`` is its number in its ``call``, which is '' for the function of the turn. The version of these entries
    keeps workers of older releases, which would run the step again, from continuing the turn.
    """

    step: int
    call: str
    place: int
    name: str
    version: int = 3


class DurableSleep(Struct, tag="durable_sleep", tag_field="type"):
    """A call waits, at most until this time (ms since 1970). ``approval`` is the decision that it runs with."""

    step: int
    call: str
    place: int
    name: str
    until: int
    approval: Decision | None = None
    version: int = 3


class DurableResult(Struct, tag="durable_result", tag_field="type"):
    """A durable step has this result, or this error; or a sleep or a wait is over."""

    step: int
    call: str
    place: int
    name: str
    value: Any = None
    error: str = ""
    version: int = 3


class HookedInput(Struct, tag="hooked_input", tag_field="type"):
    """The input of the turn, as its hooks have changed it."""

    messages: list[Message]
    version: int = 3


class HookedCall(Struct, tag="hooked_call", tag_field="type"):
    """Changes by hooks to a call before it runs: its arguments (None: unchanged), or that it needs an approval."""

    step: int
    call_id: str
    arguments: dict[str, Any] | None = None
    asks: bool = False
    version: int = 3


class AnswerBegun(Struct, tag="answer_begun", tag_field="type"):
    """The service generates the answer of a step in the background, under this id.

    ``place`` is the model's place among the agent's fallbacks. The version keeps workers of older releases, which
    would request the answer again, from continuing the turn.
    """

    step: int
    place: int
    response_id: str
    version: int = 3


class AnswerGone(Struct, tag="answer_gone", tag_field="type"):
    """The service will not complete the answer of a step, which starts again. ``usage`` is what it charged."""

    step: int
    version: int = 3
    usage: Usage = field(default_factory=Usage)


PAID = (StepEntry, AnswerGone)
"""The entries with the usage of a model call."""


class StepBatched(Struct, tag="step_batched", tag_field="type"):
    """A model service answers a step in a batch, under this ``id``, at most until a time (ms since 1970).

    ``group`` identifies the service and model, ``place`` is the model's place among the agent's fallbacks, and
    ``fence`` identifies its hold on budgets. The version keeps workers of older releases, which would request the
    answer again, from continuing the turn.
    """

    step: int
    group: str
    id: str
    until: int
    fence: str
    version: int = 3
    place: int = 0


class HandedOver(Struct, tag="handed_over", tag_field="type"):
    """The agent ``target`` continues the turn after the step. ``history`` is what it receives.

    ``after`` determines which agent answers the session's next turns. The turn keeps the ``revision`` of the target:
    if it becomes known later, or changes, the entry is written again. All agents together may make ``most_steps``
    model calls; 0 means no limit. The version keeps workers of older releases, which would let ``source`` continue,
    from running the turn.
    """

    step: int
    source: str
    target: str
    reason: str = ""
    history: PassedOn = "all"
    after: AfterHandoff = "return"
    revision: str = ""
    most_steps: int = 0
    version: int = 3


class ChildBegun(Struct, tag="child_begun", tag_field="type"):
    """A tool call waits for the turn ``child`` of an agent in another session, until a time in ms or indefinitely.

    ``seconds`` is the longest wait. The version keeps workers of older releases, which do not know what the call
    waits for, from continuing the turn.
    """

    step: int
    call: str
    child: str
    session: str
    agent: str
    depth: int = 1
    until: int | None = None
    version: int = 3
    seconds: float | None = None


class Routed(Struct, tag="routed", tag_field="type"):
    """A router has chosen the ``agent`` that the turn begins with, and its ``model``; None: as the turn requested.

    The version keeps workers of older releases, which would begin with another agent, from running the turn.
    """

    agent: str | None = None
    model: str | None = None
    version: int = 3


DurableEntry: TypeAlias = DurableStart | DurableSleep | DurableResult
HookEntry: TypeAlias = HookedInput | HookedCall
AnswerEntry: TypeAlias = AnswerBegun | AnswerGone
JournalEntry = (
    StepEntry
    | ToolStarted
    | ToolFinished
    | CallsOpened
    | Steered
    | HandedOver
    | ChildBegun
    | Routed
    | DurableEntry
    | HookEntry
    | AnswerEntry
    | StepBatched
)


class Journal(Protocol):
    """The journal of a turn: its finished steps and tool calls. Each runtime implements it."""

    @property
    def entries(self) -> Sequence[JournalEntry]:
        """The entries of earlier attempts. Read once, when the loop starts."""
        ...

    async def append(self, entries: Sequence[JournalEntry], events: Sequence[Event]) -> None:
        """Store the entries and publish the events, after all events of the sink. The entries are durable when
        this returns."""
        ...

    @property
    def cancelled(self) -> bool:
        """Whether the turn is being cancelled."""
        ...

    async def published(self, step: int) -> Published:
        """Return how much of an unfinished step's answer readers have received."""
        ...

    async def checkpoint(self) -> None:
        """Pass a safe point to stop. May raise a stop signal, or wait while the lease is in doubt."""
        ...

    async def now(self) -> int:
        """Return the store's time in ms since 1970, which is the same for all workers."""
        ...

    async def steered(self, step: int) -> list[Message]:
        """Return the messages that steer the model call ``step``. They are durable when this returns."""
        ...


_entry_decoder: msgspec.json.Decoder[JournalEntry] = msgspec.json.Decoder(JournalEntry)


def encode_entry(entry: JournalEntry) -> bytes:
    """Return the stored form of a journal entry."""
    return msgspec.json.encode(entry)


def decode_entry(data: bytes) -> JournalEntry:
    """Read a stored journal entry. Raises ``CorruptRecord``, and ``NewerRecord`` if only a newer release can."""
    refuse_newer("journal entry", data)
    try:
        return _entry_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        raise CorruptRecord(f"A journal entry cannot be read: {exc}.") from exc


class Step:
    """A finished model call, with the messages that steered it, and the results of its tool calls so far."""

    __slots__ = (
        "approvals",
        "begun",
        "created",
        "decisions",
        "entry",
        "handed",
        "hooked",
        "opened",
        "results",
        "slept",
        "started",
        "steered",
        "withheld",
    )

    def __init__(self, entry: StepEntry, steered: Sequence[Message] = ()) -> None:
        self.entry = entry
        self.steered = [*steered]
        self.results: dict[str, ToolResult] = {}
        self.started: set[str] = set()  # the calls that must not start again
        self.begun: set[str] = set()  # the approved calls that may have started
        self.opened: set[str] = set()  # the calls that wait, or have waited, for a decision
        self.hooked: dict[str, HookedCall] = {}  # the calls that hooks have changed
        self.decisions: dict[str, Decision] = {}  # of calls with a result
        self.created: int | None = None  # when the last result arrived
        self.slept: set[str] = set()  # the calls that sleep, and run again afterwards
        self.approvals: dict[str, Decision] = {}  # the decisions that these run with
        self.handed = False  # whether another agent continues after this step
        self.withheld = False  # whether it is hidden from the agent in charge

    def as_hooked(self, call: ToolCall) -> ToolCall:
        """Return a call with the arguments set by hooks."""
        hooked = self.hooked.get(call.call_id)
        if hooked is None or hooked.arguments is None:
            return call
        return ToolCall(call.call_id, call.name, hooked.arguments)

    @property
    def fallback(self) -> int:
        """The place, among the fallbacks of the agent in charge, of the model that continues."""
        return 0 if self.handed else self.entry.fallback

    @property
    def open_calls(self) -> list[ToolCall]:
        return [call for call in self.entry.message.tool_calls if call.call_id not in self.results]

    def to_run(self, decisions: Mapping[str, Decision]) -> list[ToolCall]:
        """Return the pending calls that have waited and still need their tool, unless a decision answers them."""
        return [
            call
            for call in self.open_calls
            if call.call_id in (self.opened | self.slept) - self.started
            and ((decision := decisions.get(call.call_id)) is None or decision.kind == "approve")
        ]

    def sleep(self, entry: DurableSleep) -> None:
        """Note that a call sleeps: it may start again, with its approval."""
        self.slept.add(entry.call)
        self.started.discard(entry.call)
        if entry.approval is not None:
            self.approvals[entry.call] = entry.approval

    def closed(self, decisions: Mapping[str, Decision]) -> list[Message]:
        """Return the messages of this step of a turn that ends here. A call without a result gets an accurate one.

        ``decisions`` are those of the last suspension, by call id.
        """
        for call in self.open_calls:
            self.results[call.call_id] = at_the_end(call, self.opened, decisions, self.started | self.begun)
            if call.call_id in self.opened and (decision := noted(decisions.get(call.call_id))):
                self.decisions[call.call_id] = decision
        return self.messages

    def pass_over(self, entry: HandedOver) -> None:
        """Note a hand-off after this step or a later one: which agent answered here, and if the next one sees it."""
        message = self.entry.message
        message.agent = message.agent or entry.source or None
        self.handed = self.handed or entry.step == self.entry.step
        self.withheld = entry.history == "input"

    def note(self, entry: ToolStarted | ToolFinished | CallsOpened | HookedCall) -> None:
        """Note a journal entry about a call of this step."""
        if isinstance(entry, ToolStarted):
            (self.begun if entry.again else self.started).add(entry.call_id)
        elif isinstance(entry, CallsOpened):
            self.opened.update(entry.call_ids)
        elif isinstance(entry, HookedCall):
            self.hooked[entry.call_id] = entry
        else:
            self.finish(entry)

    def finish(self, entry: ToolFinished) -> None:
        """Note the result of a call."""
        call_id = entry.result.call_id
        self.results[call_id] = entry.result
        self.created = entry.created or self.created
        if entry.decision is not None:
            self.decisions[call_id] = entry.decision

    @property
    def messages(self) -> list[Message]:
        """The messages that the history keeps; rejected answers are omitted."""
        if self.entry.rejected:
            return self.steered
        calls = self.entry.message.tool_calls
        if not calls:
            return [*self.steered, self.entry.message]
        results = Message.tool([self.results[call.call_id] for call in calls])
        results.created = self.created
        results.decisions = [self.decisions[call.call_id] for call in calls if call.call_id in self.decisions]
        return [*self.steered, self.entry.message, results]

    @property
    def shown(self) -> list[Message]:
        """The messages that the model sees in the next steps; a rejected answer is followed by the reason."""
        if self.withheld:
            return self.steered
        if not (reason := self.entry.rejected):
            return self.messages
        return [*self.steered, self.entry.message, Message.user(REPAIR.format(reason=reason))]


def messages_of(entries: Iterable[JournalEntry]) -> list[Message]:
    """Return the messages of a journal's finished steps. A step is finished when all its tool calls have results."""
    messages: list[Message] = []
    for step in steps_of(entries):
        if step.open_calls:
            break
        messages += step.messages
    return messages


def input_of(entries: Iterable[JournalEntry], asked: list[Message]) -> list[Message]:
    """Return the input of a turn: ``asked``, or the input as changed by hooks."""
    for entry in entries:
        if isinstance(entry, HookedInput):
            return entry.messages
    return asked


def batched_step(entries: Iterable[JournalEntry], step: int) -> StepBatched | None:
    """Return the last batch request of a step, or None."""
    found = [entry for entry in entries if isinstance(entry, StepBatched) and entry.step == step]
    return found[-1] if found else None


def place_of(steps: Sequence[Step], entries: Iterable[JournalEntry]) -> int:
    """Return the place, among the agent's fallbacks, of the model that continues.

    It is the model that the next step was requested from in a batch, or the model that answered last.
    """
    asked = batched_step(entries, len(steps) + 1)
    return asked.place if asked else steps[-1].fallback if steps else 0


def starts_once(entries: Iterable[JournalEntry]) -> bool:
    """Return True if one of the entries announces a start that must not happen twice."""
    return any(
        isinstance(entry, DurableStart) or (isinstance(entry, ToolStarted) and not entry.again)
        for entry in entries
    )


def usage_of(entries: Iterable[JournalEntry]) -> Usage:
    """Return the total usage of a journal's model calls."""
    return sum((entry.usage for entry in entries if isinstance(entry, PAID)), Usage())


def lost_usage(entries: Iterable[JournalEntry]) -> Usage:
    """Return the usage of a journal's background answers that were lost."""
    return sum((entry.usage for entry in entries if isinstance(entry, AnswerGone)), Usage())


def plain_variables(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the variables as JSON types. Raises ``LimitReached``, and ``TurnFailed`` if they have no JSON form."""
    try:
        encoded = msgspec.json.encode(variables)
        found = msgspec.json.decode(encoded, type=dict[str, Any])
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as exc:
        raise TurnFailed(f"A tool set a variable that has no JSON form: {exc}.", code="variables") from exc
    check_size("variables_bytes", len(encoded), "The session's variables in bytes")
    return found


def variables_of(entries: Iterable[JournalEntry]) -> dict[str, Any] | None:
    """Return the session's variables after the finished tool calls of a journal, or None if none changed them."""
    changed = [entry.variables for entry in entries if isinstance(entry, ToolFinished)]
    return next((variables for variables in reversed(changed) if variables is not None), None)


def steps_of(entries: Iterable[JournalEntry]) -> list[Step]:
    """Return the steps of the entries. Raises ``CorruptRecord`` for a tool call without its step."""
    steps: list[Step] = []
    steered: list[Message] = []
    for entry in entries:
        if isinstance(entry, StepEntry):
            steps.append(Step(entry, steered))
            steered = []
        elif isinstance(entry, Steered):
            steered += entry.messages
        elif isinstance(entry, DurableEntry):
            if isinstance(entry, DurableSleep) and entry.call and steps:
                steps[-1].sleep(entry)
        elif isinstance(entry, HookedInput | ChildBegun | Routed | AnswerBegun | AnswerGone | StepBatched):
            continue
        elif isinstance(entry, HandedOver):
            for step in steps[: entry.step]:
                step.pass_over(entry)
        elif not steps or steps[-1].entry.step != entry.step:
            raise CorruptRecord(f"The journal has a tool call of step {entry.step}, but not that step.")
        else:
            steps[-1].note(entry)
    return steps


def agent_call(call: str, place: int) -> str:
    """Return the id of the inner call that waits for an agent, in a tool call or the turn's function ('')."""
    return f"{call}/agent-{place}"


def open_children(entries: Sequence[JournalEntry]) -> list[str]:
    """Return the child turns of a journal whose calls have no results."""
    over = {one.result.call_id for one in entries if isinstance(one, ToolFinished)}
    over |= {agent_call(one.call, one.place) for one in entries if isinstance(one, DurableResult)}
    return [one.child for one in entries if isinstance(one, ChildBegun) and one.call not in over]


def turn_steps(steps: Iterable[Step]) -> list[TurnStep]:
    """Return the steps as stop conditions see them."""
    return [
        TurnStep(one.entry.step, one.entry.message, list(one.results.values()), one.entry.usage)
        for one in steps
    ]


def tools_to_run(entries: Sequence[JournalEntry], decisions: Mapping[str, Decision]) -> set[str]:
    """Return the names of the tools needed by a journal's calls that have waited for a decision."""
    if any(isinstance(entry, CallsOpened) and entry.version == 3 for entry in entries):
        return set()  # its tools belong to a function
    return {call.name for step in steps_of(entries) for call in step.to_run(decisions)}


def steered_of(entries: Sequence[JournalEntry]) -> list[Message]:
    """Return the messages that steer the next model call: those in entries after the last finished step."""
    last = max((place for place, entry in enumerate(entries) if isinstance(entry, StepEntry)), default=-1)
    return [
        message for entry in entries[last + 1 :] if isinstance(entry, Steered) for message in entry.messages
    ]


def with_distinct_calls(message: Message, earlier: Iterable[str] = ()) -> Message:
    """Return the message with ids for its tool calls that are unique within the turn.

    Some servers send no ids, or the same id twice. ``earlier`` are the ids of the steps before.
    """
    calls = message.tool_calls
    seen: set[str] = {"", *earlier} if calls else set()
    ids = {call.call_id for call in calls}
    if len(ids) == len(calls) and seen.isdisjoint(ids):
        return message
    taken = ids | seen
    parts = list(message.parts)
    for i, part in enumerate(parts):
        if not isinstance(part, ToolCall):
            continue
        call_id, n = part.call_id, 1
        while call_id in seen:
            n += 1
            candidate = f"{part.call_id or 'call'}_{n}"
            call_id = candidate if candidate not in taken else call_id
        seen.add(call_id)
        parts[i] = msgspec.structs.replace(part, call_id=call_id)
    return msgspec.structs.replace(message, parts=parts)
