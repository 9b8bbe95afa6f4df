"""Revisions of agents, and which one a session takes."""

from __future__ import annotations

import hashlib
from typing import Any, Literal, cast, get_args

from msgspec import Struct, field
from msgspec.structs import replace

from antiphon.errors import UsageError

Takes = Literal["auto_upgrade", "pinned"]
AtRevisionLimit = Literal["upgrade", "fail"]


class Revision(Struct, frozen=True, omit_defaults=True):
    """A revision of an agent: its hash, and a label for people."""

    id: str
    label: str | None = None


class Rollout(Struct, frozen=True, omit_defaults=True):
    """Which revision of an agent the turns of a session take: ``Agent(…, rollout=Rollout("pinned"))``.

    With ``"auto_upgrade"`` each turn takes the revision of the worker that claims it; with ``"pinned"`` a session
    keeps the one that its first turn began with. In both cases, a turn that has begun continues on its revision. If
    no worker has that revision, the turn waits ``timeout`` seconds; then ``at_limit`` decides: ``"upgrade"``
    continues it (and its session) on the revision of another worker, ``"fail"`` fails the turn.

    >>> from antiphon import Agent
    >>> agent = Agent(provider="scripted", model="any", name="support", rollout=Rollout("pinned", timeout=3600))
    >>> agent.rollout.sessions, Agent(provider="scripted", model="any", rollout="pinned").rollout.timeout
    ('pinned', 30.0)
    """

    sessions: Takes = "auto_upgrade"
    timeout: float = 30.0
    at_limit: AtRevisionLimit = "upgrade"


def checked_rollout(rollout: Any, error: type[Exception] = UsageError) -> Rollout | None:
    """Check the value of ``rollout=``. Raises ``error``."""
    found: Any = Rollout(cast("Takes", rollout)) if isinstance(rollout, str) else rollout
    if found is None:
        return None
    if not isinstance(found, Rollout) or found.sessions not in get_args(Takes):
        raise error(f'rollout= must be "auto_upgrade", "pinned" or a Rollout, not {rollout!r}.')
    seconds: Any = found.timeout
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds < float("inf"):
        raise error(f"timeout= of a Rollout must be a number of seconds from 0, not {seconds!r}.")
    if found.at_limit not in get_args(AtRevisionLimit):
        raise error(f'at_limit= of a Rollout must be "upgrade" or "fail", not {found.at_limit!r}.')
    return found


MOST_NAMED = 100  # tenants, and likewise sessions, with their own revision: every claim reads them
MOST_WITHDRAWN = 20


class Promotion(Struct, frozen=True, omit_defaults=True):
    """Which revisions of an agent sessions take at their next turns.

    ``revision`` is the default for all sessions; without it, they take the revision of the worker that claims the
    turn. A ``share`` of them, from 0 to 1, takes the ``canary`` instead; while the promotion is ``paused``, no
    further session does. ``tenants`` and ``sessions`` map names to revisions of their own. ``withdrawn`` revisions
    were rolled back: pinned sessions leave them. ``previous`` is the revision that a roll-back returns to.

    >>> promotion = Promotion(revision="2f1c07d9be52", canary="8bee1897a458", share=0.05)
    >>> promotion.choice("support", "user-123"), promotion.choice("support", "user-126")
    ('2f1c07d9be52', '8bee1897a458')
    """

    revision: str = ""
    canary: str = ""
    share: float = 0.0
    paused: bool = False
    previous: str = ""
    withdrawn: list[str] = field(default_factory=list)
    tenants: dict[str, str] = field(default_factory=dict)
    sessions: dict[str, str] = field(default_factory=dict)

    def choice(self, agent: str, session: str, *, tenant: str = "", ran: str = "", pinned: str = "") -> str:
        """Return the revision for the next turn of a session, or '' for that of any worker.

        ``ran`` is the revision of its last turn, ``pinned`` the revision that the session keeps.

        >>> Promotion(revision="b", tenants={"acme": "c"}).choice("support", "s", tenant="acme")
        'c'
        >>> Promotion(revision="b", withdrawn=["a"]).choice("support", "s", pinned="a")
        'b'
        """
        if chosen := self.sessions.get(session):
            return chosen
        if pinned and pinned not in self.withdrawn:
            return pinned
        if chosen := self.tenants.get(tenant):
            return chosen
        if (
            self.canary
            and is_in_share(agent, session, self.share)
            and (not self.paused or ran == self.canary)
        ):
            return self.canary
        return self.revision

    def named(self) -> set[str]:
        """Return the revisions that turns may take.

        >>> sorted(Promotion(revision="b", canary="c", share=0.5, tenants={"acme": "a"}).named())
        ['a', 'b', 'c']
        """
        return {self.revision, self.canary, *self.tenants.values(), *self.sessions.values()} - {""}

    def share_of(self, revision: str) -> float:
        """Return the share of the sessions that takes a revision, among those without one of their own.

        >>> Promotion(revision="b", canary="c", share=0.05).share_of("b")
        0.95
        """
        if revision == self.canary:
            return self.share
        return round(1 - self.share, 9) if revision == self.revision else 0.0


class Promotions(Struct, omit_defaults=True):
    """The promotions of all agents, by the agents' names, as they are stored.

    Every change raises ``version``, to the time in seconds if that is higher, even after the last promotion was
    removed.
    """

    version: int = 0
    agents: dict[str, Promotion] = field(default_factory=dict)


def is_in_share(agent: str, session: str, share: float) -> bool:
    """Return whether a session belongs to a share of all. When the share grows, its sessions stay in it.

    >>> sum(is_in_share("support", f"user-{n}", 0.05) for n in range(10_000)) in range(450, 550)
    True
    """
    digest = hashlib.sha256(f"{agent}\0{session}".encode()).digest()
    return int.from_bytes(digest[:8]) < share * 2**64


def promoted(
    before: Promotion, revision: str, *, share: float | None = None, tenant: str | None = None,
    session: str | None = None,
) -> Promotion:  # fmt: skip
    """Return the promotion of a revision to all sessions, to a share of them, to a tenant or to a session."""
    after = replace(before, withdrawn=[one for one in before.withdrawn if one != revision])
    if tenant is not None:
        return replace(after, tenants=_named(before.tenants, tenant, revision, "tenants"))
    if session is not None:
        return replace(after, sessions=_named(before.sessions, session, revision, "sessions"))
    if share is not None and share < 1:
        return replace(after, canary=revision, share=share, paused=False)
    previous = before.previous if before.revision == revision else before.revision
    return replace(after, revision=revision, previous=previous, canary="", share=0.0, paused=False)


def paused(before: Promotion, agent: str) -> Promotion:
    """Return the promotion in which no further session takes the canary. Raises ``UsageError`` without one."""
    if not before.canary:
        raise UsageError(f"Nothing to pause: no revision of {agent} is promoted to a share.")
    return replace(before, paused=True)


def rolled_back(before: Promotion, agent: str, revision: str = "") -> Promotion:
    """Return the promotion without the canary, or else with the previous revision for all sessions.

    Tenants and sessions that have the withdrawn revision lose it as well. If ``revision`` names it, repeating the
    call changes nothing. Raises ``UsageError`` if there is nothing to roll back, or if ``revision`` names another
    one.
    """
    if revision in before.withdrawn and revision not in before.named():
        return before
    bad = before.canary or (before.revision if before.previous else "")
    if not bad:
        raise UsageError(f"Nothing to roll back: no other revision of {agent} was promoted before.")
    if revision and bad != revision:
        raise UsageError(f"{agent}@{revision} was not promoted last: {agent}@{bad} was.")
    base = before.revision if before.canary else before.previous
    return Promotion(
        revision=base,
        previous=before.previous if before.canary else "",
        withdrawn=[*(one for one in before.withdrawn if one != bad), bad][-MOST_WITHDRAWN:],
        tenants={name: one for name, one in before.tenants.items() if one != bad},
        sessions={name: one for name, one in before.sessions.items() if one != bad},
    )


def without(before: Promotion, *, tenant: str | None = None, sessions: Any = ()) -> Promotion:
    """Return the promotion without the entries of a tenant or of sessions, which are being erased."""
    return replace(
        before,
        tenants={name: one for name, one in before.tenants.items() if name != tenant},
        sessions={name: one for name, one in before.sessions.items() if name not in sessions},
    )


def _named(known: dict[str, str], name: str, revision: str, what: str) -> dict[str, str]:
    if name not in known and len(known) >= MOST_NAMED:
        raise UsageError(
            f"{MOST_NAMED} {what} have a revision of their own: promote the revision to a share."
        )
    return known | {name: revision}
