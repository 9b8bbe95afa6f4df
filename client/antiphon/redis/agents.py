"""The agents of a deployment's workers: their revisions, the turns on each, and the ones that sessions take."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from datetime import datetime
from typing import Any, Literal, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from antiphon.errors import UsageError
from antiphon.input.ids import session_id, tenant_id
from antiphon.input.values import is_a
from antiphon.model.feedback import Figures
from antiphon.model.revisions import Promotion, Revision, paused, promoted, rolled_back
from antiphon.redis.connections import Connections
from antiphon.redis.failed import in_ms
from antiphon.redis.feedback import RatedTurn, Wanted, list_rated
from antiphon.wire.cell import Cell
from antiphon.wire.feedback import figures_of
from antiphon.wire.lists.agents import (
    BegunTurn,
    SessionRevisions,
    advertised,
    begun_turns,
    sessions_with_revisions,
)
from antiphon.wire.promotions import change_promotions, copy_promotions, promotions_of

Need: TypeAlias = Literal["next turns", "turns", "sessions"]


class AgentRevision(Struct):
    """A revision of an agent. ``workers`` have it now; without any, it is listed because something still needs it.

    ``turns`` counts the turns that have begun on it and not ended, ``running`` those that run now. ``label`` is that
    of the agent. ``share`` is the share of sessions whose next turn takes it, from 0 to 1; None without a promotion
    of the agent: each turn then takes the revision of the worker that claims it. ``sessions`` counts the sessions
    whose last turn ran on it, as far as that is noted, and ``pinned`` those that keep it; None if they were not
    counted. ``figures`` are those of its ended turns.
    """

    agent: str
    revision: str
    label: str | None = None
    workers: list[str] = field(default_factory=list)
    running: int = 0
    turns: int = 0
    share: float | None = None
    promoted: bool = False
    sessions: int | None = None
    pinned: int | None = None
    figures: Figures = field(default_factory=Figures)

    @property
    def needed_by(self) -> list[Need]:
        """What still needs workers with this revision, if sessions were counted; if nothing does, they may stop.

        ``next turns``: sessions take it at their next turn. ``turns`` have begun on it. ``sessions`` keep it.

        >>> AgentRevision("support", "2f1c07d9be52", share=0.0, pinned=0).needed_by
        []
        >>> AgentRevision("support", "8bee1897a458", turns=2, pinned=14).needed_by
        ['next turns', 'turns', 'sessions']
        """
        needs: dict[Need, object] = {
            "next turns": self.share is None or self.promoted, "turns": self.turns, "sessions": self.pinned,
        }  # fmt: skip
        return [need for need, holds in needs.items() if holds]


class _Rows:
    """The revisions as they are found, by agent and revision."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], AgentRevision] = {}
        self._promotions: dict[str, Promotion] = {}
        self._counted: int | None = None

    def _row(self, agent: str, revision: str) -> AgentRevision:
        new = AgentRevision(agent, revision, sessions=self._counted, pinned=self._counted)
        return self._rows.setdefault((agent, revision), new)

    def add_worker(self, worker: str, agent: str, revision: Revision) -> None:
        row = self._row(agent, revision.id)
        row.label = revision.label
        row.workers.append(worker)

    def add_turn(self, turn: BegunTurn) -> None:
        if turn.revision:
            row = self._row(turn.agent, turn.revision)
            row.turns += 1
            row.running += turn.status == "running"

    def promote(self, agent: str, promotion: Promotion) -> None:
        self._promotions[agent] = promotion
        for revision in promotion.named():
            self._row(agent, revision).promoted = True

    def begin_to_count(self) -> None:
        self._counted = 0
        for row in self._rows.values():
            row.sessions = row.pinned = 0

    def count(self, session: SessionRevisions) -> None:
        for agent, revision in {**session.ran, **session.pins}.items():
            row, known = self._row(agent, revision), self._promotions.get(agent, Promotion())
            row.sessions = (row.sessions or 0) + 1
            row.pinned = (row.pinned or 0) + (agent in session.pins and revision not in known.withdrawn)

    def listed(self) -> list[AgentRevision]:
        for (agent, revision), row in self._rows.items():
            known = self._promotions.get(agent, Promotion())
            row.share = known.share_of(revision) if known.revision else None
        return [row for _, row in sorted(self._rows.items())]


class AsyncAgents:
    """The agents that workers have, by name and revision, and which revisions sessions take at their next turns.

    A promotion applies to turns that have not begun, in all workers at once, without a restart. With several cells,
    it is written to one after the other: if it fails, repeat it.

    >>> from antiphon import AsyncClient
    >>> client = AsyncClient("redis://localhost:6379/0")
    >>> [one.agent async for one in client.agents()]
    []
    """

    def __init__(self, connections: Connections, *, sessions: bool = False) -> None:
        self._connections = connections
        self._sessions = sessions

    async def __aiter__(self) -> AsyncGenerator[AgentRevision, None]:
        found = _Rows()
        for cell in self._connections.cells:
            for worker, agents in (await advertised(cell)).items():
                for name, revision in agents.items():
                    found.add_worker(worker, name, revision)
            for turn in await begun_turns(cell):
                found.add_turn(turn)
        for agent, promotion in (await self.promotions()).items():
            found.promote(agent, promotion)
        if self._sessions:
            found.begin_to_count()
            for cell in self._connections.cells:
                async for session in sessions_with_revisions(cell):
                    found.count(session)
        listed = found.listed()
        for cell in self._connections.cells:
            figures = await figures_of(cell, [(one.agent, one.revision) for one in listed])
            for one, of_cell in zip(listed, figures, strict=True):
                one.figures += of_cell
        for one in listed:
            yield one

    def feedback(
        self, agent: str | None = None, *, tenant: str | None = None, since: int | datetime = 0,
        conversation: bool = False,
    ) -> AsyncGenerator[RatedTurn, None]:  # fmt: skip
        """Iterate over the turns with feedback, latest feedback first, as long as the turns are kept.

        Filter them by ``agent``, ``tenant`` and the time of the feedback: ``since`` is in ms since 1970, or a
        datetime with a time zone. With ``conversation``, each turn has the preceding messages of its session. Raises
        ``UsageError`` and ``StoreError``.

        >>> [one.feedback.score async for one in client.agents().feedback("support")]
        []
        """
        wanted = Wanted(
            agent, None if tenant is None else tenant_id(tenant), in_ms("since", since), conversation
        )
        return list_rated(self._connections.cells, wanted)

    async def promotions(self) -> dict[str, Promotion]:
        """Return the revisions that sessions take, by agent, for agents with a promotion. Raises ``StoreError``.

        >>> await client.agents().promotions()
        {}
        """
        return (await promotions_of(self._first)).agents

    async def promote(
        self, revision: str, *, share: float | None = None, tenant: str | None = None, session: str | None = None
    ) -> Promotion:  # fmt: skip
        """Let the next turns of all sessions take a revision, or those of a ``share``, a tenant or one session.

        ``revision`` is ``"agent@revision"`` or ``"agent@label"``, of a worker that is running. A ``share`` is above 0
        and up to 1, and selects sessions by a hash of their ids; the other sessions take the revision that was
        promoted to all, or if none was, the only other one that workers have. Pinned sessions stay on theirs, unless
        ``session`` names them. Turns that have begun stay on theirs. If a turn begins on another revision than the
        session's last one, the session gets the event ``agent_changed``.

        Returns the promotion that applies from now on. Raises ``UsageError`` and ``StoreError``; repeating it changes
        nothing.

        >>> await client.agents().promote("support@2f1c07d9be52", share=0.05)  # doctest: +SKIP
        Promotion(revision='8bee1897a458', canary='2f1c07d9be52', share=0.05, ...)
        """
        if sum(one is not None for one in (share, tenant, session)) > 1:
            raise UsageError("Pass one of share=, tenant= and session=.")
        if share is not None and (not is_a(share, int | float) or not 0 < share <= 1):
            raise UsageError(f"share= must be a number above 0 and up to 1, not {share!r}.")
        chosen: dict[str, Any] = {
            "share": share,
            "tenant": None if tenant is None else tenant_id(tenant),
            "session": None if session is None else session_id(session),
        }
        agent, found, others = await self._known(revision)

        def change(before: Promotion) -> Promotion:
            if share is not None and share < 1:
                before = _with_base(before, agent, found, others)
            return promoted(before, found, **chosen)

        return await self._change(agent, change)

    async def pause(self, agent: str) -> Promotion:
        """Let no more sessions take the revision promoted to a share; those whose last turn ran on it stay.

        ``promote`` continues. Raises ``UsageError`` if there is no such revision, and ``StoreError``.

        >>> await client.agents().pause("support")
        Traceback (most recent call last):
        antiphon.errors.UsageError: Nothing to pause: no revision of support is promoted to a share.
        """
        return await self._change(agent, lambda before: paused(before, agent))

    async def roll_back(self, agent: str) -> Promotion:
        """Withdraw the revision that is promoted to a share, or else the last one that was promoted to all sessions.

        Their next turns take the previous revision, including pinned sessions, and the tenants and sessions that it
        was promoted to. With several cells, a call after a failed one completes it. If ``agent`` names the revision
        to withdraw, as ``"agent@revision"`` or ``"agent@label"``, repeating the call changes nothing. Raises
        ``UsageError`` if no other revision was promoted before, or if another one was promoted last, and
        ``StoreError``.

        >>> await client.agents().roll_back("support")
        Traceback (most recent call last):
        antiphon.errors.UsageError: Nothing to roll back: no other revision of support was promoted before.
        """
        name, _, revision = agent.partition("@")
        if (completed := await self._completed(name)) is not None:
            return completed
        if revision:
            labels = [one.revision async for one in self if (one.agent, one.label) == (name, revision)]
            revision = labels[0] if len(labels) == 1 else revision
        return await self._change(name, lambda before: rolled_back(before, name, revision))

    async def reset(self, agent: str) -> None:
        """Remove all promotions of an agent: its turns again take the revision of the worker that claims them.

        >>> await client.agents().reset("support")
        """
        await self._change(agent, lambda _: None)

    @property
    def _first(self) -> Cell:
        return next(iter(self._connections.cells))

    async def _completed(self, agent: str) -> Promotion | None:
        """Write a rollback that has not reached every cell to all of them, and return it; None if there is none."""
        known = await promotions_of(self._first)
        after = known.agents.get(agent)
        for cell in self._connections.cells:
            before = (await promotions_of(cell)).agents.get(agent)
            with suppress(UsageError):
                if before is not None and before != after and rolled_back(before, agent) == after:
                    for other in self._connections.cells:
                        await copy_promotions(other, known)
                    return after
        return None

    async def _change(self, agent: str, change: Callable[[Promotion], Promotion | None]) -> Promotion:
        def changed(before: dict[str, Promotion]) -> dict[str, Promotion]:
            others = {name: one for name, one in before.items() if name != agent}
            after = change(before.get(agent, Promotion()))
            return others if after is None else others | {agent: after}

        after = await change_promotions(self._first, changed)
        for cell in self._connections.cells:
            await copy_promotions(cell, after)
        return after.agents.get(agent, Promotion())

    async def _known(self, revision: str) -> tuple[str, str, list[str]]:
        """Return the agent, its revision and the other revisions that workers have. Raises ``UsageError``."""
        if not is_a(revision, str) or not all(revision.rpartition("@")):
            raise UsageError(
                f'A revision must be named as "agent@revision" or "agent@label", not {revision!r}.'
            )
        agent, _, name = revision.rpartition("@")
        rows = [one async for one in AsyncAgents(self._connections) if one.agent == agent and one.workers]
        matching = [one.revision for one in rows if name in (one.revision, one.label)]
        if len(matching) != 1:
            known = ", ".join(f"{one.revision} ({one.label})" if one.label else one.revision for one in rows)
            problem = "Several revisions have the label" if matching else "No worker has the revision"
            raise UsageError(f"{problem} {name} of {agent}: workers have {known or 'none of it'}.")
        return agent, matching[0], [one.revision for one in rows if one.revision != matching[0]]


def _with_base(before: Promotion, agent: str, canary: str, others: list[str]) -> Promotion:
    """Return the promotion with the revision that sessions outside a share take. Raises ``UsageError``."""
    if before.revision == canary:
        raise UsageError(f"All sessions take {agent}@{canary} already: promote the other revision first.")
    if not before.revision and len(others) != 1:
        raise UsageError(
            f"Promote the revision of {agent} that the other sessions take first: workers have "
            f"{len(others)} other ones."
        )
    return before if before.revision else replace(before, revision=others[0])
