"""The commands for stored limits, budgets, schedules, webhooks and facts, for events, and for export and erasure."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any, get_args

import msgspec

from antiphon.bytestores.of_process import FILES_VARIABLE
from antiphon.cli.arguments import (
    Command,
    Parser,
    add_agent,
    add_archive,
    add_json,
    add_options,
    add_redis,
    add_tenant,
    agent_of,
    command_parser,
    json_value,
    list_parser,
    options_in,
    print_found,
    print_json,
    print_list,
    read_client,
    seconds,
    whole,
    with_acts,
)
from antiphon.cli.terminal import clock_time, table
from antiphon.client import AsyncBudgets, AsyncClient, AsyncFacts, TenantLimits
from antiphon.errors import SessionNotFound
from antiphon.model.budget import Budget, BudgetScope, BudgetState
from antiphon.redis.budgets import StoredBudget
from antiphon.redis.deployment import TenantRow
from antiphon.redis.deployment import tenants as listed_tenants

SECRET_VARIABLE = "ANTIPHON_WEBHOOK_SECRET"
UNSEARCHED = {"archive": "archived sessions", "files": "contents in the byte store"}


def limits(argv: list[str]) -> int:
    """Show or set how many turns and stored bytes a tenant may have

    Without a tenant, it shows or sets the defaults of all tenants. With any option it sets all limits; an omitted
    one returns to its default. Turns beyond --in-flight and --user-in-flight wait; what exceeds the others is rejected.
    """
    parser = command_parser(limits)
    parser.add_argument("tenant", nargs="?", help="name of a tenant")
    parser.add_argument("--in-flight", metavar="N", type=whole, help="most turns in a queue or running")
    parser.add_argument("--waiting", metavar="N", type=whole, help="most accepted turns that wait")
    parser.add_argument(
        "--per-minute", metavar="N", type=whole, help="most turns submitted in any 60 seconds"
    )
    parser.add_argument("--user-turns", metavar="N", type=whole, help="most unfinished turns of each user")
    parser.add_argument(
        "--user-in-flight",
        metavar="N",
        type=whole,
        help="most turns of each user in line, in a queue or running",
    )
    parser.add_argument(
        "--user-per-minute",
        metavar="N",
        type=whole,
        help="most turns submitted by each user in any 60 seconds",
    )
    parser.add_argument(
        "--stored-bytes", metavar="N", type=whole, help="most bytes of stored files of all sessions"
    )
    parser.add_argument("--none", action="store_true", help="remove all limits")
    add_json(parser, "print the limits as a line of JSON")
    add_redis(parser)
    options = parser.parse_args(argv)

    async def set_and_read(client: AsyncClient) -> dict[str, Any]:
        asked = {name: getattr(options, name) for name in TenantLimits.__struct_fields__}
        if options.none or any(number is not None for number in asked.values()):
            await client.set_tenant_limits(options.tenant, **{} if options.none else asked)
        return msgspec.structs.asdict(await client.tenant_limits(options.tenant))

    found = read_client(options, set_and_read)
    if options.json:
        print_json([found])
    else:
        rows = [(name.replace("_", " "), "none" if most is None else most) for name, most in found.items()]
        print("\n".join(table(["limit", "most"], rows)))
    return 0


def tenants(argv: list[str]) -> int:
    """List the tenants with unfinished turns or limits of their own

    A limit that is not its own is the default of all tenants. Each limit counts in each Redis.
    """
    parser = command_parser(tenants)
    add_json(parser, "print each tenant as a line of JSON")
    add_redis(parser)
    options = parser.parse_args(argv)
    found = read_client(options, lambda client: listed_tenants(client.connections.cells))

    def row(one: TenantRow) -> list[object]:
        limits = ["none" if most is None else most for most in msgspec.structs.astuple(one.limits)]
        return [one.tenant, one.in_flight, one.waiting, *limits]

    head = (
        "tenant, in flight, waiting, most in flight, most waiting, most per minute, most of a user, user in flight, "
        "user per minute, stored bytes"
    )
    return print_found(options, found, head, [row(one) for one in found], "No tenant has turns or limits.")


def _add_schedule(argv: list[str]) -> int:
    """Submit a turn at regular times or for each event, or replace the schedule of this name

    Times are seconds (--every 3600) or cron text (--cron '0 18 * * 1-5') in a time zone. Workers submit the turns. With
    --on, an event that no turn waits for submits a turn.
    """
    parser = command_parser(_add_schedule, "schedules add")
    parser.add_argument("session", help="id of the session")
    parser.add_argument("name", help="name of the schedule: letters, digits, '_', '.' and '-'")
    parser.add_argument("text", help="text of the user in each turn")
    times = parser.add_mutually_exclusive_group(required=True)
    times.add_argument("--every", metavar="SECONDS", type=seconds)
    times.add_argument("--cron", metavar="TEXT", help="minute, hour, day, month and weekday")
    times.add_argument("--on", metavar="EVENT", help="name of an event, or the beginning of names and *")
    parser.add_argument("--tz", metavar="ZONE", default="UTC", help="time zone of --cron; default: UTC")
    add_agent(parser)
    add_options(parser, "schedule")
    add_json(parser, "print the schedule as a line of JSON")
    add_redis(parser)
    options = parser.parse_args(argv)
    agent = agent_of(options, parser)
    asked = options_in(options)
    options.tenant = asked.pop("tenant", None)
    return _change_schedule(options, lambda schedules: schedules.set(
        options.name, options.text, every=options.every, cron=options.cron, tz=options.tz, on=options.on, agent=agent,
        **asked,
    ))  # fmt: skip


def _schedule_act(name: str, method: str, doc: str) -> Command:
    """Make the command ``schedules NAME``, which calls a method of a session's schedules."""

    def act(argv: list[str]) -> int:
        parser = command_parser(act, f"schedules {name}")
        parser.add_argument("session", help="id of the session")
        parser.add_argument("name", help="name of the schedule")
        add_tenant(parser, "fail if the schedule belongs to another tenant")
        add_json(parser, "print the schedule afterwards as a line of JSON; nothing if it was removed")
        add_redis(parser)
        options = parser.parse_args(argv)
        return _change_schedule(options, lambda schedules: getattr(schedules, method)(options.name))

    act.__doc__ = doc
    return act


def _change_schedule(options: argparse.Namespace, change: Callable[[Any], Awaitable[None]]) -> int:
    async def run(client: AsyncClient) -> list[Any]:
        schedules = client.schedules(options.session, tenant=options.tenant)
        await change(schedules)
        return [one async for one in schedules if one.name == options.name] if options.json else []

    print_json(read_client(options, run))
    return 0


@with_acts(
    {
        "add": _add_schedule,
        "remove": _schedule_act("remove", "delete", "Delete a schedule and keep the turns it has submitted"),
        "pause": _schedule_act("pause", "pause", "Submit no turns of a schedule until it is resumed"),
        "resume": _schedule_act(
            "resume", "resume", "Submit turns of a paused schedule again, from its next time on"
        ),
    }
)
def schedules(argv: list[str]) -> int:
    """List the schedules, the next due first; `schedules add` creates one

    `antiphon schedules add SESSION NAME TEXT` creates or replaces a schedule. `remove`, `pause` and `resume` take
    SESSION NAME. Each has its own --help.
    """
    parser = list_parser(schedules, "schedules")
    parser.add_argument("--session", metavar="ID", help="only schedules of this session")
    options = parser.parse_args(_listed(argv))
    return print_list(
        options, lambda client: client.schedules(options.session, tenant=options.tenant),
        "session, name, when, due, last turn, error",
        lambda one: [
            one.session_id, one.name, f"on {one.on}" if one.on else one.cron or f"every {one.every:g} s",
            "paused" if one.paused else clock_time(one.due or 0), one.last_turn or "-", one.error or "",
        ],
        "No schedules found.",
    )  # fmt: skip


def _add_webhook(argv: list[str]) -> int:
    """Send completion events to a URL, or replace the webhook of this name; prints the secret

    The endpoint verifies the signature with the secret. Set your own in ANTIPHON_WEBHOOK_SECRET; otherwise one is
    generated. It is shown only once.
    """
    parser = command_parser(_add_webhook, "webhooks add")
    parser.add_argument("name", help="name of the webhook: letters, digits, '_', '.' and '-'")
    parser.add_argument("url", help="https://… of the endpoint")
    parser.add_argument("--types", metavar="A,B", help="only these events, such as turn_failed")
    add_tenant(parser, "only turns of this tenant")
    parser.add_argument("--agent", metavar="NAME", help="only turns of this agent")
    parser.add_argument("--private", action="store_true", help="allow private addresses and http://")
    add_json(parser, "print the name and the secret of the webhook as a line of JSON")
    add_redis(parser)
    options = parser.parse_args(argv)
    types = options.types and [one.strip() for one in options.types.split(",")]
    secret = read_client(
        options,
        lambda client: client.webhooks(tenant=options.tenant).set(
            options.name, options.url, types=types, agent=options.agent, private=options.private,
            secret=os.environ.get(SECRET_VARIABLE) or None,
        ),
    )  # fmt: skip
    if options.json:
        print_json([{"name": options.name, "secret": secret}])
    else:
        print(secret)
    return 0


def _remove_webhook(argv: list[str]) -> int:
    """Delete a webhook with its pending deliveries"""
    parser = command_parser(_remove_webhook, "webhooks remove")
    parser.add_argument("name", help="name of the webhook")
    add_tenant(parser, "fail if the webhook belongs to another tenant")
    add_json(parser, "print the name as a line of JSON")
    add_redis(parser)
    options = parser.parse_args(argv)
    read_client(options, lambda client: client.webhooks(tenant=options.tenant).delete(options.name))
    print_json([{"name": options.name, "removed": True}] if options.json else [])
    return 0


@with_acts({"add": _add_webhook, "remove": _remove_webhook})
def webhooks(argv: list[str]) -> int:
    """List the webhooks with their deliveries; `webhooks add` creates one

    `antiphon webhooks add NAME URL` creates or replaces a webhook, and `remove NAME` deletes it. Each has its own
    --help.
    """
    options = list_parser(webhooks, "webhooks").parse_args(_listed(argv))
    return print_list(
        options, lambda client: client.webhooks(tenant=options.tenant),
        "name, url, tenant, agent, waiting, dropped, last error",
        lambda one: [one.name, one.url, one.tenant or "-", one.agent or "-", one.waiting, one.dropped, one.error or ""],
        "No webhooks found.",
    )  # fmt: skip


def _add_fact(argv: list[str]) -> int:
    """Add a fact"""
    parser = _facts_parser(_add_fact, "facts add")
    parser.add_argument("text", help="one sentence")
    options = parser.parse_args(argv)
    return _change_fact(options, lambda known: known.add(options.text))


def _edit_fact(argv: list[str]) -> int:
    """Change the text of a fact"""
    parser = _facts_parser(_edit_fact, "facts edit")
    parser.add_argument("fact", help="id of the fact")
    parser.add_argument("text", help="one sentence")
    options = parser.parse_args(argv)
    return _change_fact(options, lambda known: known.edit(options.fact, options.text))


def _remove_fact(argv: list[str]) -> int:
    """Delete a fact; its turns are not extracted again"""
    parser = _facts_parser(_remove_fact, "facts remove")
    parser.add_argument("fact", help="id of the fact")
    options = parser.parse_args(argv)
    read_client(options, lambda client: _known(client, options).delete(options.fact))
    print_json([{"id": options.fact, "removed": True}] if options.json else [])
    return 0


@with_acts({"add": _add_fact, "edit": _edit_fact, "remove": _remove_fact})
def facts(argv: list[str]) -> int:
    """List the facts of a memory; `facts add` adds one

    `antiphon facts add TEXT` adds a fact, `edit ID TEXT` changes its text, and `remove ID` deletes it. Each has its own
    --help. Use --agent and --session for memories of these scopes.
    """
    parser = list_parser(facts, "facts")
    _add_scope(parser)
    options = parser.parse_args(_listed(argv))
    return print_list(
        options, lambda client: _known(client, options), "fact, text, by, since",
        lambda one: (
            [one.id, one.error, "-", "-"] if one.error else [one.id, one.text, one.by, clock_time(one.updated)]
        ),
        "No facts found.",
    )  # fmt: skip


def _change_fact(options: argparse.Namespace, change: Callable[[AsyncFacts], Awaitable[Any]]) -> int:
    fact = read_client(options, lambda client: change(_known(client, options)))
    if options.json:
        print_json([fact])
    else:
        print(fact.id)
    return 0


def _facts_parser(command: Command, name: str) -> argparse.ArgumentParser:
    parser = command_parser(command, name)
    add_tenant(parser, "tenant of the facts")
    _add_scope(parser)
    add_json(parser, "print the fact as a line of JSON")
    add_redis(parser)
    return parser


def _add_scope(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--agent", metavar="NAME", help="agent, for a memory of an agent's scope")
    parser.add_argument("--session", metavar="ID", help="session, for a memory of a session's scope")
    parser.add_argument(
        "--memory", metavar="NAME", default="memory", help="name of the facts; default: memory"
    )


def _known(client: AsyncClient, options: argparse.Namespace) -> AsyncFacts:
    return client.memory(options.memory, tenant=options.tenant, agent=options.agent, session=options.session)


def _listed(argv: list[str]) -> list[str]:
    return argv[1:] if argv[:1] == ["list"] else argv


def export(argv: list[str]) -> int:
    """Print the content of a session, of a tenant or of a user as lines of JSON

    Each line has a `type`: `session`, followed by its turns (`turn`) and schedules (`schedule`). The events that were
    sent to a tenant come last (`event`).
    """
    options = _content_parser(export).parse_args(argv)

    async def printed(client: AsyncClient) -> bool:
        found = False
        async for one in client.export(session=options.session, tenant=options.tenant, user=options.user):
            found = True
            print_json([one])
        return found

    if not read_client(options, printed) and options.session is not None:
        raise SessionNotFound("Nothing is stored of this session.")
    return 0


def forget(argv: list[str]) -> int:
    """Erase all content of a session, of a tenant or of a user, and search for what is left

    Running turns are cancelled. It exits with 1 if the search finds content: repeat it then. It also exits with 1 if
    there is an archive and you have not passed it. Export first what is to be kept.
    """
    parser = _content_parser(forget)
    parser.add_argument(
        "--memory", metavar="NAME", default="memory", help="facts of a tenant; default: memory"
    )
    add_json(parser, "print the report as a line of JSON")
    options = parser.parse_args(argv)
    found = read_client(
        options,
        lambda client: client.forget(
            session=options.session, tenant=options.tenant, user=options.user, memory=options.memory
        ),
    )
    if options.json:
        print_json([found])
    else:
        print(
            f"Erased {len(found.sessions)} sessions, {found.turns} further turns, {found.schedules} further schedules, "
            f"{found.webhooks} webhooks and {found.facts} facts.\nSearched {found.searched} keys: "
            + (
                f"{len(found.left)} still have content."
                if found.left
                else f"{' and '.join(UNSEARCHED[one] for one in found.unsearched)} were not searched."
                if found.unsearched
                else "none has any content of them."
            )
        )
        for one in found.left:
            print(one, file=sys.stderr)
        for one in found.pending:
            print(f"Workers still remove {one}.")
    if "archive" in found.unsearched:
        print("Archived sessions may still have content: pass --archive with their store.", file=sys.stderr)
    if "files" in found.unsearched:
        print(f"The byte store may still have contents of files: set {FILES_VARIABLE}.", file=sys.stderr)
    return 1 if found.left or found.unsearched else 0


def event(argv: list[str]) -> int:
    """Send an event to the turns that wait for it

    Turns wait with `context.wait_for_event`. The event is kept for a day: a turn that begins to wait later receives it.
    If no turn waits, it starts those of `antiphon schedules add --on`.
    """
    parser = command_parser(event)
    parser.add_argument("name", help="name of the event, such as payment:4711")
    parser.add_argument("data", nargs="?", type=json_value, help="its data as JSON; default: null")
    parser.add_argument("--key", help="within a day, the same name and key are the same event")
    add_tenant(parser, "send it to the turns of this tenant")
    add_json(parser, "print a line of JSON")
    add_redis(parser)
    options = parser.parse_args(argv)
    turns = read_client(
        options,
        lambda client: client.send_event(options.name, options.data, key=options.key, tenant=options.tenant),
    )
    if options.json:
        print_json([{"turns": turns}])
    else:
        print(f"It reached {turns} turn{'s' * (turns != 1)}, and is kept for a day.")
    return 0


def _content_parser(command: Command) -> argparse.ArgumentParser:
    parser = command_parser(command)
    parser.add_argument("--session", metavar="ID", help="the session")
    parser.add_argument("--user", metavar="NAME", help="the user that turns were submitted for")
    add_tenant(parser, "the tenant; with --session: its owner, or the command fails; with --user: the user's")
    add_archive(parser)
    add_redis(parser)
    return parser


def _set_budgets(argv: list[str]) -> int:
    """Set all budgets of a name, or without a name of all names that have none

    They replace the budgets that were set before. Turns that were suspended because of one ask again at once.
    """
    parser = _budgets_parser(_set_budgets, "budgets set")
    parser.add_argument(
        "--budget", metavar="cost=5,per=day", type=_budget, action="append", default=[], dest="budgets",
        help="cost= (dollars) or tokens=; per=turn, session, day or month; reached=reject, suspend or fallback; "
        "give it again for further budgets",
    )  # fmt: skip
    parser.add_argument("--none", action="store_true", help="set no budget: those for all names do not apply")
    options = parser.parse_args(argv)
    if bool(options.budgets) == options.none:
        parser.error("give --budget or --none; `antiphon budgets remove` removes budgets")
    return _change_budgets(options, options.budgets)


def _remove_budgets(argv: list[str]) -> int:
    """Remove the budgets of a name: those for all names, or of the workers' App, apply again"""
    return _change_budgets(_budgets_parser(_remove_budgets, "budgets remove").parse_args(argv), None)


@with_acts({"set": _set_budgets, "remove": _remove_budgets})
def budgets(argv: list[str]) -> int:
    """Show the budgets that apply to a name and how much is used; `budgets set` sets them

    `antiphon budgets set tenant acme --budget cost=5,per=day` sets them, and `remove tenant acme` removes them. Without
    a name they are those of all tenants (sessions, users, agents) that have none of their own. Without any argument
    all stored budgets are listed. Budgets that an App declares are not shown. Each has its own --help.
    """
    options = _budgets_parser(budgets, "budgets", scope="?").parse_args(argv)
    return _show_budgets(options) if options.scope else _list_budgets(options)


def _list_budgets(options: argparse.Namespace) -> int:
    found = read_client(options, lambda client: _all_budgets(client, options.tenant))
    head = "of, tenant, name, budget, per, reached, used, held, estimated, until"
    rows = [
        [one.scope, one.tenant or "-", one.name or "(all others)", *_budget_row(one.state)] for one in found
    ]
    return print_found(options, found, head, rows, "No budgets are stored.")


async def _all_budgets(client: AsyncClient, tenant: str | None) -> list[StoredBudget]:
    """Read all stored budgets page by page; with a tenant, only those of the tenant and its users."""
    scopes: tuple[BudgetScope, ...] = ("tenant", "user") if tenant else get_args(BudgetScope)
    found: list[StoredBudget] = []
    for scope in scopes:
        cursor = None
        while True:
            page = await client.budgets(scope, None).page(tenant=tenant, cursor=cursor)
            found += page.budgets
            if (cursor := page.cursor) is None:
                break
    return found


def _budgets_parser(command: Command, name: str, scope: str | None = None) -> Parser:
    parser = command_parser(command, name)
    parser.add_argument(
        "scope", nargs=scope, choices=get_args(BudgetScope), help="session, tenant, user or agent"
    )
    parser.add_argument("name", nargs="?", help="its name; default: all names without their own")
    add_tenant(parser, "tenant of the user")
    add_json(parser, "print each budget as a line of JSON")
    add_redis(parser)
    return parser


def _budget(text: str) -> Budget:
    pairs = [pair.partition("=") for pair in text.split(",")]
    try:
        return msgspec.convert({name: value for name, _, value in pairs}, Budget, strict=False)
    except msgspec.ValidationError as exc:
        raise argparse.ArgumentTypeError(f"{text!r} is not a budget such as cost=5,per=day: {exc}") from None


def _budgets_of(client: AsyncClient, options: argparse.Namespace) -> AsyncBudgets:
    return client.budgets(options.scope, options.name, tenant=options.tenant)


def _change_budgets(options: argparse.Namespace, asked: list[Budget] | None) -> int:
    read_client(options, lambda client: _budgets_of(client, options).set(asked))
    return _show_budgets(options)


def _show_budgets(options: argparse.Namespace) -> int:
    found = read_client(options, lambda client: _budgets_of(client, options).read())
    head = "budget, per, reached, used, held, estimated, until"
    return print_found(options, found, head, [_budget_row(one) for one in found], "No budgets are set.")


def _budget_row(one: BudgetState) -> list[object]:
    budget = one.budget

    def shown(number: float) -> str:
        return f"${number:,.6g}" if budget.unit == "cost" else f"{number:,.15g}"

    limit = f"{shown(budget.limit)}{' tokens' if budget.unit == 'tokens' else ''}"
    used = [shown(number) for number in (one.used, one.held, one.estimated)]
    return [limit, budget.per, budget.reached, *used, "-" if one.ends is None else clock_time(one.ends)]
