"""Travellers: turns that a router sends to other agents and queues, and that workers rerun as variants.

Each call of the router chooses at random. This reveals a run that was routed twice, or that continues with another
agent than the chosen one. Each answer names its agent and the agent's revision.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from uuid import uuid4

from antiphon.agent import Agent
from antiphon.client import AsyncClient
from antiphon.errors import AgentError, UsageError
from antiphon.events import AgentChanged, Event
from antiphon.model import TERMINAL
from antiphon.model.recording import VariantRun
from antiphon.redis.turn import AsyncTurn
from antiphon.redis.turn_records import turn_info
from antiphon.routing import Route, Routing
from antiphon.session.turn_info import TurnInfo
from antiphon.testing import Answer, answer, script
from antiphon.wire.records import DEFAULT_QUEUE
from antiphon_worker.providers.base import ModelRequest
from antiphon_worker.providers.scripted import ScriptedProvider
from chaos.errands import LABELS, events_of, until_stored

GUIDES = ("north", "south")
QUEUES = (DEFAULT_QUEUE, "far")
TRAVELS = "A journey:"
SESSIONS, RUNS = 4, 2
TO_BE_EXPECTED = ("worker_crashed", "loop_stalled")


def travel_agents(label: str) -> list[Agent]:
    """Return the guides of one revision."""
    return [
        Agent("guides", "guides-1", name=name, system=f"{name} of {label}", label=label) for name in GUIDES
    ]


def travel_model() -> ScriptedProvider:
    """Return the model of the guides."""

    def reply(request: ModelRequest) -> Answer:
        return answer(f"{request.system} has seen it")

    return ScriptedProvider(script(reply, repeat=True), name="guides")


def travel_router(turn: Routing) -> Route | None:
    """Send a journey to a random guide and queue, and leave all other turns alone."""
    if not turn.text.startswith(TRAVELS):
        return None
    return Route(random.choice(GUIDES), queue=random.choice((None, *QUEUES)), reason=uuid4().hex)


class Travellers:
    """``trouble`` has a sentence for each broken promise."""

    def __init__(self, client: AsyncClient, seed: int) -> None:
        self._client, self._seed = client, seed
        self._turns: list[AsyncTurn] = []
        self.trouble: list[str] = []
        self.counts: Counter[str] = Counter()

    async def run(self, over: Callable[[], bool]) -> None:
        """Submit journeys, and request variants of ended ones."""
        await asyncio.gather(*(self._travel(f"trip{number}", over) for number in range(SESSIONS)))

    async def _travel(self, session: str, over: Callable[[], bool]) -> None:
        chance, number = random.Random(f"{self._seed} {session}"), 0
        own: list[AsyncTurn] = []
        while not over():
            number += 1
            said, key = f"{TRAVELS} {session} {number}", f"{session}-{number}"
            turn = await until_stored(
                lambda said=said, key=key: self._client.submit(session, said, key=key, agent=GUIDES[0]),
                self._turns.append,
            )
            own.append(turn)
            with suppress(AgentError):
                await turn.result(15)
            with suppress(AgentError):  # the turn has not ended, or Redis is away
                await self._run_again(chance.choice(own), chance)

    async def _run_again(self, turn: AsyncTurn, chance: random.Random) -> None:
        """Request variants of a revision that a worker has, and repeat the request as if the answer was lost."""
        guide = chance.choice(GUIDES)
        for label in chance.sample(LABELS, len(LABELS)):
            with suppress(UsageError):  # no worker has it at the moment
                for _ in range(2):
                    await turn.replay(f"{guide}@{label}", runs=RUNS, key="again")
                return

    async def check(self, client: AsyncClient) -> None:
        """Read everything back."""
        events = [one for number in range(SESSIONS) for one in await events_of(client, f"trip{number}")]
        for submitted in self._turns:
            turn = await client.turn(submitted.id)
            record = await turn._record()
            info, queue = turn_info(record), record.fields["queue"].decode()
            self.check_route(info, queue, [one for one in events if one.turn_id == turn.id])
            self.check_variants(turn.id, await turn.variants())

    def check_route(self, info: TurnInfo, queue: str, events: Sequence[Event]) -> None:
        """Check that a run was routed once, and used the chosen queue and agent."""
        chosen = [one for one in events if isinstance(one, AgentChanged) and not one.revision]
        self.counts[info.status] += 1
        if info.status not in TERMINAL or (info.status == "failed" and info.code not in TO_BE_EXPECTED):
            self._wrong(info.turn_id, f"is {info.status}: {info.code}: {info.error}")
        if len(chosen) > 1 or (info.status == "finished" and not chosen):
            self._wrong(info.turn_id, f"was routed {len(chosen)} times")
        for route in chosen[:1]:
            self.counts["moved"] += route.queue == QUEUES[1]
            if queue != (route.queue or QUEUES[0]):
                self._wrong(info.turn_id, f"was sent to {route.queue}, and is in {queue}")
            if info.status == "finished" and not info.messages[-1].text.startswith(f"{route.agent} of "):
                self._wrong(info.turn_id, f"was sent to {route.agent}, and says {info.messages[-1].text}")

    def check_variants(self, turn: str, found: Sequence[VariantRun]) -> None:
        """Check that there are at most as many variants as requested, answered by their own agent."""
        self.counts["variants"] += len(found)
        if len(found) > RUNS:
            self._wrong(turn, f"has {len(found)} variants")
        for run in found:
            self.counts[f"variants {run.status}"] += 1
            told = run.variant is None or run.variant.error or run.variant.text.startswith(f"{run.agent} of ")
            if not told or (run.status == "finished") != (run.variant is not None):
                self._wrong(turn, f"has the variant {run}")

    def _wrong(self, turn: str, what: str) -> None:
        self.trouble.append(f"the journey {turn} {what}")
