"""Push notifications: each turn has its own endpoint; some of the first notifications are refused."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress

from support.receiver import Receiver

from antiphon.client import AsyncClient
from antiphon.errors import AgentError
from antiphon.redis.turn import AsyncTurn
from antiphon.wire.pushes import Push, set_push
from antiphon_worker.pushes import STATES
from chaos.errands import until_stored
from chaos.travellers import GUIDES

SESSIONS, LATE_SECONDS = 3, 1.0
ANSWERS, REFUSES = (*[200] * 5, 500, 503, 429), 24  # the number of random answers; all others are 200
CANCELLED = 0.3


class Pushed:
    """``trouble`` has a sentence for each broken promise."""

    def __init__(self, client: AsyncClient, seed: int, receiver: Receiver) -> None:
        self._client, self._seed, self.receiver = client, seed, receiver
        self._turns: dict[str, AsyncTurn] = {}  # by the path of its endpoint
        self.trouble: list[str] = []
        self.counts: Counter[str] = Counter()

    async def run(self, over: Callable[[], bool]) -> None:
        """Submit turns and ask for notifications about them, some only after their end."""
        self.receiver.answers += random.Random(self._seed).choices(ANSWERS, k=REFUSES)
        await asyncio.gather(*(self._talk(f"pushed{number}", over) for number in range(SESSIONS)))

    async def _talk(self, session: str, over: Callable[[], bool]) -> None:
        chance, number = random.Random(f"{self._seed} {session}"), 0
        while not over():
            number += 1
            key = f"{session}-{number}"
            turn: AsyncTurn = await until_stored(
                lambda key=key: self._client.submit(session, key, key=key, agent=chance.choice(GUIDES))
            )
            await asyncio.sleep(chance.choice((0, chance.uniform(0, LATE_SECONDS))))
            await until_stored(lambda key=key, turn=turn: self._ask(f"/{key}", turn))
            if chance.random() < CANCELLED:
                with suppress(AgentError):
                    await turn.cancel("the client changed its mind")
            with suppress(AgentError):
                await turn.result(15)

    async def _ask(self, path: str, turn: AsyncTurn) -> None:
        url, cell = (
            f"http://127.0.0.1:{self.receiver.port}{path}",
            self._client.connections.cell_of_turn(turn.id),
        )
        push = Push("chaos", "chaos", url, [*STATES], token=f"token of {path}", private=True)
        await set_push(cell, turn.id, turn.session_id, push)
        self._turns[path] = turn

    def heard(self) -> dict[tuple[str, str], int]:
        """Return how often each endpoint acknowledged each state."""
        told = [*self.receiver.acknowledged]
        return Counter((one.path, json.loads(one.body)["statusUpdate"]["status"]["state"]) for one in told)

    def all_told(self) -> bool:
        """Return whether each endpoint acknowledged something."""
        return self._turns.keys() <= {path for path, _ in self.heard()}

    async def check(self, client: AsyncClient) -> None:
        """Read the final states of the turns, and check the notifications."""
        ended: dict[str, tuple[str, str]] = {}
        for path, turn in self._turns.items():
            ended[path] = turn.id, (await (await client.turn(turn.id)).info()).status
        self.check_heard(ended)

    def check_heard(self, turns: Mapping[str, tuple[str, str]]) -> None:
        """Check that each turn's endpoint received its end and nothing else. ``turns``: path to (id, status)."""
        heard = self.heard()
        expected = {(path, STATES.get(f"turn_{how}", how)) for path, (_, how) in turns.items()}
        self.counts.update(status for _, status in turns.values())
        self.counts.update(
            {"told": sum(heard.values()), "refused": len(self.receiver.received) - sum(heard.values())}
        )
        for path, state in expected - heard.keys():
            self._wrong(f"{path} was never told {state}")
        for path, state in heard.keys() - expected:
            self._wrong(f"{path} was told {state}")
        for one in self.receiver.received:
            turn = json.loads(one.body)["statusUpdate"]["taskId"]
            mine = one.headers.get("x-a2a-notification-token") == f"token of {one.path}"
            if turn != turns.get(one.path, ("", ""))[0] or not mine:
                self._wrong(f"{one.path} was told of {turn}")

    def _wrong(self, what: str) -> None:
        self.trouble.append(f"the endpoint {what}")
