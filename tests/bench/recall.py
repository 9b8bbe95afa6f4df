"""Recall measured: facts planted in sessions, found among the first five, and what recall costs before the first delta.

PYTHONPATH=tests python -m bench.recall        (ARGS: --sessions 500 --facts 200)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from support.eventually import wait_until_async
from support.servers import RedisServer, installed_kinds

from antiphon.agent import Agent
from antiphon.client import AsyncClient
from antiphon.memory import FaissStore, Memory, WordEmbeddings
from antiphon.testing import script
from antiphon.wire.lists.memories import waiting_sessions
from antiphon_worker.app import App
from antiphon_worker.process.worker import Worker
from antiphon_worker.providers.scripted import ScriptedProvider
from antiphon_worker.settings import Settings

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
    """Return sentences, questions about them, and a word that stands in the sentence alone."""
    found: list[tuple[str, str, str]] = []
    syllables = ("ba", "ri", "to", "men", "sul", "ka", "vo", "lin", "dra", "pe", "zu", "how")
    for number in range(count):
        kind, word = chance.choice(KINDS), f"{chance.choice(NAMES)}-{number}"
        friend = "".join(chance.choice(syllables) for _ in range(4)).title()
        sentence = f"By the way, the {kind} of my friend {friend} is called {word}."
        found.append((sentence, f"What is the {kind} of {friend} called?", word))
    return found


async def measure(url: str, folder: Path, sessions: int, planted: int) -> dict[str, Any]:
    chance = random.Random(7)
    store = FaissStore(folder, WordEmbeddings())
    memory = Memory(store, scope="tenant", recall="start")
    agents = [Agent("shows", "any", name="host", memory=memory), Agent("shows", "any", name="plain")]
    lines = script("Noted.", repeat=True)
    shows = ScriptedProvider(lines)
    worker = Worker(Settings(redis_url=url, drain=5.0), App(agents=agents, providers={"shows": shows}))
    running = asyncio.create_task(worker.run())
    known = facts(planted, chance)
    texts = [fact[0] for fact in known] + [chance.choice(SMALL_TALK) for _ in range(2 * sessions - planted)]
    chance.shuffle(texts)
    began = time.monotonic()
    async with AsyncClient(url) as client:
        turns = [
            await client.submit(f"s{index % sessions}", text, agent="host", tenant="user")
            for index, text in enumerate(texts)
        ]
        await asyncio.gather(*(turn.result(120) for turn in turns))
        ended = time.monotonic()
        await wait_until_async(lambda: _nothing_waits(client), 60)
        lag = time.monotonic() - ended
        plain = recalled = 0
        for number, (_, question, word) in enumerate(known):
            plain += any(word in one.page_content for one in await store.asimilarity_search(question, 5))
            turn = await client.submit(f"asking-{number}", question, agent="host", tenant="user")
            await turn.result(20)
            recalled += any(word in message.text for message in lines.requests[-1].messages)
        first: dict[str, list[float]] = {"with": [], "without": []}
        for number in range(60):
            for name, agent in (("with", "host"), ("without", "plain")):
                at = time.perf_counter()
                turn = await client.submit(
                    f"timed-{agent}-{number}", known[number][1], agent=agent, tenant="user"
                )
                async for event in turn.stream():
                    if event.type == "text_delta":
                        break
                first[name].append((time.perf_counter() - at) * 1000)
                await turn.result(20)
    worker.drain()
    await running
    return {
        "turns": len(texts), "sessions": sessions, "facts": planted, "seconds_of_turns": round(ended - began, 2),
        "index_lag_after_the_last_turn": round(lag, 2), "plain_hits_at_5": plain / planted,
        "recalled_at_5": recalled / planted,
        "first_delta_ms": {name: round(statistics.median(values), 2) for name, values in first.items()},
    }  # fmt: skip


async def _nothing_waits(client: AsyncClient) -> bool:
    return not await waiting_sessions(client.connections.cells.of_session("s"), "memory")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.recall", description=__doc__)
    parser.add_argument("--sessions", type=int, default=500)
    parser.add_argument("--facts", type=int, default=200)
    options = parser.parse_args()
    with RedisServer(installed_kinds()[0]) as server, tempfile.TemporaryDirectory() as folder:
        print(
            json.dumps(
                asyncio.run(measure(server.url, Path(folder), options.sessions, options.facts)), indent=1
            )
        )


if __name__ == "__main__":
    main()
