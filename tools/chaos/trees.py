"""Trees of turns: a root calls agents, which call others; half of the roots are cancelled while everything breaks."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise

from antiphon.agent import Agent
from antiphon.client import AsyncClient
from antiphon.errors import AgentError
from antiphon.events import Event
from antiphon.model import TERMINAL
from antiphon.redis.turn import AsyncTurn
from antiphon.session.turn_info import TurnTree
from antiphon.testing import Answer, answer, script, tool_call
from antiphon.tools import Context, tool
from antiphon_worker.providers.base import ModelRequest
from chaos.errands import ORPHAN_SECONDS, events_of, is_whole, until_stored

ROOT, BRANCH, LEAF, WIDTH = "root", "branch", "leaf", 2
TURNS = 1 + WIDTH + WIDTH**2
SESSIONS, SLEEP_SECONDS, LONGEST_SECONDS = 2, 1.0, 4.0
CANCELLED = 0.5
TO_BE_EXPECTED = ("worker_crashed", "loop_stalled")


def tree_agents() -> list[Agent]:
    """Return the agents of a tree. Leaves sleep, so that a cancel finds turns in all states."""

    @tool
    async def sleep(context: Context) -> str:
        """Sleep a while."""
        await context.sleep(SLEEP_SECONDS)
        return LEAF

    leaf = Agent(script(_rested, repeat=True), "any", name=LEAF, tools=[sleep])
    branch = Agent(script(_asks(LEAF), repeat=True), "any", name=BRANCH, tools=[leaf.as_tool()])
    root = Agent(script(_asks(BRANCH), repeat=True), "any", name=ROOT, tools=[branch.as_tool()])
    return [root, branch, leaf]


def _rested(request: ModelRequest) -> Answer:
    done = request.messages[-1].tool_results
    return answer(done[0].text if done else tool_call("sleep"))


def _asks(below: str) -> Callable[[ModelRequest], Answer]:
    def reply(request: ModelRequest) -> Answer:
        if done := request.messages[-1].tool_results:
            return answer(" ".join(one.text for one in done))
        return answer(*(tool_call(below, input=f"part {number}") for number in range(WIDTH)))

    return reply


class Trees:
    """``trouble`` has a sentence for each broken promise."""

    def __init__(self, client: AsyncClient, seed: int) -> None:
        self._client, self._seed = client, seed
        self._roots: list[AsyncTurn] = []
        self.cancelled: set[str] = set()  # the roots whose cancel was accepted
        self.trouble: list[str] = []
        self.counts: Counter[str] = Counter()

    async def run(self, over: Callable[[], bool]) -> None:
        """Plant one tree after another in each session."""
        await asyncio.gather(*(self._plant(f"tree{number}", over) for number in range(SESSIONS)))

    async def _plant(self, session: str, over: Callable[[], bool]) -> None:
        chance, number = random.Random(f"{self._seed} {session}"), 0
        while not over():
            number += 1
            key = f"{session}-{number}"
            root = await until_stored(
                lambda key=key: self._client.submit(session, key, key=key, agent=ROOT), self._roots.append
            )
            if chance.random() < CANCELLED:
                await asyncio.sleep(chance.uniform(0, LONGEST_SECONDS))
                answered = await until_stored(lambda root=root: root.cancel("the client changed its mind"))
                self.cancelled |= {root.id} if answered in ("requested", "cancelled") else set()
            with suppress(AgentError):
                await root.result(20)

    async def check(self, client: AsyncClient) -> None:
        """Read everything back."""
        logs = {name: await events_of(client, name) for name in (f"tree{n}" for n in range(SESSIONS))}
        for session, events in logs.items():
            if any(one.seq + 1 != other.seq for one, other in pairwise(events)):
                self.trouble.append(f"{session}: the events are not dense")
        for root in self._roots:
            found = await (await client.turn(root.id)).tree()
            self.check_tree(found, [one for one in logs[root.session_id] if one.turn_id == root.id])

    def check_tree(self, root: TurnTree, events: list[Event]) -> None:
        """Check that no turn of a tree outlives its root, and that a finished tree has each turn once."""
        self.counts[f"roots {root.status}"] += 1
        if root.turn_id in self.cancelled and root.status != "cancelled":
            self._wrong(root, f"was cancelled, and is {root.status}")
        turns = [*_below(root)]
        self.counts["turns"] += 1 + len(turns)
        for one in turns:
            late = ((one.ended or 0) - (root.ended or 0)) / 1000
            if one.status not in TERMINAL or (one.status == "finished" and late > ORPHAN_SECONDS):
                self._wrong(root, f"has left {one.turn_id} behind: it is {one.status}, {late:g} s later")
        if len({one.turn_id for one in turns}) != len(turns) or len(turns) >= TURNS:
            self._wrong(root, f"has {len(turns)} turns below it")
        whole = root.status == "finished" and all(one.status == "finished" for one in turns)
        if whole and len(turns) != TURNS - 1:
            self._wrong(root, f"has finished with {len(turns)} turns below it")
        self._check_stream(root, events)

    def _check_stream(self, root: TurnTree, events: list[Event]) -> None:
        """Check that each child begins and ends once in the stream of its root, and that the root ends once."""
        if (ends := sum(event.terminal for event in events)) != 1:
            self._wrong(root, f"has ended {ends} times")
        for child in root.children:
            seen = [
                one.event for one in events if one.type == "child_event" and one.child_id == child.turn_id
            ]
            if seen and not is_whole(seen, finished=root.status == "finished"):
                self._wrong(
                    root, f"shows {child.turn_id} as {[(one.get('seq'), one['type']) for one in seen]}"
                )

    def _wrong(self, root: TurnTree, what: str) -> None:
        self.trouble.append(f"the tree {root.turn_id} {what}")


def _below(found: TurnTree) -> list[TurnTree]:
    return [one for child in found.children for one in (child, *_below(child))]
