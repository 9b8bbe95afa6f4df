"""Clients that submit with keys, repeat calls of unknown outcome, cancel, wait, and read along."""

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from itertools import groupby

from support.ensemble import TOOLS, agent_spec

from antiphon.client import AsyncClient
from antiphon.errors import AgentError, AlreadyDecided, SessionBusy, StoreError
from antiphon.events import Event
from antiphon.input.ids import TurnId
from antiphon.input.request import WAITS, AgentSpec
from antiphon.input.values import IfBusy
from antiphon.model import DecisionKind
from antiphon.redis.turn import AsyncTurn
from antiphon.wire.answered import Answered, keep_answered
from chaos.appends import Read

WORK = (
    *["words:3"] * 5, *["words:20"] * 3, "words:60", "tool:note words:3", "tool:note tool:pay words:3",
    "fail:broken*1", "fail:limited*1", "fail:rejected", "die*1 words:3", "tool:spin*1 words:3",
    "tool:freeze*1 words:3", "tool:fork*1 words:3", "die*2 tool:fork*1 words:3",
)  # fmt: skip
ASKS = "asks tool:note tool:pay words:3"  # a person has to approve the payment


PLAIN_TOOLS = ("note", "pay", "spin", "freeze", "fork")  # the stage of the previous release has them as well
MODES: tuple[IfBusy, ...] = (*["enqueue"] * 7, "reject", "interrupt", "rollback", *["steer"] * 3)


@dataclass(slots=True)
class Submitted:
    """One turn, as known to its client. It is ``accepted`` when a submit has returned."""

    text: str
    key: str
    if_busy: IfBusy = "enqueue"
    began: float = 0.0  # in s, like ``ended``
    ended: float = float("inf")  # when its client learned that it had finished
    turn_id: TurnId | None = None
    cancelled: bool = False  # a cancel was accepted
    repeats: int = 0
    refused: str = ""

    @property
    def accepted(self) -> bool:
        return self.turn_id is not None

    tools: tuple[str, ...] = TOOLS

    @property
    def agent(self) -> AgentSpec:
        asks = {"approval": ["pay"], "version": WAITS} if self.text.endswith(ASKS) else {}
        return agent_spec(tools=[*self.tools], **asks)


@dataclass
class Conversation:
    """One session's client, with a subscriber that sees every event.

    ``plainly``: it uses only features of the previous release.
    """

    session: str
    client: AsyncClient
    seed: int
    plainly: bool = False
    turns: list[Submitted] = field(default_factory=list)
    seen: list[Event] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)

    @property
    def tenant(self) -> str | None:
        """About a third of the sessions have no tenant; the others belong to two tenants."""
        return None if self.plainly else [None, "few", "many"][sum(self.session.encode()) % 3]

    async def talk(self, until: Callable[[], bool]) -> None:
        """Submit one turn after another until ``until`` returns True."""
        chance = random.Random(f"{self.seed} {self.session}")
        number = 0
        while not until():
            number += 1
            one = self._next(chance, number)
            turn = await self._submit(one, chance)
            if turn is not None:
                await self._go_on(one, turn, chance)

    def _next(self, chance: random.Random, number: int) -> Submitted:
        asks = not self.plainly and chance.random() < 0.1
        text = f"{self.session} says {number} {ASKS if asks else chance.choice(WORK)}"
        if self.plainly:
            return Submitted(text, f"key-{number}", tools=PLAIN_TOOLS)
        return Submitted(text, f"key-{number}", chance.choice(MODES))

    async def _submit(self, one: Submitted, chance: random.Random) -> AsyncTurn | None:
        """Submit with a key until an answer arrives; now and then once more on purpose."""
        one.began = time.monotonic()
        self.turns.append(one)
        again = chance.random() < 0.15
        while True:
            try:
                turn = await self.client.submit(
                    self.session, one.text, key=one.key, agent=one.agent, tenant=self.tenant,
                    if_busy=one.if_busy,
                )  # fmt: skip
            except SessionBusy:
                if one.if_busy != "reject":
                    one.refused = "the session is busy"
                return None
            except StoreError:
                one.repeats += 1
                await asyncio.sleep(0.1)
                continue
            except AgentError as exc:
                one.refused = str(exc)
                return None
            if one.turn_id not in (None, turn.id):
                self.trouble.append(f"{self.session}: the key {one.key} gave two turns")
            one.turn_id = turn.id
            if not again:
                return turn
            again = False

    async def _go_on(self, one: Submitted, turn: AsyncTurn, chance: random.Random) -> None:
        match chance.choices(("wait", "on", "cancel"), (6, 3, 1))[0]:
            case "wait":
                with suppress(AgentError):
                    await turn.result(20)
                    one.ended = time.monotonic()
            case "cancel":
                await asyncio.sleep(chance.uniform(0, 0.5))
                with suppress(AgentError):
                    answer = await turn.cancel(
                        "the client changed its mind", keep=chance.choice(("partial", "steps", "nothing"))
                    )
                    one.cancelled = not self.plainly and answer in ("requested", "cancelled")
            case _:
                await asyncio.sleep(chance.uniform(0, 0.3))

    async def look(self) -> None:
        """Read the history now and then, until cancelled."""
        chance = random.Random(f"{self.seed} {self.session} look")
        while True:
            with suppress(StoreError):
                await self.read()
            await asyncio.sleep(chance.uniform(0, 2))

    async def read(self) -> None:
        """Read the whole history, and keep its turns."""
        began = time.monotonic()
        messages = (await self.client.snapshot(self.session)).messages
        ended = time.monotonic()
        turns = [one.turn_id for one in messages]
        self.reads.append(Read(tuple(turn for turn, _ in groupby(turns) if turn), began, ended))

    async def read_along(self) -> None:
        """See every event of the session, across lost connections and subscriptions ended on purpose."""
        chance = random.Random(f"{self.seed} {self.session} reader")
        while True:
            patience = chance.randrange(20, 400)
            after = self.seen[-1].seq if self.seen else 0
            try:
                async with aclosing(self.client.subscribe(self.session, after)) as events:
                    async for event in events:
                        self.seen.append(event)
                        patience -= 1
                        if not patience:
                            break
            except StoreError:
                await asyncio.sleep(0.1)


NAMES = ("ada", "bob", "eve")
LOOK_SECONDS = 0.3
DIES = 0.2


class People:
    """``made`` has the decisions about each call that were reported as in force: who decided what.

    ``answered`` has the calls that each message to a turn was reported to have answered first.
    """

    def __init__(self, client: AsyncClient, seed: int) -> None:
        self._client = client
        self._seed = seed
        self.made: dict[tuple[str, str], set[tuple[str, DecisionKind]]] = defaultdict(set)
        self.answered: dict[tuple[str, str], set[frozenset[str]]] = defaultdict(set)

    async def decide_all(self) -> None:
        """Decide all pending tool calls, until cancelled."""
        await asyncio.gather(*(self._decide_as(name) for name in NAMES), self._answer_all())

    async def _answer_all(self) -> None:
        """Answer all pending tool calls with messages, as A2A callers do."""
        chance = random.Random(f"{self._seed} callers")
        while True:
            with suppress(AgentError):  # Redis is away, or the turn has gone on
                async for waiting in self._client.waiting():
                    turn = await self._client.turn(waiting.turn_id)
                    calls = [call.call_id for call in waiting.calls]
                    await self._answer(turn, f"message {chance.randrange(2)}", calls, chance)
            await asyncio.sleep(chance.uniform(0, 2 * LOOK_SECONDS))

    async def _answer(
        self, turn: AsyncTurn, message: str, calls: Sequence[str], chance: random.Random
    ) -> None:
        """Answer with a message. Some gateways die before all is answered, without an error to their caller."""
        cell = self._client.connections.cell_of_turn(turn.id)
        first = await keep_answered(cell, turn.id, message, Answered(frozenset(calls)))
        self.answered[turn.id, message].add(first.names)
        for call in () if first.done else sorted(first.names):
            if chance.random() < DIES:
                return
            await self._decide(turn, call, message, chance)
        await keep_answered(cell, turn.id, message, Answered(first.names, done=True))

    async def _decide_as(self, name: str) -> None:
        chance = random.Random(f"{self._seed} {name}")
        while True:
            try:
                async for waiting in self._client.waiting():
                    turn = await self._client.turn(waiting.turn_id)
                    for call in waiting.calls:
                        await self._decide(turn, call.call_id, name, chance)
            except AgentError:  # Redis is away, or the turn has gone on
                pass
            await asyncio.sleep(chance.uniform(0, 2 * LOOK_SECONDS))

    async def _decide(self, turn: AsyncTurn, call: str, name: str, chance: random.Random) -> None:
        kind: DecisionKind = chance.choice(("approve", "reject"))
        while True:
            try:
                if kind == "approve":
                    await turn.approve(call, by=name)
                else:
                    await turn.reject(call, by=name)
                self.made[turn.id, call].add((name, kind))
                return
            except AlreadyDecided as exc:  # perhaps by this very call, whose response was lost
                self.made[turn.id, call].add((exc.decision.by or "", exc.decision.kind))
                return
            except StoreError:
                await asyncio.sleep(0.1)
