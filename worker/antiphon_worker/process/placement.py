"""Finds the worker for a turn: this one, or one whose App has what the turn needs and the revision that it runs on."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from antiphon.errors import AgentError, CorruptRecord, RevisionUnavailable
from antiphon.events import AgentChanged
from antiphon.input.request import AgentSpec
from antiphon.model.revisions import Revision, Rollout
from antiphon.wire.cell import Cell
from antiphon.wire.lists.agents import revisions_of_app
from antiphon.wire.records import ClaimedTurn
from antiphon.wire.revisions import begin, pins_of
from antiphon_worker.app import App
from antiphon_worker.process.journal import patiently
from antiphon_worker.process.lease import Lease, Stop, StopSignal
from antiphon_worker.process.outcomes import Failed, GivenBack, Outcome, seconds_until_newer
from antiphon_worker.process.publisher import TurnSink
from antiphon_worker.rq.presence import AppParts, how_to_start, workers_with

DEFAULT = Rollout()


class OnOtherRevision(RevisionUnavailable):
    """The turn runs on a revision that this worker does not have."""

    wanted: tuple[str, str] = ("", "")
    rollout: Rollout = DEFAULT


class Placement:
    """Decides for the turns of a process whether they run here. ``parts`` are those of its App."""

    def __init__(self, cell: Cell, app: App) -> None:
        self._cell = cell
        self._app = app
        self.parts = AppParts.of_app(cell.keys.prefix, app)
        self._digest = self.parts.digest()
        self._apps: dict[str, Mapping[str, Revision]] = {}  # the revisions of other Apps, by their hash

    def asks(self, turn: ClaimedTurn, agent: AgentSpec) -> bool:
        """Whether the turn may belong on another revision, or must note the one that it runs on."""
        if turn.app == self._digest and not (turn.pins or turn.revision or self._app.pins):
            return False
        return self._app.has(agent)

    async def settle(self, turn: ClaimedTurn, agent: AgentSpec, lease: Lease, sink: TurnSink) -> None:
        """Return if the turn runs here, and note its revision where the claim did not. Raises ``OnOtherRevision``."""
        name = agent.name or ""
        own, rollout = self._app.revisions[name].id, self._app.rollout(agent)
        pins = pins_of(turn) if rollout.sessions == "pinned" else {}
        wanted = turn.revision or await self._began_with(turn, name, lease) or pins.get(name) or own
        kept = pins | {name: own} if rollout.sessions == "pinned" else None
        if wanted == own:
            if not (turn.app or turn.revision) or (kept is not None and name not in pins):
                await self._begin(turn, own, kept, (), lease)
            return
        late = (turn.missed_ms or 0) >= rollout.timeout * 1000
        if not (late and rollout.at_limit == "upgrade"):
            raise self._elsewhere(name, wanted, rollout)
        if await self._others(turn, lease, (name, wanted)):
            raise self._elsewhere(name, wanted, rollout)
        changed = AgentChanged(agent=name, revision=own, previous=wanted, reason="revision_unavailable")
        await self._begin(turn, own, kept, (sink.body(changed),), lease)

    async def _others(self, turn: ClaimedTurn, lease: Lease, revision: tuple[str, str]) -> list[str]:
        found = await patiently(
            lease,
            lambda: workers_with(self._cell, turn.queue, revision[0], [self._digest], revision=revision),
        )
        return found.workers

    def _elsewhere(self, name: str, wanted: str, rollout: Rollout) -> OnOtherRevision:
        error = OnOtherRevision("The turn runs on another revision of its agent.")
        error.wanted, error.rollout = (name, wanted), rollout
        return error

    async def _began_with(self, turn: ClaimedTurn, agent: str, lease: Lease) -> str:
        """The revision of the App on which the turn began; '' if that is this one, or is not known."""
        if turn.app in ("", self._digest):
            return ""
        if turn.app not in self._apps:
            found = await patiently(lease, lambda: self._read(turn.app))
            if found is None:
                return ""
            self._apps[turn.app] = found
        known = self._apps[turn.app].get(agent)
        return known.id if known else ""

    async def _read(self, app: str) -> Mapping[str, Revision] | None:
        try:
            return await revisions_of_app(self._cell, app)
        except CorruptRecord:
            return None  # a turn does not wait for a damaged record of something else

    async def _begin(
        self, turn: ClaimedTurn, revision: str, pins: Mapping[str, str] | None, bodies: Collection[bytes],
        lease: Lease,
    ) -> None:  # fmt: skip
        held = await patiently(lease, lambda: begin(self._cell, turn, revision, pins=pins, bodies=[*bodies]))
        if not held:
            lease.end(Stop.SUPERSEDED, at_once=False)
            raise StopSignal(Stop.SUPERSEDED)

    async def leave(
        self, exc: AgentError, turn: ClaimedTurn, asked: str | AgentSpec | None, needed: Collection[str], lease: Lease
    ) -> Outcome:  # fmt: skip
        """Requeue the turn for a worker whose App can run it. Without one it waits for its revision, or fails."""
        revision = exc.wanted if isinstance(exc, OnOtherRevision) else None
        known = [*dict.fromkeys([*turn.lacking.split(), self._digest])]
        found = await patiently(
            lease, lambda: workers_with(self._cell, turn.queue, asked, known, needed, revision=revision)
        )
        if found.workers:
            # Where the turn comes back, as under RQ's own worker, it waits: its workers take it whatever it needs.
            delay = seconds_until_newer(turn) if self._digest in turn.lacking else 0.0
            reason = f"{exc.message} A worker that has it takes the turn."
            return GivenBack(reason, str(exc.code), delay, " ".join(found.lacking), tuple(found.workers))
        if isinstance(exc, OnOtherRevision):
            return _missing(exc, turn)
        advice = f" {how_to_start(turn.queue)}" if asked else ""
        return Failed(str(exc.code), f"{exc.message}{advice}")


def _missing(exc: OnOtherRevision, turn: ClaimedTurn) -> Outcome:
    """No worker has the revision: the turn waits until the time limit of its agent."""
    left = exc.rollout.timeout - (turn.missed_ms or 0) / 1000
    if left <= 0 and exc.rollout.at_limit == "fail":
        return Failed(str(exc.code), RevisionUnavailable().message)
    reason = "No worker has the revision of the agent on which the turn began: it waits for one."
    return GivenBack(reason, str(exc.code), max(min(seconds_until_newer(turn), left), 0.1), missing=True)
