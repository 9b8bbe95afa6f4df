"""Finds the worker for a turn: this one, or one whose App has what the turn needs and the revision that it runs on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress

import msgspec

from antiphon.errors import AgentError, CorruptRecord, RevisionUnavailable
from antiphon.events import AgentChanged, Event
from antiphon.input.request import AgentSpec
from antiphon.model.revisions import Promotion, Revision, Rollout
from antiphon.wire.cell import Cell
from antiphon.wire.feedback import figures_id
from antiphon.wire.lists.agents import last_of, revisions_of_app
from antiphon.wire.promotions import read_promotions
from antiphon.wire.records import ClaimedTurn
from antiphon.wire.revisions import begin, pins_of, ran_on
from antiphon_worker.app import App
from antiphon_worker.loop.steps import HandedOver, Journal
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
    begun: bool = True  # otherwise a later promotion may choose another revision


class _Place:
    """Determines the revision of one turn of an agent. ``keeps``: the session keeps its first revision."""

    def __init__(self, turn: ClaimedTurn, agent: str, *, keeps: bool, promotion: Promotion | None) -> None:
        self.turn, self.agent, self.promotion = turn, agent, promotion
        self._pins, self._ran = pins_of(turn) if keeps else None, ran_on(turn)

    @property
    def before(self) -> str:
        """The noted revision of the session's last turn with the agent, or ''."""
        return self._ran.get(self.agent) or (self._pins or {}).get(self.agent, "")

    def choice(self) -> str:
        """Return the revision for a turn that has not begun, or ''."""
        pinned = (self._pins or {}).get(self.agent, "")
        if self.promotion is None:
            return pinned
        return self.promotion.choice(
            self.agent, self.turn.session_id, tenant=self.turn.tenant, ran=self.before, pinned=pinned
        )

    def reason_after(self, before: str) -> str:
        """Return why a turn begins on a different revision than the session's last one."""
        withdrawn = self.promotion is not None and before in self.promotion.withdrawn
        return "rolled_back" if withdrawn else "promoted"

    def pins_with(self, own: str) -> dict[str, str] | None:
        """Return the session's pins after a turn on this revision; None if the session is not pinned."""
        return None if self._pins is None else self._pins | {self.agent: own}

    def ran_with(self, own: str) -> dict[str, str] | None:
        """Return the session's noted revisions after this turn; None for no change. Only promotions need them."""
        others = {name: one for name, one in self._ran.items() if name != self.agent}
        after = others if self.promotion is None else others | {self.agent: own}
        return None if after == self._ran else after

    def changes(self, own: str) -> bool:
        """Return whether a turn on this revision changes what the session notes."""
        return self.pins_with(own) != self._pins or self.ran_with(own) is not None


class Placement:
    """Decides whether turns run in this process. ``parts`` are the parts of its App."""

    def __init__(self, cell: Cell, app: App) -> None:
        self._cell = cell
        self._app = app
        self.parts = AppParts.of_app(cell.keys.prefix, app)
        self._digest = self.parts.digest()
        self._apps: dict[str, Mapping[str, Revision]] = {}  # the revisions of Apps, by their hash
        self._stored: bytes | None = None  # the promotions as last read
        self._promotions: Mapping[str, Promotion] = {}

    def asks(self, turn: ClaimedTurn, agent: AgentSpec) -> bool:
        """Return whether the turn may belong on another revision, or must note the one it runs on."""
        decided = turn.pins or turn.ran or turn.promotions or turn.revision or self._app.pins
        return (turn.app != self._digest or bool(decided)) and self._app.has(agent)

    async def settle(self, turn: ClaimedTurn, agent: AgentSpec, lease: Lease, sink: TurnSink) -> None:
        """Return if the turn runs here, and note its revision if the claim did not. Raises ``OnOtherRevision``."""
        name = agent.name or ""
        own, rollout = self._app.revisions[name].id, self._app.rollout(agent)
        place = _Place(turn, name, keeps=rollout.sessions == "pinned", promotion=self._promotion(turn, name))
        began = turn.revision or await self._began_with(turn.app, name, lease)
        wanted = began or place.choice() or own
        if wanted == own:
            if not (turn.app or turn.revision) or place.changes(own):
                before = "" if began else await self._ran(place, lease)
                await self._begin(place, own, before, place.reason_after(before), lease, sink)
            return
        late = (turn.missed_ms or 0) >= rollout.timeout * 1000
        if not (late and rollout.at_limit == "upgrade") or await self._others(turn, lease, (name, wanted)):
            raise self._elsewhere(name, wanted, rollout, begun=bool(began))
        before = wanted if began else await self._ran(place, lease)
        await self._begin(place, own, before, RevisionUnavailable.code, lease, sink)

    def _promotion(self, turn: ClaimedTurn, agent: str) -> Promotion | None:
        if turn.promotions != self._stored:
            with suppress(CorruptRecord):  # a damaged record of something else must not fail a turn
                self._promotions = read_promotions(turn.promotions).agents
            self._stored = turn.promotions
        return self._promotions.get(agent)

    async def _ran(self, place: _Place, lease: Lease) -> str:
        """Return the revision of the session's last turn with the agent, or '' if unknown."""
        if place.promotion is None or place.before:
            return place.before
        found = await patiently(lease, lambda: last_of(self._cell, place.turn, place.agent))
        return found.revision or await self._began_with(found.app, place.agent, lease) if found else ""

    async def settle_target(
        self, turn: ClaimedTurn, agent: AgentSpec, handed: HandedOver, lease: Lease, journal: Journal | None
    ) -> None:
        """Return if the agent that the turn was handed to runs here, and note its revision if the hand-off did not.

        Raises ``OnOtherRevision``.
        """
        name, wanted = agent.name or "", handed.revision
        if not self._app.has(agent) or wanted == (own := self._app.revisions[name].id):
            return
        rollout, changes = self._app.rollout(agent), list[Event]()
        if wanted:
            late = (turn.missed_ms or 0) >= rollout.timeout * 1000
            if not (late and rollout.at_limit == "upgrade") or await self._others(
                turn, lease, (name, wanted)
            ):
                raise self._elsewhere(name, wanted, rollout, begun=True)
            changes.append(
                AgentChanged(agent=name, revision=own, previous=wanted, reason="revision_unavailable")
            )
        assert journal is not None
        await journal.append([msgspec.structs.replace(handed, revision=own)], changes)

    async def _others(self, turn: ClaimedTurn, lease: Lease, revision: tuple[str, str]) -> list[str]:
        found = await patiently(
            lease,
            lambda: workers_with(self._cell, turn.queue, revision[0], [self._digest], revision=revision),
        )
        return found.workers

    def _elsewhere(self, name: str, wanted: str, rollout: Rollout, *, begun: bool) -> OnOtherRevision:
        error = OnOtherRevision("The turn runs on another revision of its agent.")
        error.wanted, error.rollout, error.begun = (name, wanted), rollout, begun
        return error

    async def _began_with(self, app: str, agent: str, lease: Lease) -> str:
        """Return the agent's revision in the App that a turn began with; '' if it has not begun, or if unknown."""
        if app == self._digest:
            return self._app.revisions[agent].id
        if app and app not in self._apps:
            found = await patiently(lease, lambda: self._read(app))
            if found is None:
                return ""
            self._apps[app] = found
        known = self._apps[app].get(agent) if app else None
        return known.id if known else ""

    async def _read(self, app: str) -> Mapping[str, Revision] | None:
        try:
            return await revisions_of_app(self._cell, app)
        except CorruptRecord:
            return None  # a damaged record of something else must not block a turn

    async def _begin(
        self, place: _Place, own: str, before: str, reason: str, lease: Lease, sink: TurnSink
    ) -> None:
        changed = AgentChanged(agent=place.agent, revision=own, previous=before, reason=reason)
        bodies = [sink.body(changed)] if before not in ("", own) else []
        held = await patiently(
            lease,
            lambda: begin(
                self._cell, place.turn, own, pins=place.pins_with(own), ran=place.ran_with(own), bodies=bodies
            ),
        )
        if not held:
            lease.end(Stop.SUPERSEDED, at_once=False)
            raise StopSignal(Stop.SUPERSEDED)

    async def leave(
        self, exc: AgentError, turn: ClaimedTurn, asked: str | AgentSpec | None, needed: Collection[str], lease: Lease
    ) -> Outcome:  # fmt: skip
        """Requeue the turn for a worker whose App can run it. Without one, it waits for its revision, or fails."""
        revision = exc.wanted if isinstance(exc, OnOtherRevision) else None
        earlier = [] if isinstance(exc, OnOtherRevision) and not exc.begun else turn.lacking.split()
        known = [*dict.fromkeys([*earlier, self._digest])]
        found = await patiently(
            lease, lambda: workers_with(self._cell, turn.queue, asked, known, needed, revision=revision)
        )
        if found.workers:
            # If the turn comes back, as under RQ's own worker, delay it: such workers take turns whatever they need.
            delay = seconds_until_newer(turn) if self._digest in turn.lacking else 0.0
            reason = f"{exc.message} A worker that has it takes the turn."
            return GivenBack(reason, str(exc.code), delay, " ".join(found.lacking), tuple(found.workers))
        if isinstance(exc, OnOtherRevision):
            return _missing(exc, turn)
        advice = f" {how_to_start(turn.queue)}" if asked else ""
        return Failed(str(exc.code), f"{exc.message}{advice}")


def _missing(exc: OnOtherRevision, turn: ClaimedTurn) -> Outcome:
    """Return the outcome if no worker has the revision: the turn waits until its agent's time limit."""
    left = exc.rollout.timeout - (turn.missed_ms or 0) / 1000
    if left <= 0 and exc.rollout.at_limit == "fail":
        return Failed(str(exc.code), RevisionUnavailable().message)
    reason = "No worker has the revision of the agent on which the turn began: it waits for one."
    return GivenBack(
        reason, str(exc.code), max(min(seconds_until_newer(turn), left), 0.1), missing=figures_id(*exc.wanted)
    )
