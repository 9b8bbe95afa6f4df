"""Errands: turns with durable steps, sleeps, events, sub-agents, hand-offs and a budget, on changing revisions.

Each errand is an order with a unique name. A courier packs it, charges it, sleeps, waits for its payment, has a clerk
check it in a child turn, and hands over to a closer. All three have a revision for each label, and each replaced host
returns with the next label, while operators promote revisions and raise the budget.
"""

import asyncio
import json
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from antiphon.agent import Agent
from antiphon.client import AsyncClient
from antiphon.errors import AgentError, StepFailed, StoreError
from antiphon.events import Event, decode_event
from antiphon.input.ids import TurnId
from antiphon.model import TERMINAL, Budget, Usage
from antiphon.model.revisions import Rollout
from antiphon.redis.turn import AsyncTurn
from antiphon.testing import Answer, answer, script, tool_call
from antiphon.tools import Context, tool
from antiphon_worker.providers.base import ModelRequest
from antiphon_worker.providers.scripted import ScriptedProvider
from chaos.gateway import Gateway

if TYPE_CHECKING:
    from support.stage import Stage

COURIER, CLERK, CLOSER, TENANT = "courier", "clerk", "closer", "errands"
LABELS = ("label-1", "label-2", "label-3")
PLAN = ("errand", CLERK, f"transfer_to_{CLOSER}")
SHIPPED = "was shipped by"
SESSIONS = 6
SLEEP_SECONDS = 1.2
PAPERS = "." * 2_000  # enclosed with an order
BYTES_OF_TOKEN = 4  # the estimate for a stopped call
BUDGET = 10_000  # tokens, at first
ORPHAN_SECONDS = 20.0  # a child checks for its parent's end every five seconds, and Redis may be away
TO_BE_EXPECTED = ("worker_crashed", "loop_stalled")


def errand_model(stage: "Stage") -> ScriptedProvider:
    """Return the model of all three agents. It bills a call before it answers."""

    def reply(request: ModelRequest) -> Answer:
        said = [one for one in request.messages if one.role == "user"][-1]
        label, who = (request.system or "").split(" ")
        order = said.text.split(" ")[0]
        billed = Usage(len(said.text) // BYTES_OF_TOKEN, 0)
        stage.note("billed", order=order, tokens=billed.tokens)
        done = sum(one.role == "tool" for one in request.messages[request.messages.index(said) :])
        if who == CLERK or done >= len(PLAN):
            return answer(f"{label} has done {order}", usage=billed)
        more = {"errand": {"order": order, "by": label}, CLERK: {"input": f"{order} by {label} {PAPERS}"}}
        return answer(tool_call(PLAN[done], **more.get(PLAN[done], {"reason": label})), usage=billed)

    return ScriptedProvider(script(reply, repeat=True), name="errands")


def errand_agents(stage: "Stage", label: str) -> list[Agent]:
    """Return the agents of one revision."""

    @tool
    async def errand(order: str, by: str, context: Context) -> str:
        """Run an errand."""

        async def act(step: str) -> str:
            stage.note("step", turn=context.turn_id, step=step)
            return uuid4().hex

        def saw(step: str, value: Any) -> None:
            stage.note("saw", turn=context.turn_id, step=step, value=value)

        saw("pack", await context.step("pack", act, "pack"))
        try:
            saw("charge", await context.step("charge", act, "charge", at_most_once=True))
        except StepFailed:
            saw("charge", "nobody knows")
        await context.sleep(SLEEP_SECONDS)
        saw("paid", await context.wait_for_event(f"paid:{order}"))
        saw("ship", await context.step("ship", act, "ship"))
        return f"{order} {SHIPPED} {label}"

    def agent(name: str, **more: Any) -> Agent:
        return Agent(
            "errands", "errands-1", name=name, system=f"{label} {name}", label=label, max_tokens=50,
            rollout=Rollout(timeout=3), **more,
        )  # fmt: skip

    clerk, closer = agent(CLERK), agent(CLOSER)
    return [agent(COURIER, tools=[errand, clerk.as_tool()], handoffs=[closer]), clerk, closer]


@dataclass
class Order:
    """One errand, as known to its client."""

    name: str
    session: str
    turn: TurnId | None = None
    sent: list[str] = field(default_factory=list)  # the data of its payments


class Errands:
    """``trouble`` has a sentence for each broken promise."""

    def __init__(
        self, client: AsyncClient, stage: "Stage", seed: int, gateway: Gateway | None = None
    ) -> None:
        self._client, self._stage, self._seed, self._gateway = client, stage, seed, gateway
        self.limits: list[tuple[float, int]] = []  # when each limit was to be set
        self._orders: list[Order] = []
        self.trouble: list[str] = []
        self.counts: Counter[str] = Counter()

    async def open(self) -> None:
        """Set the first budget before any worker starts."""
        await self._set_limit(BUDGET)

    async def run(self, over: Callable[[], bool]) -> None:
        """Submit orders and pay for them."""
        await asyncio.gather(*(self._talk(f"e{number}", over) for number in range(SESSIONS)))
        for order in self._orders:
            if not order.sent:
                await self._pay(order, "at last")

    async def operate(self) -> None:
        """Raise the budget, and promote revisions, until cancelled."""
        await asyncio.gather(self._raise_budget(), self._promote())

    # clients

    async def _talk(self, session: str, over: Callable[[], bool]) -> None:
        chance, number = random.Random(f"{self._seed} {session}"), 0
        while not over():
            number += 1
            order = Order(f"{session}-{number}", session)
            self._orders.append(order)
            when = chance.choices(("before", "after", "twice", "never"), (2, 4, 2, 1))[0]
            if when == "before":
                await self._pay(order, "before")
            turn = await self._submit(order)
            if when in ("after", "twice"):
                await asyncio.sleep(chance.uniform(0, 2))
                for word in ("after", "again")[: 1 + (when == "twice")]:
                    await self._pay(order, word)
            await self._go_on(turn, chance)

    async def _submit(self, order: Order) -> AsyncTurn:
        return await until_stored(
            lambda: self._client.submit(
                order.session,
                f"{order.name} is to be delivered {PAPERS}",
                key=order.name,
                agent=COURIER,
                tenant=TENANT,
            ),
            lambda turn: setattr(order, "turn", turn.id),
        )

    async def _pay(self, order: Order, word: str) -> None:
        """Pay an order; about every second payment goes over HTTP."""
        order.sent.append(word)
        sender = self._client if self._gateway is None or len(self._orders) % 2 else self._gateway
        self.counts["paid over HTTP"] += sender is self._gateway
        name, key = f"paid:{order.name}", f"{order.name}-{word}"
        await until_stored(lambda: sender.send_event(name, word, key=key, tenant=TENANT))

    async def _go_on(self, turn: AsyncTurn, chance: random.Random) -> None:
        match chance.choices(("wait", "on", "cancel"), (8, 1, 1))[0]:
            case "wait":
                with suppress(AgentError):
                    await turn.result(15)
            case "cancel":
                await asyncio.sleep(chance.uniform(0, 3))
                with suppress(AgentError):
                    await turn.cancel("the client changed its mind")
            case _:
                await asyncio.sleep(chance.uniform(0, 1))

    # operators

    async def _set_limit(self, tokens: int) -> None:
        self.limits.append((time.time(), tokens))
        budgets = [Budget(tokens=tokens, per="month", reached="suspend")]
        await until_stored(lambda: self._client.budgets("tenant", TENANT).set(budgets))

    async def _raise_budget(self) -> None:
        """Double the budget shortly after all of it is used."""
        while True:
            await asyncio.sleep(0.2)
            with suppress(AgentError):
                (state,) = await self._client.budgets("tenant", TENANT).read()
                if state.used >= state.budget.limit:
                    await asyncio.sleep(0.5)
                    await self._set_limit(2 * self.limits[-1][1])
                    self.counts["raised"] += 1

    async def _promote(self) -> None:
        chance = random.Random(f"{self._seed} operators")
        while True:
            await asyncio.sleep(chance.uniform(0.5, 2))
            agents, label = self._client.agents(), chance.choice(LABELS)
            with suppress(AgentError):  # no worker has it at the moment, or Redis is away
                match chance.choices(("all", "share", "back", "reset"), (3, 3, 2, 1))[0]:
                    case "all":
                        await agents.promote(f"{COURIER}@{label}")
                    case "share":
                        await agents.promote(f"{COURIER}@{label}", share=0.5)
                    case "back":
                        await agents.roll_back(COURIER)
                    case _:
                        await agents.reset(COURIER)
                self.counts["promotions"] += 1

    # promises

    async def check(self, client: AsyncClient) -> None:
        """Read everything back."""
        for number in range(SESSIONS):
            session = f"e{number}"
            events = await events_of(client, session)
            if any(one.seq + 1 != other.seq for one, other in pairwise(events)):
                self.trouble.append(f"{session}: the events are not dense")
            by_turn = defaultdict[str, list[Event]](list)
            for event in events:
                by_turn[event.turn_id].append(event)
            for order in (one for one in self._orders if one.session == session and one.turn):
                await self._check_turn(client, order, by_turn[order.turn or ""])
        self.check_notes()

    async def _check_turn(self, client: AsyncClient, order: Order, events: list[Event]) -> None:
        record = await (await client.turn(TurnId(order.turn or ""))).info()
        self.counts["errands"] += 1
        self.counts[record.status] += 1
        if record.status not in TERMINAL:
            self._wrong(order, f"never ended: it is {record.status}")
        if record.status == "failed" and (record.code or "") not in TO_BE_EXPECTED:
            self._wrong(order, f"failed: {record.code}: {record.error}")
        finished = record.status == "finished"
        self.check_events(order, events, finished=finished)
        await self._check_children(client, order, events, finished=finished)

    def check_events(self, order: Order, events: list[Event], *, finished: bool = False) -> None:
        """Check the events of one turn in its session's stream."""
        self._check_once(order, events, finished=finished)
        self._check_waits(order, events)
        self._check_revision(order, events)

    def _check_once(self, order: Order, events: list[Event], *, finished: bool) -> None:
        """Check that each step has one result and each wait one event, and that the turn is handed over once."""
        steps = Counter((one.call_id, one.name) for one in events if one.type == "step_recorded")
        received = Counter(one.wait_id for one in events if one.type == "event_received")
        paid = Counter({one: times for one, times in received.items() if "paid:" in one})
        self.counts["ends of children heard"] += len(received) - len(paid)
        handed = Counter(one.target for one in events if one.type == "handoff")
        for one, times in (steps + received + handed).items():
            if times > 1:
                self._wrong(order, f"has this {times} times: {one}")
        for what, found, number in (("step", steps, 3), ("event", paid, 1), ("hand-off", handed, 1)):
            self.counts[f"{what}s"] += len(found)
            if finished and len(found) != number:
                self._wrong(order, f"has finished with {len(found)} {what}s: {[*found]}")

    def _check_waits(self, order: Order, events: list[Event]) -> None:
        """Check that a waiting turn continues once, and that a sleeping turn does not continue early."""
        asleep: Any = None
        for event in events:
            if event.type in ("turn_sleeping", "turn_suspended"):
                if asleep:
                    self._wrong(order, "falls asleep twice")
                asleep = event
                self.counts["sleeps"] += 1
            elif event.type == "turn_resumed":
                if not asleep:
                    self._wrong(order, "wakes up twice")
                elif any(
                    one.kind == "sleep" and asleep.at + one.seconds * 1000 > event.at for one in asleep.waits
                ):
                    self._wrong(order, "wakes up early")
                asleep = None

    def _check_revision(self, order: Order, events: list[Event]) -> None:
        """Check that between two changes of its revision, a turn writes under one label."""
        label = ""
        for event in events:
            if event.type == "agent_changed":
                self.counts["revisions changed"] += 1
                label = ""
            found = _label_of(event)
            if found and label and found != label:
                self._wrong(order, f"goes on with {found} after {label}, without a change of its revision")
            label = found or label

    async def _check_children(
        self, client: AsyncClient, order: Order, events: list[Event], *, finished: bool
    ) -> None:
        """Check that each child begins and ends once in its parent's stream, and does not outlive its parent."""
        ended = next((event.at for event in events if event.terminal), 0)
        children = defaultdict[str, list[dict[str, Any]]](list)
        for event in events:
            if event.type == "child_event":
                children[event.child_id].append(event.event)
        self.counts["children"] += len(children)
        if len(children) > 1 or (finished and not children):
            self._wrong(order, f"has {len(children)} children")
        for child, seen in children.items():
            if not is_whole(seen, finished=finished):
                self._wrong(
                    order, f"shows its child {child} as {[(one.get('seq'), one['type']) for one in seen]}"
                )
            info = await (await client.turn(TurnId(child))).info()
            late = ((info.ended or ended) - ended) / 1000
            if info.status not in TERMINAL or (info.status == "finished" and late > ORPHAN_SECONDS):
                self._wrong(
                    order, f"has left its child {child} behind: it is {info.status}, {late:g} s later"
                )

    def check_notes(self) -> None:
        """Check the notes of the tools and the model."""
        self._check_steps()
        self._check_budget()

    def _check_steps(self) -> None:
        """Check that a step always returns its first result, and that an at-most-once step ran once."""
        values = defaultdict[tuple[str, str], set[str]](set)
        for note in self._stage.notes("saw"):
            values[note["turn"], note["step"]].add(str(note["value"]))
        for (turn, step), found in values.items():
            if len(found) > 1:
                self.trouble.append(f"turn {turn}: {step} had several results: {sorted(found)}")
        ran = Counter(note["turn"] for note in self._stage.notes("step", step="charge"))
        self.trouble += [f"turn {turn} charged {times} times" for turn, times in ran.items() if times > 1]

    def _check_budget(self) -> None:
        """Check that each call starts with fewer billed tokens than the budget, which one call at most exceeds."""
        billed, limits = 0, [*self.limits]
        for note in self._stage.notes("billed"):
            limit = max(tokens for at, tokens in limits if at <= note["at"])
            if billed >= limit:
                self.trouble.append(
                    f"{note['order']}: {billed} tokens were billed, and the budget was {limit}"
                )
            billed += note["tokens"]
        self.counts["tokens billed"] = billed

    def _wrong(self, order: Order, what: str) -> None:
        self.trouble.append(f"the errand {order.name} ({order.turn}) {what}")


def is_whole(seen: list[dict[str, Any]], *, finished: bool) -> bool:
    """Return whether a parent shows a child's begin once, its end at most once, and its events in order."""
    types, seqs = [one["type"] for one in seen], [one["seq"] for one in seen if "seq" in one]
    ends = [kind in ("turn_finished", "turn_failed", "turn_cancelled") for kind in types]
    once = types[0] == "turn_queued" and types.count("turn_queued") == 1 and sum(ends) <= 1
    return once and seqs == sorted(set(seqs)) and (ends[-1] or not finished)


async def until_stored(
    call: Callable[[], Awaitable[Any]], then: Callable[[Any], None] = lambda _: None
) -> Any:
    """Repeat a call until it returns, and pass the result to ``then``."""
    while True:
        try:
            found = await call()
        except StoreError:
            await asyncio.sleep(0.1)
        else:
            then(found)
            return found


async def events_of(client: AsyncClient, session: str) -> list[Event]:
    """Return all kept events of a session."""
    cell = client.connections.cell_of_session(session)  # type: ignore[arg-type]
    entries = await cell.redis.xrange(cell.keys.events(session))  # type: ignore[arg-type]
    return [decode_event(fields[b"e"]) for _, fields in entries]


def _label_of(event: Event) -> str:
    """Return the label an event was written under; '' if it shows none. A child's result has the child's label."""
    text = json.dumps(json.loads(event.to_json()))
    if event.type not in ("tool_call", "tool_result", "handoff", "turn_finished"):
        return ""
    found = None if event.type == "tool_result" and SHIPPED not in text else re.search("|".join(LABELS), text)
    return found[0] if found else ""
