"""Chaos in which hosts switch between two releases: each replaced host returns with the other one."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from socket import gethostname
from typing import Any

from chaos.checker import Report, check
from chaos.driver import Chaos
from chaos.load import Conversation, Submitted
from chaos.plan import Fault
from support.ensemble import Supervised
from support.eventually import PATIENCE, wait_until_async
from support.processes import Process
from support.releases import PREVIOUS, THIS, Release

from antiphon.client import AsyncClient
from antiphon.input.ids import TurnId

OURS, THEIRS = 8, 8
SECONDS_OF_A_HOST = 3.5


class OlderClient:
    """The program ``older_client.py`` on the previous release; it communicates through a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        self._process: Process | None = None

    def start(
        self, start: Callable[..., Process], url: str, seed: int, talks: list[str], reads: list[str]
    ) -> None:
        (self._folder / "sessions.json").write_text(json.dumps({"talks": talks, "reads": reads}))
        program = Path(__file__).with_name("older_client.py")
        self._process = start(
            PREVIOUS.python, program, url, str(seed), self._folder, name="older client", env=PREVIOUS.env
        )

    async def stop(self) -> dict[str, list[dict[str, str]]]:
        """Stop submitting, and return the submitted turns."""
        (self._folder / "stop").touch()
        return await self._written("talked.json")

    async def seen(self, ends: dict[str, int]) -> dict[str, list[tuple[int, str]]]:
        """Return the events it has seen of each session, up to these ends if it reaches them."""
        (self._folder / "ends.new").write_text(json.dumps(ends))
        (self._folder / "ends.new").rename(self._folder / "ends.json")
        return await self._written("seen.json")

    async def _written(self, name: str) -> Any:
        assert self._process
        process, path = self._process, self._folder / name
        await wait_until_async(
            lambda: path.exists() or not process.running, 60, f"the older client has written {name}"
        )
        assert path.exists(), process.output
        return json.loads(path.read_text())


class Theirs(Conversation):
    """A session to which the older client submits, and which this release reads."""

    older: OlderClient

    async def talk(self, until: Callable[[], bool]) -> None:
        while not until():  # noqa: ASYNC110 - it waits for time to pass
            await asyncio.sleep(0.1)
        for turn in (await self.older.stop())[self.session]:
            self.turns.append(Submitted(turn["text"], turn["key"], turn_id=TurnId(turn["id"])))


class Rolling(Chaos):
    """``seen`` has the events that the older client has read of each session: their numbers and types."""

    def __init__(self, seed: int, seconds: float, directory: Path, *, server: str = "valkey") -> None:
        super().__init__(seed, seconds, directory, server=server)
        self.plan = rolling_plan(self.plan, seconds)
        self.older = OlderClient(directory / "older")
        self.seen: dict[str, list[tuple[int, str]]] = {}
        self._releases: dict[int, Release] = {}

    async def run(self) -> None:
        await super().run()
        ends = {one.session: one.seen[-1].seq if one.seen else 0 for one in self.conversations}
        self.seen = await self.older.seen(ends)

    def _is_over(self) -> bool:
        """Return whether clients stop submitting. On a busy machine, they wait for late hosts of both releases."""
        passed = time.monotonic() - self._began
        both = {PREVIOUS.version, THIS.version}
        return passed > self.seconds and (passed > PATIENCE * self.seconds or both <= self.passed_on.keys())

    async def _carry_out(self, fault: Fault) -> None:
        if "host" in fault.kind:
            host = self.hosts[fault.target % len(self.hosts)]
            await wait_until_async(
                lambda: self._has_taken(host) or not host.process.running or self._is_over(),
                self.seconds,
                "the host that is to be replaced has taken a turn",
                0.1,
            )
        await super()._carry_out(fault)

    def _has_taken(self, host: Supervised) -> bool:
        """Return whether a worker of the host has started a turn."""
        name = _name_of(host.process.pid)
        started = (event for one in self.conversations for event in one.seen if event.type == "turn_started")
        return any(event.worker.startswith(name) for event in started)

    def _start_host(self, number: int, before: Supervised | None = None) -> Supervised:
        host = super()._start_host(number, before)
        self._releases[host.process.pid] = self._release(before)
        return host

    def _release(self, before: Supervised | None) -> Release:
        """Return a host's release: the previous one for the first hosts, then not its predecessor's."""
        return THIS if before is not None and self._releases[before.process.pid] is PREVIOUS else PREVIOUS

    def _conversations(self, client: AsyncClient) -> list[Conversation]:
        ours = [Conversation(f"ours{i}", client, self.seed, plainly=True) for i in range(OURS)]
        theirs = [Theirs(f"theirs{i}", client, self.seed, plainly=True) for i in range(THEIRS)]
        for one in theirs:
            one.older = self.older
        talks, reads = [one.session for one in theirs], [one.session for one in [*ours, *theirs]]
        self.older.start(self._processes.start, self.network.clients_url(), self.seed, talks, reads)
        return [*ours, *theirs]

    async def _count_free_places(self) -> int:
        return self.places

    @property
    def passed_on(self) -> dict[str, int]:
        """The attempts of each release, and how often a turn went from one release to the other."""
        releases = {_name_of(pid): release.version for pid, release in self._releases.items()}
        found: Counter[str] = Counter()
        for one in self.conversations:
            before: dict[str, str] = {}
            for event in one.seen:
                if event.type == "turn_started":
                    now = next(version for name, version in releases.items() if event.worker.startswith(name))
                    earlier = before.get(event.turn_id, now)
                    found[now if earlier == now else f"from {earlier} to {now}"] += 1
                    before[event.turn_id] = now
        return dict(found)


def _name_of(pid: int) -> str:
    """Return the prefix of the names of a host's workers."""
    return f"{gethostname()}-{pid}-".replace(":", "_")


def rolling_plan(plan: list[Fault], seconds: float) -> list[Fault]:
    """Return the plan with a host replaced every few seconds, alternately stopped with SIGTERM or killed, and with no
    other ends of hosts."""
    others = [fault for fault in plan if fault.kind not in ("kill host", "restart host")]
    times = range(int(seconds / SECONDS_OF_A_HOST))
    rolls = [
        Fault((number + 1) * SECONDS_OF_A_HOST - 1, ("restart host", "kill host")[number // 2 % 2], number, 0)
        for number in times
    ]
    return sorted([*others, *rolls], key=lambda fault: fault.at)


async def checked(run: Rolling) -> Report:
    """Run everything and return the report. The older client must have seen the same events as this release."""
    began = time.monotonic()
    await run.run()
    report = await check(run)
    report.seconds = time.monotonic() - began
    for one in run.conversations:
        log = [(event.seq, event.type) for event in one.seen]
        if [tuple(event) for event in run.seen[one.session]] != log:
            report.wrong.append(f"{one.session}: the older client saw other events than this release")
    return report
