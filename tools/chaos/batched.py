"""Turns answered in batches by a miniature service while everything breaks."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from support.services.batch_server import BatchServer, Body, said_by

from antiphon.agent import Agent
from antiphon.client import AsyncClient
from antiphon.errors import AgentError, ResultTimeout, StoreError, TurnCancelled
from antiphon.redis.turn import AsyncTurn
from antiphon.tools import tool
from antiphon.wire.errors import asked
from antiphon_worker import batches
from antiphon_worker.providers.anthropic.provider import Anthropic
from antiphon_worker.providers.base import Provider
from antiphon_worker.providers.openai_responses.provider import OpenAIResponses

SESSIONS = 4
RUNS_SECONDS = 0.3
"""How long the service takes to run a batch."""
LEASE_SECONDS = 10.0
"""Longer than any pause of a worker: a worker that pauses longer may send a batch twice (G27)."""
ASKS, CANCELLED = 0.5, 0.2
RESULT_SECONDS, PAUSE_SECONDS = 5.0, 0.2
SETTINGS = {"batch_seconds": 0.3, "batch_poll": 0.3}
KINDS = ("openai", "anthropic")
CRASHED = "worker_crashed"


def batched_agents() -> list[Agent]:
    """Return an agent for each service, with a tool that runs between two batches."""

    @tool
    async def look_up(text: str) -> str:
        """Look something up."""
        return f"found {text}"

    return [Agent(kind, "m", name=f"batched-{kind}", tools=[look_up], max_tokens=50) for kind in KINDS]


def batched_providers(url: str) -> dict[str, Provider]:
    """Return the providers, in a worker process, where a dead worker's batch is taken over after seconds."""
    batches.LEASE_SECONDS = LEASE_SECONDS
    return {
        "openai": OpenAIResponses(base_url=f"{url}/v1", api_key="k"),
        "anthropic": Anthropic(base_url=url, api_key="k"),
    }


def answer(body: Body) -> Body:
    """Return the answer of a service: first a tool call if the question asks for one, then the question repeated."""
    kind = "openai" if "input" in body else "anthropic"
    turns: list[Any] = body["input"] if kind == "openai" else body["messages"]
    question = [text for one in turns if (text := _text(one)).startswith("ask ")][-1]
    if question.endswith("tool") and not _has_result(turns[-1]):
        return said_by(kind, "", ("look_up", {"text": question}))
    return said_by(kind, f"to {question}")


def _text(message: Body) -> str:
    content = message.get("content") if message.get("role") == "user" else None
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return str(content or "")


def _has_result(last: Body) -> bool:
    return last.get("type") == "function_call_output" or "tool_result" in str(last.get("content"))


class Batched:
    """``trouble`` has a sentence for each turn without the right answer, and for steps that were paid twice."""

    def __init__(self, client: AsyncClient, server: BatchServer, seed: int) -> None:
        self._client, self._server, self._seed = client, server, seed
        self.counts: Counter[str] = Counter()
        self.trouble: list[str] = []
        self._open: set[str] = set()

    async def run(self, over: Callable[[], bool]) -> None:
        """Ask in all sessions, and wait until all batches have ended."""
        serving = asyncio.create_task(self._serve())
        try:
            await asyncio.gather(*(self._talk(f"batched{number}", over) for number in range(SESSIONS)))
            while not await self._all_over():  # noqa: ASYNC110 - Redis sends no notification
                await asyncio.sleep(PAUSE_SECONDS)
        finally:
            serving.cancel()

    async def _serve(self) -> None:
        while True:
            await asyncio.sleep(RUNS_SECONDS)
            running = [
                one for one in self._server.orders
                if self._server.batches.get(one, {}).get("status") == "in_progress" or one in self._server.messages
            ]  # fmt: skip
            if running:
                self._server.finish(*running)

    async def _talk(self, session: str, over: Callable[[], bool]) -> None:
        chance, number = random.Random(f"{self._seed} {session}"), 0
        while not over():
            number += 1
            text = f"ask {session} {number}" + (" tool" if chance.random() < ASKS else "")
            turn = await self._submit(session, text, chance.choice(KINDS))
            if chance.random() < CANCELLED:
                await asyncio.sleep(chance.random() * 2)
                await self._cancel(turn)
            self._open.add(text)
            await self._ends(turn, f"to {text}")
            self._open.remove(text)

    async def _submit(self, session: str, text: str, kind: str) -> AsyncTurn:
        while True:
            with suppress(AgentError):
                return await self._client.submit(
                    session, text, key=text, agent=f"batched-{kind}", service="batch"
                )
            await asyncio.sleep(PAUSE_SECONDS)

    async def _cancel(self, turn: AsyncTurn) -> None:
        while True:
            with suppress(AgentError):
                await turn.cancel()
                return
            await asyncio.sleep(PAUSE_SECONDS)

    async def _ends(self, turn: AsyncTurn, expected: str) -> None:
        while True:
            try:
                found = (await turn.result(RESULT_SECONDS)).text
            except TurnCancelled:
                self.counts["cancelled"] += 1
                return
            except (ResultTimeout, StoreError):
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            except AgentError as exc:
                self.counts["failed"] += 1
                if exc.code != CRASHED:
                    self.trouble.append(f"{turn.session_id}: a turn in batches failed: {exc.message}")
                return
            self.counts["answered"] += 1
            if found != expected:
                self.trouble.append(f"{turn.session_id}: {found!r} was answered instead of {expected!r}")
            return

    async def _all_over(self) -> bool:
        with suppress(StoreError):
            return not any([
                await asked(cell.redis.exists(cell.keys.batches, cell.keys.batch_groups))
                for cell in self._client.connections.cells
            ])  # fmt: skip
        return False

    async def check(self, client: AsyncClient) -> None:
        """Check that no step was paid twice or at the usual price, and that nothing is left at the services."""
        self._client = client
        server = self._server
        paid = Counter(one["custom_id"] for requests in server.requests.values() for one in requests)
        self.counts["steps"], self.counts["batches"] = len(paid), len(server.orders)
        if twice := [step for step, times in paid.items() if times > 1]:
            self.trouble.append(f"{len(twice)} steps were sent in two batches: {twice[:5]}")
        if self._open:
            self.trouble.append(f"turns in batches never ended: {sorted(self._open)}")
        if server.usual:
            self.trouble.append(f"{len(server.usual)} steps were answered at the usual price")
        if not await self._all_over():
            self.trouble.append("batches never ended")
        elif server.messages or any(batch["status"] == "in_progress" for batch in server.batches.values()):
            self.trouble.append("batches are left at a service")
