"""``antiphon explain``: the timeline of a turn in sentences."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct, field

from antiphon.cli.arguments import add_json, add_redis, command_parser, print_json, read_client
from antiphon.cli.terminal import Paint, chosen_by_router, clock_time, counted, one_line
from antiphon.client import AsyncClient
from antiphon.events import (
    AgentChanged,
    BudgetReachedEvent,
    ChildEvent,
    ContextReduced,
    Event,
    Handoff,
    ModelChanged,
    RecallFailed,
    StepFinished,
    ToolCallEvent,
    ToolResultEvent,
    TurnCancelledEvent,
    TurnFailedEvent,
    TurnFinished,
    TurnQueued,
    TurnResumed,
    TurnRetrying,
    TurnSleeping,
    TurnStarted,
    TurnSteered,
    TurnSuspended,
)
from antiphon.input.ids import SessionId, turn_id
from antiphon.model import TERMINAL, Usage, Wait
from antiphon.model.budget import BudgetScope, BudgetState
from antiphon.redis.edits import found_in
from antiphon.redis.trees import tree_of
from antiphon.redis.turn_records import runs_of, turn_info
from antiphon.routing import ROUTER_FAILED
from antiphon.session.turn_info import TurnInfo, TurnRun, TurnTree
from antiphon.text import text_of
from antiphon.wire.lists.inspection import turn_log, unserved
from antiphon.wire.records import TurnRecord


class PayingBudget(Struct):
    """A stored budget that the turn draws on, and how much of it is used."""

    scope: str
    name: str
    state: BudgetState

    def sentence(self) -> str:
        """Return it as one sentence."""
        state, budget = self.state, self.state.budget
        amounts = ", ".join(
            f"{_amount(budget.unit, number)} {word}"
            for word, number in (("used", state.used), ("held", state.held))
        )
        limit = _amount(budget.unit, budget.limit)
        return f"The {self.scope} {self.name} has a budget of {limit} per {budget.per}: {amounts}."


async def budgets_of_turn(client: AsyncClient, info: TurnInfo) -> list[PayingBudget]:
    """Read the stored budgets of a turn's session, tenant, user and agent, except those per turn."""
    names: dict[BudgetScope, str | None] = {
        "session": info.session_id, "tenant": info.tenant, "user": info.user, "agent": info.agent,
    }  # fmt: skip
    found: list[PayingBudget] = []
    for scope, name in names.items():
        if name:
            options: dict[str, Any] = {"tenant": info.tenant} if scope == "user" and info.tenant else {}
            states = await client.budgets(scope, name, **options).read()
            found += [PayingBudget(scope, name, one) for one in states if one.budget.per != "turn"]
    return found


def _amount(unit: str, number: float) -> str:
    return f"${number:,.6g}" if unit == "cost" else f"{number:,.15g} tokens"


MOST_IN_A_SENTENCE = 500
WORKER, MODEL, TOOLS, PAUSE, PEOPLE, SLEEP, OTHERS = (
    "waiting for a worker",
    "in model calls",
    "in tools",
    "waiting for its next attempt",
    "waiting for decisions",
    "asleep",
    "waiting behind other turns",
)


class Sentence(Struct):
    """What happened at a time, in ms since 1970. ``style`` is a colour or empty."""

    at: int
    text: str
    style: str = ""


class Story(Struct):
    """The timeline of a turn, and how many seconds each activity took."""

    sentences: list[Sentence] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


def duration(seconds: float) -> str:
    """Format a duration with the precision that a reader needs.

    >>> duration(0.0421), duration(75), duration(7300)
    ('0.04 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min {seconds % 60:.0f} s"
    return f"{minutes // 60} h {minutes % 60} min"


def story_of(events: Iterable[Event], now: int) -> Story:
    """Return the timeline of a turn from its events, in order. An unfinished turn is counted until ``now``."""
    teller = _Teller()
    for event in events:
        teller.hear(event)
    if not teller.ended:
        teller.pass_until(now)
    return Story(teller.sentences, teller.seconds)


class _Teller:
    """Builds the timeline of a turn from its events, one at a time."""

    def __init__(self) -> None:
        self.sentences: list[Sentence] = []
        self.seconds: dict[str, float] = {}
        self.ended = False
        self._at = 0
        self._doing = ""  # the current activity
        self._began = 0  # when that began
        self._worker = ""
        self._tools: dict[str, int] = {}  # running calls, and when they began

    def hear(self, event: Event) -> None:
        before = self._doing
        self.pass_until(event.at)
        tell = _TELL.get(type(event))
        if tell is None:
            return
        tell(self, event)
        if self._doing != before:
            self._began = event.at
        self.ended = self.ended or event.terminal

    def pass_until(self, at: int) -> None:
        """Count the time since the last event."""
        if self._doing and self._at and at > self._at:
            self.seconds[self._doing] = round(self.seconds.get(self._doing, 0.0) + (at - self._at) / 1000, 3)
        self._at = max(self._at, at)

    def _say(self, text: str, style: str = "") -> None:
        self.sentences.append(Sentence(self._at, one_line(text, MOST_IN_A_SENTENCE), style))

    def _since(self) -> str:
        return duration((self._at - self._began) / 1000)

    def queued(self, event: TurnQueued) -> None:
        self._doing = OTHERS if event.position else WORKER
        behind = f" behind {counted(event.position, 'other turn')} of its session" if event.position else ""
        self._say(f"It was accepted{behind}.")

    def started(self, event: TurnStarted) -> None:
        again = " again" if event.worker == self._worker else ""
        took = f" after {self._since()} of {self._doing}" if self._doing else ""
        self._say(f"Worker {event.worker} took it{again}{took}: attempt {event.attempt}.")
        self._worker, self._doing = event.worker, MODEL
        self._tools.clear()

    def stepped(self, event: StepFinished) -> None:
        used = event.usage
        cost = "" if used.cost is None else f", ${used.cost:.4g}"
        cached = f" ({used.cached:.0%} cached)" if used.cached_input_tokens else ""
        self._say(
            f"Model call {event.step} ({event.model or 'model'}) answered: {counted(used.input_tokens, 'token')} in"
            f"{cached}, {used.output_tokens:,} out{cost}; it stopped for {event.stop_reason}."
        )
        if event.rejected:
            self._say("The answer did not match its schema: the model is asked again.", "yellow")
        self._doing = MODEL

    def called(self, event: ToolCallEvent) -> None:
        self._tools[event.call_id] = event.at
        self._doing = TOOLS
        self._say(f"The model called the tool {event.name} ({event.call_id}).", "cyan")

    def returned(self, event: ToolResultEvent) -> None:
        since = self._tools.pop(event.call_id, None)
        if not self._tools:
            self._doing = MODEL
        how, style = ("failed", "red") if event.is_error else ("returned", "cyan")
        after = "" if since is None else f" after {duration((event.at - since) / 1000)}"
        self._say(f"The tool {event.name} {how}{after}.", style)

    def changed(self, event: ModelChanged) -> None:
        self._say(f"The model {event.target} answers in place of {event.source} ({event.code}).", "yellow")

    def routed(self, event: AgentChanged) -> None:
        if event.revision:
            self._say(
                f"It moved to the revision {event.revision} of {event.agent} ({event.reason}).", "yellow"
            )
        elif not event.reason.startswith(ROUTER_FAILED):
            why = f": {event.reason}" if event.reason else ""
            self._say(f"A router chose its {', '.join(chosen_by_router(event))}{why}", "cyan")
        else:
            self._say(event.reason, "yellow")

    def handed_over(self, event: Handoff) -> None:
        self._say(
            f"The agent {event.target} took the turn over from {event.source or 'one without a name'}.",
            "cyan",
        )

    def of_child(self, event: ChildEvent) -> None:
        child = f"The child turn {event.child_id} of the agent {event.agent}"
        match event.event.get("type"):
            case "turn_queued":
                self._say(f"The agent {event.agent} began the child turn {event.child_id}.", "cyan")
            case "turn_suspended":
                self._say(f"{child} waits for decisions.", "yellow")
            case "turn_finished" | "turn_failed" | "turn_cancelled" as kind:
                self._say(f"{child} has ended: {kind.removeprefix('turn_')}.", "cyan")
            case _:
                pass

    def budget_reached(self, event: BudgetReachedEvent) -> None:
        limit = f"${event.limit:,.15g}" if event.unit == "cost" else f"{event.limit:,.15g} tokens"
        ends = {
            "reject": "the turn fails",
            "suspend": "the turn waits",
            "fallback": "a fallback is to answer",
        }
        whose = event.scope if event.scope == event.per else f"{event.scope} per {event.per}"
        self._say(
            f"The budget of {limit} of the {whose} is used up: {ends.get(event.action, event.action)}.",
            "yellow",
        )

    def context_reduced(self, event: ContextReduced) -> None:
        omitted = (
            counted(event.messages, "message")
            if event.messages
            else counted(event.results, "long tool result")
        )
        self._say(
            f"The model refused the length of the request, so it was sent again without {omitted}.", "yellow"
        )

    def recall_failed(self, event: RecallFailed) -> None:
        self._say(f"The memory {event.memory} did not answer ({event.error}).", "yellow")

    def retried(self, event: TurnRetrying) -> None:
        said = (
            f" The service answered {event.service.status}." if event.service and event.service.status else ""
        )
        again = max(event.retry_at - event.at, 0) / 1000
        when = f"in {duration(again)}" if again else "at once"
        self._say(
            f"Attempt {event.attempt} ended ({event.code or 'no code'}): {event.reason}{said}", "yellow"
        )
        self._say(f"It was to be tried again {when}.", "yellow")
        self._doing = PAUSE if again else WORKER
        self._tools.clear()

    def suspended(self, event: TurnSuspended) -> None:
        calls = ", ".join(f"{call.kind} of {call.name} ({call.call_id})" for call in event.calls)
        calls = ", ".join(filter(None, [calls, _sleeps(event.waits)]))
        self._say(f"It was suspended, to wait for: {calls}. No worker held it.", "yellow")
        self._doing = PEOPLE
        self._tools.clear()

    def sleeping(self, event: TurnSleeping) -> None:
        self._say(f"It was suspended, to wait for: {_sleeps(event.waits)}. No worker held it.", "yellow")
        self._doing = SLEEP
        self._tools.clear()

    def resumed(self, event: TurnResumed) -> None:
        made = ", ".join(
            f"{one.kind} of {one.call_id} by {one.who or 'nobody named or the time limit'}"
            for one in event.decisions
        )
        said = (
            f"It was decided after {self._since()}: {made}." if made else f"It woke up after {self._since()}."
        )
        self._say(said)
        self._doing = WORKER

    def steered(self, event: TurnSteered) -> None:
        self._say(f"It took the input of turn {event.steered_id} into its next model call.")

    def finished(self, event: TurnFinished) -> None:
        into = event.steered_into
        self._say(f"It finished: turn {into} took its input." if into else "It finished.", "green")

    def failed(self, event: TurnFailedEvent) -> None:
        self._say(f"It failed ({event.code}): {event.message}", "red")

    def cancelled(self, event: TurnCancelledEvent) -> None:
        stay = "1 message of it stays" if event.kept == 1 else f"{event.kept} messages of it stay"
        self._say(f"It was cancelled ({event.reason}); {stay}.", "yellow")


def _sleeps(waits: Sequence[Wait]) -> str:
    return ", ".join(
        f"{wait.name} of {wait.call_id or 'its function'} until {clock_time(wait.until or 0)}"
        for wait in waits
    )


_TELL: dict[type, Callable[[_Teller, object], None]] = {  # type: ignore[assignment]
    TurnQueued: _Teller.queued,
    TurnStarted: _Teller.started,
    StepFinished: _Teller.stepped,
    ToolCallEvent: _Teller.called,
    ToolResultEvent: _Teller.returned,
    ModelChanged: _Teller.changed,
    AgentChanged: _Teller.routed,
    Handoff: _Teller.handed_over,
    ChildEvent: _Teller.of_child,
    BudgetReachedEvent: _Teller.budget_reached,
    ContextReduced: _Teller.context_reduced,
    RecallFailed: _Teller.recall_failed,
    TurnRetrying: _Teller.retried,
    TurnSuspended: _Teller.suspended,
    TurnSleeping: _Teller.sleeping,
    TurnResumed: _Teller.resumed,
    TurnSteered: _Teller.steered,
    TurnFinished: _Teller.finished,
    TurnFailedEvent: _Teller.failed,
    TurnCancelledEvent: _Teller.cancelled,
}


def explain(argv: list[str]) -> int:
    """Explain a turn: which workers held it, why it was retried, how long each part took

    It shows no text of users, models or tools. A turn is known for a week after its end, and its timeline for as
    long as its session keeps the events.
    """
    parser = command_parser(explain)
    parser.add_argument("turn", help="the turn's id")
    add_json(parser, "print one JSON object")
    add_redis(parser)
    options = parser.parse_args(argv)

    found = read_client(options, lambda client: _told(client, options.turn))
    if options.json:
        print_json([found.plain()])
    else:
        found.show()
    return 0


async def _told(client: AsyncClient, turn: str) -> _Told:
    known = turn_id(turn)
    cell = client.connections.cell_of_turn(known)
    record = await cell.turn(known)
    events = await turn_log(cell, record)
    now, tree = await cell.server_ms(), await tree_of(client.connections.cells, record)
    info = turn_info(record)
    info.total_usage = tree.total_usage if tree.children else None
    session = await found_in(cell, SessionId(info.session_id))
    told = _Told(
        record, info, runs_of(record), story_of(events, now), await unserved(cell, known) or "", session.value("usage"),
        tree, now,
    )  # fmt: skip
    told.budgets = await budgets_of_turn(client, info)
    return told


def _lines(tree: TurnTree, now: int, indent: str = "  ") -> list[str]:
    """Return a child turn and its descendants as lines."""
    facts = [f"{tree.agent}: {tree.turn_id} is {tree.status}"]
    if tree.started is not None:
        facts.append(duration(max((tree.ended or now) - tree.started, 0) / 1000))
    if tree.total_usage.tokens:
        facts.append(_used(tree.total_usage))
    below = (line for child in tree.children for line in _lines(child, now, indent + "  "))
    return [indent + ", ".join(facts), *below]


def _used(usage: Usage) -> str:
    tokens = counted(usage.tokens, "token")
    return tokens if usage.cost is None else f"{tokens} for ${usage.cost:.4f}"


class _Told:
    """Everything that is known about a turn."""

    def __init__(
        self, record: TurnRecord, info: TurnInfo, runs: list[TurnRun], story: Story, hint: str,
        session_usage: Usage | None, tree: TurnTree, now: int,
    ) -> None:  # fmt: skip
        self._session_usage, self._tree, self._now = session_usage, tree, now
        self.budgets: list[PayingBudget] = []
        self._info = info
        self._runs = runs
        self._story = story
        self._hint = hint
        fields = {name: text_of(value) for name, value in record.fields.items()}
        self._queue = fields.get("queue", "")
        self._tenant = fields.get("tenant") or None
        self._worker = fields.get("worker") or None
        self._crashes, self._errors = (int(fields.get(name) or 0) for name in ("crashes", "errors"))

    def plain(self) -> dict[str, Any]:
        """Return all of it as plain data, with stable field names."""
        info = self._info
        return {
            "turn_id": info.turn_id, "session_id": info.session_id, "status": info.status, "queue": self._queue,
            "tenant": self._tenant, "user": info.user, "agent": info.agent, "run": info.run, "attempt": info.attempt,
            "worker": self._worker, "crashes": self._crashes, "errors": self._errors, "created": info.created,
            "started": info.started, "ended": info.ended, "code": info.code, "error": info.error,
            "usage": info.usage, "total_usage": self._tree.total_usage, "session_usage": self._session_usage,
            "seconds": self._story.seconds,
            "children": msgspec.to_builtins(self._tree.children), "budgets": msgspec.to_builtins(self.budgets),
            "story": [{"at": one.at, "text": one.text} for one in self._story.sentences],
        }  # fmt: skip

    def show(self) -> None:
        info, paint = self._info, Paint(sys.stdout)
        agent = f", for the agent {info.agent}" if info.agent else ""
        tenant = f" of the tenant {self._tenant}" if self._tenant else ""
        print(paint(f"Turn {info.turn_id} is {info.status}.", "bold"))
        tenant += f" for the user {info.user}" if info.user else ""
        where = f"session {info.session_id}{tenant} and the queue {self._queue}{agent}"
        print(paint(f"It was submitted to {where},"))
        print(f"at {clock_time(info.created)}.")
        for run in self._runs[:-1]:
            ended = f"at {clock_time(run.ended or 0)} ({run.code}): {run.error}"
            print(paint(f"Run {run.run} {run.status} {ended}"))
        if info.run > 1:
            print(f"This is run {info.run}.")
        print()
        for one in self._story.sentences:
            print(f"{paint(clock_time(one.at), 'dim')}  {paint(one.text, *filter(None, [one.style]))}")
        if not self._story.sentences:
            print("Its events are no longer kept.")
        for one in self._tree.children:
            print("\n".join(_lines(one, self._now)))
        print()
        print(self._time())
        self._next(paint)

    def _time(self) -> str:
        spent = {what: seconds for what, seconds in self._story.seconds.items() if seconds >= 0.001}
        if not spent:
            return "It has taken no time yet."
        parts = ", ".join(
            f"{duration(seconds)} {what}"
            for what, seconds in sorted(spent.items(), key=lambda item: -item[1])
        )
        verb = "took" if self._info.status in TERMINAL else "has taken"
        return f"It {verb} {duration(sum(spent.values()))}: {parts}."

    def _next(self, paint: Paint) -> None:
        """Print usage, budgets and the available actions."""
        info, used = self._info, self._session_usage
        if used is not None and used.input_tokens:
            tokens = counted(used.input_tokens, "token")
            print(
                f"Its session has sent {tokens} so far; the services read {used.cached:.0%} of them from a cache."
            )
        if info.total_usage is not None:
            print(f"With its sub-agents it has used {_used(info.total_usage)}.")
        if left_out := self._tree.left_out:
            print(f"Not counted, because their records cannot be read: {counted(len(left_out), 'turn')}.")
        for one in self.budgets:
            print(one.sentence())
        if self._crashes or self._errors:
            died, failed = counted(self._crashes, "time"), counted(self._errors, "time")
            print(f"Its workers died {died}, and its model service failed {failed}.")
        for call in info.calls:
            print(paint(f"It waits: antiphon approve {info.turn_id} {call.call_id}", "yellow"))
        if info.waits:
            print(paint(f"It sleeps: {_sleeps(info.waits)}", "yellow"))
        if info.status == "failed":
            print(f"To run it again: antiphon requeue {info.turn_id}")
        if self._hint:
            print(paint(self._hint, "yellow"))
