"""What identifies a revision of an agent, and which one a session takes."""

from __future__ import annotations

from typing import Any, Literal, cast, get_args

from msgspec import Struct

from antiphon.errors import UsageError

Takes = Literal["auto_upgrade", "pinned"]
AtRevisionLimit = Literal["upgrade", "fail"]


class Revision(Struct, frozen=True, omit_defaults=True):
    """A revision of an agent: its hash, and the label that people know it by."""

    id: str
    label: str | None = None


class Rollout(Struct, frozen=True, omit_defaults=True):
    """Which revision of an agent the turns of a session take: ``Agent(…, rollout=Rollout("pinned"))``.

    With ``"auto_upgrade"`` each turn takes the revision of the worker that claims it; with ``"pinned"`` a session keeps
    the one that its first turn began with. A turn that has begun continues on its revision in both cases. If no worker
    has that any more, the turn waits ``timeout`` seconds; then ``at_limit`` decides: ``"upgrade"`` continues it (and
    its session) on the revision of another worker, ``"fail"`` fails the turn.

    >>> from antiphon import Agent
    >>> agent = Agent(provider="scripted", model="any", name="support", rollout=Rollout("pinned", timeout=3600))
    >>> agent.rollout.sessions, Agent(provider="scripted", model="any", rollout="pinned").rollout.timeout
    ('pinned', 30.0)
    """

    sessions: Takes = "auto_upgrade"
    timeout: float = 30.0
    at_limit: AtRevisionLimit = "upgrade"


def checked_rollout(rollout: Any, error: type[Exception] = UsageError) -> Rollout | None:
    """Check what ``rollout=`` was given. Raises ``error``."""
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
