"""A program that runs on either release: it submits turns to sessions, and reads every session of the run.

``python older_client.py URL SEED FOLDER``, with ``sessions.json`` in the folder: the sessions to talk in and to read.
It talks until the file ``stop`` exists, then writes ``talked.json``. It reads up to the events in ``ends.json``, and
writes ``seen.json``.
"""

import asyncio
import json
import random
import sys
from collections.abc import Callable
from contextlib import aclosing, suppress
from pathlib import Path

from antiphon import AsyncClient
from antiphon.errors import AgentError, StoreError
from antiphon.input.request import AgentSpec

WORK = ("words:3", "words:3", "words:20", "tool:note words:3", "tool:note tool:pay words:3", "fail:broken*1",
        "fail:rejected", "die*1 words:3")  # fmt: skip
AGENT = AgentSpec(provider="stage", model="stage-1", tools=["note", "pay"])
PATIENCE_SECONDS = 30.0


class Sessions:
    """The submitted turns, and the numbers and types of the seen events."""

    def __init__(self, client: AsyncClient, seed: str, folder: Path) -> None:
        self.client, self.seed, self.folder = client, seed, folder
        self.turns: dict[str, list[dict[str, str]]] = {}
        self.seen: dict[str, list[tuple[int, str]]] = {}

    async def run(self) -> None:
        plan = json.loads((self.folder / "sessions.json").read_text())
        readers = [asyncio.create_task(self.read(session)) for session in plan["reads"]]
        await asyncio.gather(*(self.talk(session) for session in plan["talks"]))
        self.write("talked.json", self.turns)
        ends = await self.asked_for()
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await until(lambda: all(self.reached(session, ends[session]) for session in ends))
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        self.write("seen.json", self.seen)

    async def talk(self, session: str) -> None:
        chance, number = random.Random(f"{self.seed} {session}"), 0
        turns = self.turns.setdefault(session, [])
        while not (self.folder / "stop").exists():
            number += 1
            text, key = f"{session} says {number} {chance.choice(WORK)}", f"key-{number}"
            while True:
                try:
                    turn = await self.client.submit(session, text, key=key, agent=AGENT)
                    break
                except StoreError:
                    await asyncio.sleep(0.1)
            turns.append({"id": turn.id, "text": text, "key": key})
            with suppress(AgentError):
                if chance.random() < 0.1:
                    await turn.cancel("the client changed its mind")
                elif chance.random() < 0.7:
                    await turn.result(20)

    async def read(self, session: str) -> None:
        seen = self.seen.setdefault(session, [])
        while True:
            try:
                async with aclosing(self.client.subscribe(session, seen[-1][0] if seen else 0)) as events:
                    async for event in events:
                        seen.append((event.seq, event.to_dict().get("fields", {}).get("type", event.type)))
            except StoreError:
                await asyncio.sleep(0.1)

    def reached(self, session: str, end: int) -> bool:
        return end == 0 or (bool(self.seen[session]) and self.seen[session][-1][0] >= end)

    async def asked_for(self) -> dict[str, int]:
        await until((self.folder / "ends.json").exists)
        return json.loads((self.folder / "ends.json").read_text())

    def write(self, name: str, what: object) -> None:
        (self.folder / f"{name}.new").write_text(json.dumps(what))
        (self.folder / f"{name}.new").rename(self.folder / name)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - it waits for a file or another process
        await asyncio.sleep(0.1)


async def main(url: str, seed: str, folder: str) -> None:
    async with AsyncClient(url) as client:
        await Sessions(client, seed, Path(folder)).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
