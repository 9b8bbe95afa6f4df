"""The commands for what an operator configures in Redis: tenant limits, schedules, webhooks, facts, users."""

from __future__ import annotations

import argparse
import os
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from antiphon.cli.arguments import (
    add_agent,
    add_json,
    add_options,
    add_redis,
    agent_of,
    command_parser,
    list_parser,
    options_in,
    print_json,
    print_list,
    read_client,
    with_acts,
)
from antiphon.cli.terminal import clock_time, table
from antiphon.client import AsyncClient, AsyncFacts, AsyncSchedules, Fact, TenantLimits

SECRET_VARIABLE = "ANTIPHON_WEBHOOK_SECRET"


def limits(argv: list[str]) -> int:
    """Show or set how many turns a tenant may have

    Without a tenant it shows or sets the defaults of all tenants. With any option it sets all three limits: one that
    is left out is the default again. Turns beyond --in-flight wait; those beyond the others are refused.
    """
    parser = command_parser(limits)
    parser.add_argument("tenant", nargs="?", help="the name of a tenant")
    parser.add_argument("--in-flight", metavar="N", type=int, help="queued and running turns")
    parser.add_argument("--waiting", metavar="N", type=int, help="accepted turns that wait")
    parser.add_argument("--per-minute", metavar="N", type=int, help="turns submitted in any 60 seconds")
    parser.add_argument("--none", action="store_true", help="take all its limits away")
    add_json(parser, "print the limits as a line of JSON")
    add_redis(parser)
    options = parser.parse_args(argv)
    asked = {name: getattr(options, name) for name in TenantLimits.__struct_fields__}

    async def change(client: AsyncClient) -> dict[str, Any]:
        if options.none or any(number is not None for number in asked.values()):
            await client.set_tenant_limits(options.tenant, **{} if options.none else asked)
        return msgspec.structs.asdict(await client.tenant_limits(options.tenant))

    found = read_client(options, change)
    if options.json:
        print_json([found])
        return 0
    rows = [(name.replace("_", " "), "none" if number is None else number) for name, number in found.items()]
    print("\n".join(table(["limit", "turns"], rows)))
    return 0


def _add_schedule(argv: list[str]) -> int:
    """Submit a turn again and again, or replace the schedule of this name

    Times are seconds (--every 3600) or cron text (--cron '0 18 * * 1-5') in a time zone. Workers submit the turns.
    """
    parser = command_parser(_add_schedule, "schedules add")
    parser.add_argument("session", help="the session's id")
    parser.add_argument("name", help="the schedule's name: letters, digits, '_', '.' and '-'")
    parser.add_argument("text", help="the user's text of each turn")
    times = parser.add_mutually_exclusive_group(required=True)
    times.add_argument("--every", metavar="SECONDS", type=float)
    times.add_argument("--cron", metavar="TEXT", help="minute, hour, day, month and weekday")
    parser.add_argument("--tz", metavar="ZONE", default="UTC", help="the time zone of --cron; by default UTC")
    add_agent(parser)
    add_options(parser, "schedule")
    add_json(parser, "print the schedule as a line of JSON")
    add_redis(parser)
    options = parser.parse_args(argv)
    agent = agent_of(options, parser)

    asked = options_in(options)
    tenant = asked.pop("tenant", None)
    return _print_schedule(options, tenant, lambda schedules: schedules.set(
        options.name, options.text, every=options.every, cron=options.cron, tz=options.tz, agent=agent, **asked
    ))  # fmt: skip


def _print_schedule(
    options: argparse.Namespace, tenant: str | None, act: Callable[[AsyncSchedules], Awaitable[None]]
) -> int:
    """Do something with the schedules of a session, and print the named one as it is then if that is asked."""

    async def run(client: AsyncClient) -> int:
        schedules = client.schedules(options.session, tenant=tenant)
        await act(schedules)
        if options.json:
            print_json([one async for one in schedules if one.name == options.name])
        return 0

    return read_client(options, run)


def _remove_schedule(schedules: Any, name: str) -> Coroutine[Any, Any, None]:
    """Delete a schedule; the turns that it has submitted stay"""
    return schedules.delete(name)


def _pause_schedule(schedules: Any, name: str) -> Coroutine[Any, Any, None]:
    """Submit no turns of a schedule until it is resumed"""
    return schedules.pause(name)


def _resume_schedule(schedules: Any, name: str) -> Coroutine[Any, Any, None]:
    """Submit turns of a paused schedule again, from its next time on"""
    return schedules.resume(name)


def _act_on_schedule(argv: list[str], act: Callable[[Any, str], Coroutine[Any, Any, None]]) -> int:
    parser = command_parser(act, f"schedules {act.__name__.removeprefix('_').partition('_')[0]}")
    parser.add_argument("session", help="the session's id")
    parser.add_argument("name", help="the schedule's name")
    parser.add_argument("--tenant", metavar="NAME", help="refuse if the schedule is not one of this tenant")
    add_json(parser, "print the schedule as it is then as a line of JSON; nothing of one that is removed")
    add_redis(parser)
    options = parser.parse_args(argv)

    return _print_schedule(options, options.tenant, lambda schedules: act(schedules, options.name))


@with_acts(
    {
        "add": _add_schedule,
        "remove": lambda argv: _act_on_schedule(argv, _remove_schedule),
        "pause": lambda argv: _act_on_schedule(argv, _pause_schedule),
        "resume": lambda argv: _act_on_schedule(argv, _resume_schedule),
    }
)
def schedules(argv: list[str]) -> int:
    """List the schedules, next first; `schedules add` sets one

    `antiphon schedules add SESSION NAME TEXT` sets a schedule, `remove SESSION NAME` deletes it, and `pause` and
    `resume` stop it for a time. Each has a --help of its own.
    """
    parser = list_parser(schedules, "schedules")
    parser.add_argument("--session", metavar="ID", help="show only schedules of this session")
    options = parser.parse_args(_listed(argv))
    return print_list(
        options, lambda client: client.schedules(options.session, tenant=options.tenant),
        "session, name, when, due, last turn, error",
        lambda one: [
            one.session_id, one.name, one.cron or f"every {one.every:g} s",
            "paused" if one.due is None else clock_time(one.due), one.last_turn or "-", one.error or "",
        ],
        "There is no schedule.",
    )  # fmt: skip


def _add_webhook(argv: list[str]) -> int:
    """Set a webhook: a URL that receives completion events; prints the secret

    The receiver checks the signature with the secret. Give one of your own in ANTIPHON_WEBHOOK_SECRET; without it, one
    is made. It is shown only now.
    """
    parser = command_parser(_add_webhook, "webhooks add")
    parser.add_argument("name", help="the webhook's name: letters, digits, '_', '.' and '-'")
    parser.add_argument("url", help="the endpoint, https://…")
    parser.add_argument("--types", metavar="A,B", help="only these events, such as turn_failed")
    parser.add_argument("--tenant", metavar="NAME", help="only turns of this tenant")
    parser.add_argument("--agent", metavar="NAME", help="only turns of this agent")
    parser.add_argument("--private", action="store_true", help="allow private addresses and http://")
    add_json(parser, "print the webhook's name and its secret as a line of JSON")
    add_redis(parser)
    options = parser.parse_args(argv)
    types = options.types and [one.strip() for one in options.types.split(",")]

    secret = read_client(options, lambda client: client.webhooks(tenant=options.tenant).set(
        options.name, options.url, types=types, agent=options.agent, private=options.private,
        secret=os.environ.get(SECRET_VARIABLE) or None,
    ))  # fmt: skip
    if options.json:
        print_json([{"name": options.name, "secret": secret}])
    else:
        print(secret)
    return 0


def _remove_webhook(argv: list[str]) -> int:
    """Delete a webhook, with the deliveries that wait"""
    parser = command_parser(_remove_webhook, "webhooks remove")
    parser.add_argument("name", help="the webhook's name")
    parser.add_argument("--tenant", metavar="NAME", help="refuse if the webhook is not one of this tenant")
    add_json(parser, "print the name as a line of JSON")
    add_redis(parser)
    options = parser.parse_args(argv)

    read_client(options, lambda client: client.webhooks(tenant=options.tenant).delete(options.name))
    if options.json:
        print_json([{"name": options.name, "removed": True}])
    return 0


@with_acts({"add": _add_webhook, "remove": _remove_webhook})
def webhooks(argv: list[str]) -> int:
    """List the webhooks and their deliveries; `webhooks add` sets one

    `antiphon webhooks add NAME URL` sets a webhook, and `remove NAME` deletes it. Each has a --help of its own.
    """
    options = list_parser(webhooks, "webhooks").parse_args(_listed(argv))
    return print_list(
        options, lambda client: client.webhooks(tenant=options.tenant),
        "name, url, tenant, agent, waiting, dropped, last error",
        lambda one: [one.name, one.url, one.tenant or "-", one.agent or "-", one.waiting, one.dropped, one.error or ""],
        "There is no webhook.",
    )  # fmt: skip


def _add_fact(argv: list[str]) -> int:
    """Add a fact"""
    parser = _facts_parser(_add_fact, "facts add")
    parser.add_argument("text", help="one sentence")
    options = parser.parse_args(argv)
    return _print_fact(options, lambda known: known.add(options.text))


def _edit_fact(argv: list[str]) -> int:
    """Let a fact read differently"""
    parser = _facts_parser(_edit_fact, "facts edit")
    parser.add_argument("fact", help="the fact's id")
    parser.add_argument("text", help="one sentence")
    options = parser.parse_args(argv)
    return _print_fact(options, lambda known: known.edit(options.fact, options.text))


def _remove_fact(argv: list[str]) -> int:
    """Delete a fact; it is not extracted again from the same turns"""
    parser = _facts_parser(_remove_fact, "facts remove")
    parser.add_argument("fact", help="the fact's id")
    options = parser.parse_args(argv)

    read_client(options, lambda client: _known(client, options).delete(options.fact))
    if options.json:
        print_json([{"id": options.fact, "removed": True}])
    return 0


@with_acts({"add": _add_fact, "edit": _edit_fact, "remove": _remove_fact})
def facts(argv: list[str]) -> int:
    """List the facts of a memory; `facts add` adds one

    `antiphon facts add TEXT` adds a fact, `edit ID TEXT` lets one read differently, and `remove ID` deletes it. Each
    has a --help of its own. --agent and --session are for memories of these scopes.
    """
    parser = list_parser(facts, "facts")
    _add_scope(parser)
    options = parser.parse_args(_listed(argv))
    return print_list(
        options, lambda client: _known(client, options), "fact, text, by, since",
        lambda one: (
            [one.id, one.error, "-", "-"] if one.error else [one.id, one.text, one.by, clock_time(one.updated)]
        ),
        "Nothing is known.",
    )  # fmt: skip


def _print_fact(options: argparse.Namespace, act: Callable[[AsyncFacts], Coroutine[Any, Any, Fact]]) -> int:
    fact = read_client(options, lambda client: act(_known(client, options)))
    if options.json:
        print_json([fact])
    else:
        print(fact.id)
    return 0


def _facts_parser(command: Callable[[list[str]], int], name: str) -> argparse.ArgumentParser:
    parser = command_parser(command, name)
    parser.add_argument("--tenant", metavar="NAME", help="the tenant of the facts")
    _add_scope(parser)
    add_json(parser, "print the fact as a line of JSON")
    add_redis(parser)
    return parser


def _add_scope(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--agent", metavar="NAME", help="facts of a memory of an agent's scope")
    parser.add_argument("--session", metavar="ID", help="facts of a memory of a session's scope")
    parser.add_argument(
        "--memory", metavar="NAME", default="memory", help="the name of the facts; by default memory"
    )


def _known(client: AsyncClient, options: argparse.Namespace) -> AsyncFacts:
    return client.memory(options.memory, tenant=options.tenant, agent=options.agent, session=options.session)


def _listed(argv: list[str]) -> list[str]:
    return argv[1:] if argv[:1] == ["list"] else argv
