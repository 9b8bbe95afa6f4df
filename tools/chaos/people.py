"""People who decide about calls that wait: several at once about the same one, while everything breaks."""

import asyncio
import random
from collections import defaultdict

from antiphon.client import AsyncClient
from antiphon.errors import AgentError, AlreadyDecided, StoreError
from antiphon.model import DecisionKind
from antiphon.redis.turn import AsyncTurn

NAMES = ("ada", "bob", "eve")
LOOK_SECONDS = 0.3


class People:
    """``made`` has for each call what each of them was told to be in force: who decided what."""

    def __init__(self, client: AsyncClient, seed: int) -> None:
        self._client = client
        self._seed = seed
        self.made: dict[tuple[str, str], set[tuple[str, DecisionKind]]] = defaultdict(set)

    async def decide_all(self) -> None:
        """Decide about whatever waits, until cancelled."""
        await asyncio.gather(*(self._decide_as(name) for name in NAMES))

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
            except AlreadyDecided as exc:  # perhaps by this very call, whose answer was lost
                self.made[turn.id, call].add((exc.decision.by or "", exc.decision.kind))
                return
            except StoreError:
                await asyncio.sleep(0.1)
