"""Recall: planted facts found again, against a plain search; how late turns are indexed, and the cost of recall."""

import asyncio
import random
import tempfile
import time
from pathlib import Path

from support.eventually import wait_until_async
from support.servers import RedisServer

from antiphon.agent import Agent
from antiphon.client import AsyncClient
from antiphon.memory import FaissStore, Memory, WordEmbeddings
from antiphon.redis.turn import AsyncTurn
from antiphon.testing import Script, script
from antiphon.wire.lists.memories import Remembered, waiting_sessions, which_known
from antiphon_worker.app import App
from antiphon_worker.process.worker import Worker
from antiphon_worker.providers.scripted import ScriptedProvider
from antiphon_worker.settings import Settings
from bench.results import Plan, Result

TITLE = "what a memory finds, and what that costs"
SESSIONS, FACTS, TIMED = 500, 200, 60
AT_ONCE = 25
KINDS = ("dog", "cat", "boat", "guitar", "bicycle", "garden", "sister", "neighbour", "bakery", "telescope")
NAMES = (
    "Bruno",
    "Mira",
    "Otto",
    "Selma",
    "Figaro",
    "Wanda",
    "Pavel",
    "Ines",
    "Tasso",
    "Ronja",
    "Elwin",
    "Juna",
)
SMALL_TALK = (
    "What is the weather like this week?", "Write a short poem about the sea.", "How do I boil an egg?",
    "Give me a title for my talk.", "Translate good morning into French.", "What should I read next?",
)  # fmt: skip


def facts(count: int, chance: random.Random) -> list[tuple[str, str, str]]:
    """Return sentences, questions about them, and for each a word that occurs only in its sentence."""
    found: list[tuple[str, str, str]] = []
    syllables = ("ba", "ri", "to", "men", "sul", "ka", "vo", "lin", "dra", "pe", "zu", "how")
    for number in range(count):
        kind, word = chance.choice(KINDS), f"{chance.choice(NAMES)}-{number}"
        friend = "".join(chance.choice(syllables) for _ in range(4)).title()
        sentence = f"By the way, the {kind} of my friend {friend} is called {word}."
        found.append((sentence, f"What is the {kind} of {friend} called?", word))
    return found


async def measure(plan: Plan, result: Result) -> None:
    sessions, planted = plan.pick(SESSIONS, 50), plan.pick(FACTS, 20)
    with RedisServer() as server, tempfile.TemporaryDirectory() as folder:
        store = FaissStore(Path(folder), WordEmbeddings())
        memory = Memory(store, scope="tenant", recall="start")
        agents = [Agent("shows", "any", name="host", memory=memory), Agent("shows", "any", name="plain")]
        lines = script("Noted.", repeat=True)
        app = App(agents=agents, providers={"shows": ScriptedProvider(lines)})
        worker = Worker(Settings(redis_url=server.url, drain=5.0), app)
        running = asyncio.create_task(worker.run())
        try:
            async with AsyncClient(server.url) as client:
                known = facts(planted, random.Random(7))
                await _said(result, client, known, sessions)
                await _found(result, client, store, lines, known, sessions)
                await _first_deltas(result, client, known, plan.pick(TIMED, 5))
        finally:
            worker.drain()
            await running


async def _said(
    result: Result, client: AsyncClient, known: list[tuple[str, str, str]], sessions: int
) -> None:
    """Plant the facts among small talk, and measure how long after their end turns are indexed, while others run."""
    chance = random.Random(11)
    texts = [fact[0] for fact in known] + [
        chance.choice(SMALL_TALK) for _ in range(2 * sessions - len(known))
    ]
    chance.shuffle(texts)
    room, lags, began = asyncio.Semaphore(AT_ONCE), list[float](), time.monotonic()

    async def say(index: int, text: str) -> None:
        async with room:
            turn = await client.submit(f"s{index % sessions}", text, agent="host", tenant="user")
            await turn.result(120)
        if index % 10 == 0:
            ended = time.monotonic()
            await wait_until_async(lambda: _is_indexed(client, turn), 60, "it is indexed", 0.02)
            lags.append((time.monotonic() - ended) * 1000)

    await asyncio.gather(*(say(index, text) for index, text in enumerate(texts)))
    took = time.monotonic() - began
    lags.sort()
    load = f"{len(texts):,} turns of {sessions} sessions, {AT_ONCE} at once"
    result.add(load, "turns a second", len(texts) / took, "")
    result.add(load, "from a turn's end to the index, p50", lags[len(lags) // 2], "ms")
    result.add(load, "from a turn's end to the index, longest", lags[-1], "ms")
    await wait_until_async(lambda: _nothing_waits(client), 60)


async def _found(
    result: Result,
    client: AsyncClient,
    store: FaissStore,
    lines: Script,
    known: list[tuple[str, str, str]],
    sessions: int,
) -> None:
    """Ask for each fact; count if it is shown to the model, and if a plain search of the same store finds it."""
    plain = recalled = 0
    for number, (_, question, word) in enumerate(known):
        plain += any(word in one.page_content for one in await store.asimilarity_search(question, 5))
        turn = await client.submit(f"asking-{number}", question, agent="host", tenant="user")
        await turn.result(20)
        recalled += any(word in message.text for message in lines.requests[-1].messages)
    what = f"{len(known)} facts, said once in {sessions} sessions"
    result.add(what, "shown to the model, among five passages", 100 * recalled / len(known), "%")
    result.add(what, "found by a plain search of the store, among five", 100 * plain / len(known), "%")


async def _first_deltas(
    result: Result, client: AsyncClient, known: list[tuple[str, str, str]], rounds: int
) -> None:
    """Measure submit to first delta alternately with recall at the start and without, under equal conditions."""
    first: dict[str, list[float]] = {"host": [], "plain": []}
    for number in range(rounds):
        for agent, times in first.items():
            at = time.perf_counter()
            question = known[number % len(known)][1]
            turn = await client.submit(f"timed-{agent}-{number}", question, agent=agent, tenant="user")
            async for event in turn.stream():
                if event.type == "text_delta":
                    break
            times.append((time.perf_counter() - at) * 1000)
            await turn.result(20)
    recalls = result.add("submit to first delta", "with recall at the start", first["host"], "ms")
    without = result.add("submit to first delta", "without a memory", first["plain"], "ms")
    result.add("submit to first delta", "with recall against without", recalls / without, "×")


async def _is_indexed(client: AsyncClient, turn: AsyncTurn) -> bool:
    cell = client.connections.cell_of_turn(turn.id)
    (known,) = await which_known(cell, "memory", [Remembered(turn.session_id, turn.id)])
    return known


async def _nothing_waits(client: AsyncClient) -> bool:
    return not await waiting_sessions(next(iter(client.connections.cells)), "memory")
