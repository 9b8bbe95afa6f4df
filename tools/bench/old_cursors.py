"""The cost of resuming with old cursors: ``python -m bench.old_cursors`` prints tables. It starts its own Redis.

The tables have the memory of an idle session by the length of its log, of its notes by the number of its turns, the
size of the archived copy, and how long a reader with the first cursor takes to read a long history in pages.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tempfile
import time
from pathlib import Path

from redis import Redis
from support.servers import RedisServer

from antiphon import AsyncClient, Message
from antiphon.input.ids import SessionId, new_turn_id
from antiphon.redis.past import PAGE
from antiphon.wire.cell import Cell
from antiphon.wire.editing import Change, change_session, new_op
from antiphon.wire.ends import is_of_ends

DELTA = b'{"type":"text_delta","session_id":"s","turn_id":"%s","run":1,"attempt":1,"step":1,"text":"word "}'
TEXT = "x" * 200
LOGS = (10, 100, 1_000, 10_000)
TURNS = (10, 100, 1_000, 10_000)
MESSAGES = 100_000
KINDS = ("session", "history", "events", "turns")


async def converse(cell: Cell, session: str, turns: int, events: int) -> None:
    """Add turns of two messages, with notes and a log as a worker writes them, and ``events`` events in all."""
    each = max(1, events // turns)
    for number in range(turns):
        turn = new_turn_id(SessionId(session))
        said = [
            Message(
                role, Message.user(TEXT).parts, turn_id=turn, id=f"{turn}.{place}", created=number
            ).to_json()
            for place, role in enumerate(("user", "assistant"), 1)
        ]
        change = Change([], messages=said, bodies=[DELTA % turn.encode()] * each)
        await change_session(cell, SessionId(session), new_op(), change, when="any", ttl_ms=None)


def memory(redis: Redis, session: str) -> dict[str, int]:
    return {kind: int(redis.memory_usage(f"ant:{kind}:{session}") or 0) for kind in KINDS}


def notes(redis: Redis, session: str) -> int:
    """Return the bytes of the notes with the names of their fields."""
    fields = redis.hgetall(f"ant:session:{session}")
    return sum(len(name) + len(value) for name, value in fields.items() if is_of_ends(name.decode()))


async def catch_up(client: AsyncClient, session: str, last: int) -> tuple[int, float]:
    began, found = time.monotonic(), 0
    async for event in client.subscribe(session, after=1):
        found += len(event.messages) if event.type == "message" else 0
        if event.seq >= last:
            return found, time.monotonic() - began
    raise AssertionError


async def measure(url: str) -> None:
    async with AsyncClient(url) as client:
        (cell,) = client.connections.cells
        with Redis.from_url(url) as redis:
            print("events in the log | session | history | events | together")
            for number in LOGS:
                await converse(cell, f"log{number}", 5, number)
                found = memory(redis, f"log{number}")
                print(
                    number,
                    found["session"],
                    found["history"],
                    found["events"],
                    sum(found.values()),
                    sep=" | ",
                )
            print("turns | notes, bytes | session | history | archived copy, bytes")
            for number in TURNS:
                await converse(cell, f"turns{number}", number, number)
                found = memory(redis, f"turns{number}")
                data = await client.session(f"turns{number}").to_dict()
                size = stored(data)
                print(
                    number,
                    notes(redis, f"turns{number}"),
                    found["session"],
                    found["history"],
                    size,
                    sep=" | ",
                )
            await converse(cell, "long", MESSAGES // 2, MESSAGES)
            last = int(redis.hget("ant:session:long", "seq") or 0)
            redis.xtrim("ant:events:long", minid=f"{last}-0", approximate=False)
            count, seconds = await catch_up(client, "long", last)
            print(
                f"{count:,} messages in pages of {PAGE}: {seconds:.1f} s, {notes(redis, 'long'):,} bytes of notes"
            )


def stored(data: object) -> int:
    """Return the size of a copy in a SQLite file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "archive.db"
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE copies (id TEXT PRIMARY KEY, data TEXT)")
            empty = path.stat().st_size
            database.execute("INSERT INTO copies VALUES ('s', ?)", [json.dumps(data)])
        return path.stat().st_size - empty


def main() -> None:
    with RedisServer("valkey") as server:
        asyncio.run(measure(server.url))


if __name__ == "__main__":
    main()
