"""A cell for tests: the real scripts, a clock that the test moves, and shortcuts to a claimed turn."""

import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from antiphon.input.ids import Fence, SessionId, TurnId
from antiphon.model import Decision, DecisionKind, OpenCall, Usage
from antiphon.redis.fields import FORKED_FIELDS
from antiphon.wire.cell import Cell
from antiphon.wire.connection.open import open_redis
from antiphon.wire.editing import Part, fork_session
from antiphon.wire.records import ClaimedTurn, Claims, Emit, NewTurn, Reaped
from antiphon.wire.scripts import load_script, script_names
from antiphon.wire.suspension import decide, suspend

LEASE_MS = 10_000
# Far in the future, so that RQ's own cleaning, which uses the real clock, leaves everything alone.
START_MS = 4_000_000_000_000


def body(kind: str = "text_delta", turn: str = "t1", run: int = 1, **more: Any) -> bytes:
    """Return the bytes of an event as a worker encodes it."""
    return json.dumps({"type": kind, "turn_id": turn, "run": run, **more}, separators=(",", ":")).encode()


async def load_scripts(cell: Cell) -> None:
    """Load every script into the server, so that no later call has to send one."""
    redis: Any = cell.redis
    for name in script_names():
        await redis.execute_command("SCRIPT LOAD", load_script(name, cell.clock, cell.keys.tag != "").source)


class TestCell(Cell):
    """A cell with the test clock, and with defaults for whatever is irrelevant to a test."""

    __test__ = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, clock="test_clock", **options)
        self._tokens = itertools.count(1)

    async def set_clock(self, ms: int) -> None:
        await self.redis.set(f"{self.keys.prefix}:test_clock", ms, ex=3600)

    async def wait(self, ms: int) -> None:
        """Let time pass."""
        await self.redis.incrby(f"{self.keys.prefix}:test_clock", ms)

    async def now(self) -> int:
        return int(await self.redis.get(f"{self.keys.prefix}:test_clock"))

    async def put(self, turn: str = "t1", session: str = "s", text: bytes = b"{}", **options: Any) -> int:
        """Submit a turn."""
        options = {"digest": turn, "queue": "antiphon", **options}
        return await self.submit(NewTurn(SessionId(session), TurnId(turn), text, **options))

    async def put_each(self, *turns: str) -> None:
        """Submit these turns to the same session."""
        for turn in turns:
            await self.put(turn)

    async def take(self, worker: str = "w1", limit: int = 8, **options: Any) -> Claims:
        """Claim turns with a new token."""
        token = options.pop("token", None) or f"token{next(self._tokens)}"
        options = {"lease_ms": LEASE_MS, "queues": ["antiphon"], "alone_limit": limit, **options}
        return await self.claim(worker, token, limit=limit, **options)

    async def take_one(self, worker: str = "w1", **options: Any) -> ClaimedTurn:
        claims = await self.take(worker, **options)
        assert len(claims.turns) == 1, claims
        return claims.turns[0]

    async def started(self, turn: str = "t1", *more: Any, **options: Any) -> ClaimedTurn:
        """Submit a turn, and claim it."""
        await self.put(turn, *more, **options)
        claimed = await self.take_one()
        assert claimed.turn_id == turn, claimed
        return claimed

    async def reap_after(self, ms: int) -> list[Reaped]:
        """Let time pass, and reap."""
        await self.wait(ms)
        return await self.reap()

    async def say(self, turn: ClaimedTurn, batch: int, *bodies: bytes) -> str | Exception:
        """Emit one window."""
        return (await self.emit([Emit(turn.session_id, turn.fence, batch, bodies)]))[0]

    async def end(self, turn: ClaimedTurn, status: str = "finished", **options: Any) -> bool:
        """Finish a turn, with the terminal event of the status."""
        options.setdefault("messages", [f'"{turn.turn_id}"'.encode()] if status == "finished" else [])
        return await self.finish(
            turn, status, bodies=[body(f"turn_{status}", turn.turn_id, turn.run)], **options
        )

    async def hold(self, turn: ClaimedTurn, *calls: OpenCall, aside: bool = False) -> str | None:
        """Suspend a turn after one more step, for one call c1 that waits for an approval, or for ``calls``."""
        length = len(turn.journal)
        await self.append_step(turn, length=length, step=2, entries=[b'{"step":1}'], bodies=[])
        event = body("step_finished", turn.turn_id, turn.run)
        waiting = calls or [OpenCall("c1", "pay")]
        return await suspend(self, turn, waiting, bodies=[event], aside=Usage() if aside else None)

    async def decide(
        self, call: str = "c1", kind: DecisionKind = "approve", turn: str = "t1", **said: Any
    ) -> None:
        await decide(self, TurnId(turn), Decision(call, kind, **said))

    async def settle(self) -> None:
        """Let time pass and finish turns until nothing is left to do."""
        await self.redis.delete("rq:suspended")
        for _ in range(50):
            if not await self.redis.exists(self.keys.active, self.keys.due, self.keys.aside):
                return
            await self.wait(31 * 24 * 3600_000 if await self.redis.exists(self.keys.suspended) else 3600_000)
            await self.reap()
            queues = [key.decode()[9:] for key in await self.redis.smembers("rq:queues")]
            claims = await self.take("settler", limit=100, queues=queues)
            for only in claims.alone:
                claims.turns.extend((await self.take("settler", only=only)).turns)
            for turn in claims.turns:
                assert await self.end(turn, "cancelled" if turn.stop else "finished")
        raise AssertionError(f"Turns that never end: {await self.redis.zrange(self.keys.active, 0, -1)}")

    async def events(self, session: str = "s") -> list[dict[str, Any]]:
        """Return all kept events; fail unless their ids are their seqs."""
        entries = await self.redis.xrange(self.keys.events(SessionId(session)))
        events = [json.loads(fields[b"e"]) for _, fields in entries]
        assert [entry_id.decode() for entry_id, _ in entries] == [f"{event['seq']}-0" for event in events]
        return events

    async def event_types(self, session: str = "s") -> list[str]:
        return [event["type"] for event in await self.events(session)]

    async def fork(
        self, source: str = "s", target: str = "f", op: str = "op1", *, keep: int | None = None, last: bytes = b"",
        ttl_ms: int | None = 100_000,
    ) -> bool:  # fmt: skip
        """Copy a session, up to the message with the index ``keep`` - 1, which is ``last`` if that is given."""
        history = await self.history(source)
        size = len(history) if keep is None else keep
        part = Part(size, f"m{size}", last or history[size - 1]) if size else Part(0, "", b"")
        return await fork_session(
            self, SessionId(source), SessionId(target), op, part, ttl_ms=ttl_ms, body=body("session_forked", ""),
            branch=f'"{target}":"{part.at}"'.encode(), fields=FORKED_FIELDS,
        )  # fmt: skip

    async def history(self, session: str = "s") -> list[bytes]:
        return await self.redis.lrange(self.keys.history(SessionId(session)), 0, -1)

    async def inbox(self, session: str = "s") -> list[str]:
        return [turn.decode() for turn in await self.redis.lrange(self.keys.inbox(SessionId(session)), 0, -1)]

    async def queue(self, name: str = "antiphon") -> list[str]:
        return [turn.decode() for turn in await self.redis.lrange(f"rq:queue:{name}", 0, -1)]

    async def status(self, turn: str = "t1") -> str:
        return (await self.turn(TurnId(turn))).status

    async def look_at(self, session: str = "s") -> int | None:
        """Return when the reaper next looks at this session."""
        score = await self.redis.zscore(self.keys.active, session)
        return None if score is None else int(score)

    async def contents(self) -> dict[str, Any]:
        """Return everything in Redis except the clock: a call that changes nothing leaves it equal."""
        found: dict[str, Any] = {}
        for key in sorted(await self.redis.keys("*")):
            if not key.endswith(b":test_clock"):
                found[key.decode()] = await self.redis.dump(key)
        return found


def stranger(turn: ClaimedTurn, fence: str) -> ClaimedTurn:
    """Return the same turn with another fence, as if claimed by another worker."""
    return ClaimedTurn(
        **{name: getattr(turn, name) for name in turn.__struct_fields__} | {"fence": Fence(fence)}
    )


@asynccontextmanager
async def open_cell(url: str, **options: Any) -> AsyncIterator[TestCell]:
    """Open a cell on this Redis, with its clock set. Unfinished turns are finished at the end."""
    async with open_redis(url) as redis:
        cell = TestCell(redis, **options)
        await cell.set_clock(START_MS)
        yield cell
        await cell.settle()
