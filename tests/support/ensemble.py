"""Workers, clients and a stage on one Redis, and checks of every session afterwards."""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from support.eventually import wait_until, wait_until_async
from support.processes import Process, Processes
from support.releases import THIS, Release
from support.stage import FIRST_WORDS, Stage, make_app, reply
from support.strict_json import with_distinct_names

from antiphon.client import AsyncClient
from antiphon.events import Event, decode_event
from antiphon.input.request import AgentSpec
from antiphon.model import Message
from antiphon.redis.turn import AsyncTurn
from antiphon.stores.base import SessionStore
from antiphon_worker.process.worker import Worker
from antiphon_worker.settings import Settings

TOOLS = ("note", "pay", "wait", "watch", "block", "spin", "freeze", "fork", "leave")


def agent_spec(**more: Any) -> AgentSpec:
    """Return the stage's agent."""
    return AgentSpec(**{"provider": "stage", "model": "stage-1", "tools": [*TOOLS], **more})


class Supervised:
    """A supervisor process and its workers."""

    def __init__(self, process: Process) -> None:
        self.process = process

    @property
    def workers(self) -> list[int]:
        """The worker processes that take turns."""
        return self.process.workers()

    def ready(self, workers: int = 1) -> None:
        """Return when this many workers have begun to take turns since the start."""
        wait_until(lambda: self.process.output.count("takes turns") >= workers, 20, "the workers take turns")


class Ensemble:
    """One Redis with a client, a stage and the workers that a test starts."""

    def __init__(self, url: str, stage: Stage, processes: Processes | None, client: AsyncClient) -> None:
        self.url = url
        self.stage = stage
        self.client = client
        self._processes = processes

    def supervisor(
        self,
        *,
        processes: int = 1,
        url: str | None = None,
        env: dict[str, str] | None = None,
        release: Release = THIS,
        inside: Sequence[str] = (),
        **settings: Any,
    ) -> Supervised:
        """Start worker processes, with settings as in ``Settings``, without waiting for them.

        ``inside`` is the prefix of their command.
        """
        assert self._processes is not None
        variables = {f"ANTIPHON_{name.upper()}": str(value) for name, value in settings.items()}
        started = self._processes.start(
            *inside, release.python, "-m", "support.stage", name="supervisor",
            env={
                **self.stage.env, **release.env, "ANTIPHON_REDIS_URL": url or self.url,
                "ANTIPHON_PROCESSES": str(processes), **variables, **(env or {}),
            },
        )  # fmt: skip
        return Supervised(started)

    @asynccontextmanager
    async def worker(
        self, *, url: str | None = None, store: SessionStore | None = None, **settings: Any
    ) -> AsyncIterator[Worker]:
        """Run a worker on this loop; at the end, it requeues the turns it still has."""
        app = make_app(self.stage, store)
        worker = Worker(Settings(**settings), app, url=url or self.url)
        running = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.abort()
            await running
            await app.aclose()

    async def submit(self, session: str, text: str, **options: Any) -> AsyncTurn:
        return await self.client.submit(session, text, **{"agent": agent_spec(), **options})

    async def waits(self, gate: str, times: int = 1) -> int:
        """Return the process whose answer waits at this gate, once ``times`` answers have reached it."""
        notes = await wait_until_async(
            lambda: (found := self.stage.notes("waits", gate=gate)) and len(found) >= times and found,
            20,
            f"an answer waits at {gate}",
        )
        return notes[-1]["pid"]

    async def suspect(self, session: str, text: str) -> AsyncTurn:
        """Submit a turn that runs alone, because it counts two crashes."""
        blocking = await self.submit(session, f"go on gate:{session}")
        turn = await self.submit(session, text)
        await self.waits(session)
        cell = self.client.connections.cell_of_session(blocking.session_id)
        await cell.redis.hset(cell.keys.turn(turn.id), "crashes", 2)
        self.stage.open(session)
        await blocking.result(60)
        return turn

    async def seen(self, session: str, kind: str, times: int = 1, timeout: float = 20) -> list[Event]:
        """Return the session's events, once ``times`` events of this type are among them."""

        async def enough() -> list[Event] | None:
            events = await self.events(session)
            return events if sum(event.type == kind for event in events) >= times else None

        return await wait_until_async(enough, timeout, f"{session} has {times} {kind}")  # type: ignore[return-value]

    async def events(self, session: str) -> list[Event]:
        """Return all kept events."""
        cell = self.client.connections.cell_of_session(session)  # type: ignore[arg-type]
        entries = await cell.redis.xrange(cell.keys.events(session))  # type: ignore[arg-type]
        return [decode_event(fields[b"e"]) for _, fields in entries]

    async def types(self, session: str, turn: AsyncTurn | None = None) -> list[str]:
        """Return the types of the session's events (of one turn); consecutive events of a type count as one."""
        types = [e.type for e in await self.events(session) if turn is None or e.turn_id == turn.id]
        return [kind for i, kind in enumerate(types) if i == 0 or kind != types[i - 1]]

    async def texts(self, session: str) -> list[tuple[str, str]]:
        """Return the history as roles and texts."""
        return [(m.role, m.text) for m in (await self.client.snapshot(session)).messages]

    async def field(self, turn: AsyncTurn, name: str) -> str:
        """Return a field of the turn's record."""
        return (await turn._record()).fields.get(name, b"").decode()

    async def whole(self, *sessions: str) -> None:
        """Fail unless every session is whole: G2, G4, G5, G9."""
        wrong = [c for session in sessions for c in await complaints(self.client, session)]
        assert not wrong, "\n".join(wrong)


async def complaints(client: AsyncClient, session: str, *, ended: bool = True) -> list[str]:
    """Return the broken promises of a session, in sentences."""
    snapshot = await client.snapshot(session)
    cell = client.connections.cell_of_session(session)  # type: ignore[arg-type]
    entries = await cell.redis.xrange(cell.keys.events(session))  # type: ignore[arg-type]
    events = [decode_event(fields[b"e"]) for _, fields in entries]
    if not cell.seal.on:
        for _, fields in entries:
            json.loads(fields[b"e"], object_pairs_hook=with_distinct_names)
    found = [
        *_events_complaints(events), *_steering_complaints(events),
        *_history_complaints(events, snapshot.messages),
    ]  # fmt: skip
    if ended and await cell.redis.zscore(cell.keys.active, session) is not None:
        found.append("the session is still active")
    return [f"{session}: {each}" for each in found]


def _events_complaints(events: list[Event]) -> Iterable[str]:
    seqs = [event.seq for event in events]
    if seqs != list(range(1, len(seqs) + 1)):
        yield f"the events are not dense: {seqs}"
    queued = Counter((e.turn_id, e.run) for e in events if e.type == "turn_queued")
    ended = Counter((e.turn_id, e.run) for e in events if e.terminal)
    for run, times in queued.items():
        if times != 1 or ended[run] != 1:
            yield f"run {run} was queued {times} times and ended {ended[run]} times"
    over: set[tuple[str, int]] = set()
    for event in events:
        if (event.turn_id, event.run) in over:
            yield f"event {event.seq} ({event.type}) comes after the end of its run"
        if event.terminal:
            over.add((event.turn_id, event.run))


def _steering_complaints(events: list[Event]) -> Iterable[str]:
    """G13: an input that steered a turn was seen once, and did not run as its own turn."""
    joined = Counter(e.steered_id for e in events if e.type == "turn_steered")
    into = {e.turn_id for e in events if e.type == "turn_finished" and e.steered_into}
    started = {e.turn_id for e in events if e.type == "turn_started"}
    if joined != Counter(into) or into & started:
        yield f"steered: {joined}, ended with it: {into}, turns of their own of these: {into & started}"


def _history_complaints(events: list[Event], messages: list[Any]) -> Iterable[str]:
    """Each finished turn's messages are there once, together and in order; each answer fits all that precedes it."""
    expected = [
        e.turn_id for e in events
        if (e.type == "turn_finished" and not e.steered_into) or (e.type == "turn_cancelled" and e.kept)
    ]  # fmt: skip
    order = [m.turn_id for i, m in enumerate(messages) if i == 0 or m.turn_id != messages[i - 1].turn_id]
    if order != expected:
        yield f"the history holds the turns {order} instead of {expected}"
    for index, message in enumerate(messages):
        if message.role == "assistant" and message.tool_calls:
            results = messages[index + 1].tool_results if index + 1 < len(messages) else []
            if [r.call_id for r in results] != [c.call_id for c in message.tool_calls]:
                yield f"message {index} has tool calls without results"
        elif message.role == "assistant" and not _fits(message, FIRST_WORDS + reply(messages[:index])):
            yield f"answer {index} does not fit its history: {message.text}"


def _fits(message: Message, answer: str) -> bool:
    """Return whether a message is this answer or, if interrupted, its beginning."""
    return message.text.startswith(FIRST_WORDS) if message.interrupted else answer == message.text


@asynccontextmanager
async def open_ensemble(
    url: str, directory: Path, processes: Processes | None = None
) -> AsyncGenerator[Ensemble]:
    """Open an ensemble on this Redis."""
    async with AsyncClient(url) as client:
        yield Ensemble(url, Stage(directory), processes, client)


def signal_process(pid: int, number: signal.Signals) -> None:
    """Send a signal, unless the process has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
