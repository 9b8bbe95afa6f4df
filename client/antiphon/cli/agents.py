"""The commands for the revisions of agents: which exist, which ones sessions take, and which workers may stop."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from antiphon.cli.arguments import (
    Command,
    add_json,
    add_redis,
    command_parser,
    print_found,
    print_json,
    read_client,
    with_acts,
)
from antiphon.cli.terminal import table
from antiphon.client import AgentRevision, AsyncAgents, AsyncClient, Figures, Promotion
from antiphon.errors import UsageError


def _promote(argv: list[str]) -> int:
    """Let the next turns of sessions take a revision of an agent

    Of all sessions, of a share of them (by a hash of their ids), of a tenant, or of one session. Turns that have begun
    stay on their revision, and so do pinned sessions unless --session names one. No worker restarts.
    """
    parser = command_parser(_promote, "agents promote")
    parser.add_argument(
        "revision", metavar="AGENT@REVISION", help="the revision or its label; a worker must have it"
    )
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument("--share", metavar="PART", help="of all sessions, such as 5%% or 0.05")
    whose.add_argument("--tenant", metavar="NAME", help="the sessions of this tenant")
    whose.add_argument("--session", metavar="ID", help="this session")
    options = _parsed(parser, argv)
    asked = {"tenant": options.tenant, "session": options.session}
    if options.share is not None:
        asked["share"] = _share(options.share)
    return _change(options, lambda agents: agents.promote(options.revision, **asked))


def _act(name: str, change: Callable[[AsyncAgents, str], Awaitable[Promotion | None]], doc: str) -> Command:
    """Make the command ``agents NAME``, which changes the promotion of an agent."""

    def act(argv: list[str]) -> int:
        parser = command_parser(act, f"agents {name}")
        parser.add_argument("agent", help="name of the agent")
        options = _parsed(parser, argv)
        return _change(options, lambda agents: change(agents, options.agent))

    act.__doc__ = doc
    return act


def _retire(argv: list[str]) -> int:
    """Show which revisions workers are still needed for, and which workers may stop

    A revision is needed while sessions take it at their next turn, while turns that have begun on it have not ended,
    and while pinned sessions keep it. This reads all sessions.
    """
    options = _parsed(command_parser(_retire, "agents retire"), argv)
    found = read_client(options, lambda client: _listed(client, sessions=True))
    rows = [
        [
            one.agent, one.revision, one.label or "-", len(one.workers), one.turns, one.sessions, one.pinned,
            ", ".join(one.needed_by) or "nothing: its workers may stop",
        ]
        for one in found
    ]  # fmt: skip
    head = "agent, revision, label, workers, unfinished, sessions, pinned, needed by"
    if options.json:
        print_json([{**_builtins(one), "needed_by": one.needed_by} for one in found])
        return 0
    return print_found(options, found, head, rows, "No worker has agents of its own.")


@with_acts(
    {
        "promote": _promote,
        "pause": _act(
            "pause", AsyncAgents.pause, "Let no further session take the revision that is promoted to a share"
        ),
        "roll-back": _act(
            "roll-back",
            AsyncAgents.roll_back,
            "Withdraw the revision that was promoted last; AGENT@REVISION may be repeated",
        ),
        "reset": _act("reset", AsyncAgents.reset, "Forget all promotions of an agent"),
        "retire": _retire,
    }
)
def agents(argv: list[str]) -> int:
    """List the agents of the workers by revision, and the turns that have begun on each

    A revision without workers is listed if something still needs it. Its figures are those of the turns that ended in
    the last weeks: tool errors of all calls, the mean seconds of a turn, and the mean score of those with feedback.
    `antiphon agents promote AGENT@REVISION` lets sessions take a revision; `pause`, `roll-back` and `reset` take AGENT.
    `retire` shows which workers may stop. Each has its own --help.
    """
    options = _parsed(command_parser(agents), argv)
    found = read_client(options, _listed)
    rows = [
        [
            one.agent, one.revision, one.label or "-", "-" if one.share is None else _percent(one.share),
            len(one.workers), one.running, one.turns, *_figures(one.figures),
        ]
        for one in found
    ]  # fmt: skip
    head = (
        "agent, revision, label, share, workers, running, unfinished, ended, failed, tool errors, tokens, cost, "
        "seconds, feedback"
    )
    return print_found(options, found, head, rows, "No worker has agents of its own.")


def _figures(found: Figures) -> list[object]:
    return [
        found.turns, found.failed, f"{found.tool_errors}/{found.tool_calls}", found.tokens, f"${found.cost:.4g}",
        "-" if found.mean_seconds is None else f"{found.mean_seconds:.2f}",
        "-" if found.score is None else f"{found.score:+.2f} ({found.rated})",
    ]  # fmt: skip


async def _listed(client: AsyncClient, *, sessions: bool = False) -> list[AgentRevision]:
    return [one async for one in client.agents(sessions=sessions)]


def _change(options: argparse.Namespace, change: Callable[[AsyncAgents], Awaitable[Promotion | None]]) -> int:
    found = read_client(options, lambda client: change(client.agents())) or Promotion()
    if options.json:
        print_json([found])
    else:
        print("\n".join(table(["sessions", "revision"], _rows(found))))
    return 0


def _rows(found: Promotion) -> list[tuple[object, ...]]:
    """Return which sessions take which revision, exceptions first."""
    named = [
        *found.sessions.items(),
        *((f"of the tenant {name}", one) for name, one in found.tenants.items()),
    ]
    rows: list[tuple[object, ...]] = [*named]
    if found.canary:
        rows.append((_percent(found.share) + (", paused" if found.paused else ""), found.canary))
    return [*rows, ("all others" if rows else "all", found.revision or "of the worker that claims the turn")]


def _share(text: str) -> float:
    """Read ``5%`` or ``0.05``. Raises ``UsageError``."""
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise UsageError(
            f"--share must be a share of the sessions, such as 5% or 0.05, not {text!r}."
        ) from None


def _percent(share: float) -> str:
    return f"{share * 100:.6g}%"


def _builtins(one: AgentRevision) -> dict[str, Any]:
    return msgspec.structs.asdict(one)


def _parsed(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    add_json(parser)
    add_redis(parser)
    return parser.parse_args(argv)
