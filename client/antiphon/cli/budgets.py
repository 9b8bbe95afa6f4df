"""The command for budgets: what turns may use together, and how much of it is used."""

from __future__ import annotations

import argparse
from typing import get_args

import msgspec

from antiphon.cli.arguments import (
    Command,
    Parser,
    add_json,
    add_redis,
    add_tenant,
    command_parser,
    print_found,
    read_client,
    with_acts,
)
from antiphon.cli.terminal import clock_time
from antiphon.client import AsyncBudgets, AsyncClient
from antiphon.model.budget import Budget, BudgetScope, BudgetState
from antiphon.redis.budget_lists import StoredBudget


def _set_budgets(argv: list[str]) -> int:
    """Set all budgets of a name, or without a name of all names that have none

    They replace the budgets that were set before. Turns that were suspended because of one ask again at once.
    """
    parser = _parser(_set_budgets, "budgets set")
    parser.add_argument(
        "--budget", metavar="cost=5,per=day", type=_budget, action="append", default=[], dest="budgets",
        help="cost= (dollars) or tokens=; per=turn, session, day or month; reached=reject, suspend or fallback; "
        "give it again for further budgets",
    )  # fmt: skip
    parser.add_argument("--none", action="store_true", help="set no budget: those for all names do not apply")
    options = parser.parse_args(argv)
    if bool(options.budgets) == options.none:
        parser.error("give --budget or --none; `antiphon budgets remove` removes budgets")
    return _change(options, options.budgets)


def _remove_budgets(argv: list[str]) -> int:
    """Remove the budgets of a name: those for all names, or of the workers' App, apply again"""
    return _change(_parser(_remove_budgets, "budgets remove").parse_args(argv), None)


@with_acts({"set": _set_budgets, "remove": _remove_budgets})
def budgets(argv: list[str]) -> int:
    """Show the budgets that apply to a name and how much is used; `budgets set` sets them

    `antiphon budgets set tenant acme --budget cost=5,per=day` sets them, and `remove tenant acme` removes them. Without
    a name they are those of all tenants (sessions, users, agents) that have none of their own. Without any argument
    all stored budgets are listed. Budgets that an App declares are not shown. Each has its own --help.
    """
    options = _parser(budgets, "budgets", scope="?").parse_args(argv)
    return _show(options) if options.scope else _list(options)


def _list(options: argparse.Namespace) -> int:
    found = read_client(options, lambda client: _all(client, options.tenant))
    head = "of, tenant, name, budget, per, reached, used, held, estimated, until"
    rows = [[one.scope, one.tenant or "-", one.name or "(all others)", *_row(one.state)] for one in found]
    return print_found(options, found, head, rows, "No budgets are stored.")


async def _all(client: AsyncClient, tenant: str | None) -> list[StoredBudget]:
    """Read all stored budgets, page by page, with a tenant only those of the tenant and its users."""
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


def _parser(command: Command, name: str, scope: str | None = None) -> Parser:
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


def _of(client: AsyncClient, options: argparse.Namespace) -> AsyncBudgets:
    return client.budgets(options.scope, options.name, tenant=options.tenant)


def _change(options: argparse.Namespace, asked: list[Budget] | None) -> int:
    read_client(options, lambda client: _of(client, options).set(asked))
    return _show(options)


def _show(options: argparse.Namespace) -> int:
    found = read_client(options, lambda client: _of(client, options).read())
    head = "budget, per, reached, used, held, estimated, until"
    return print_found(options, found, head, [_row(one) for one in found], "No budgets are set.")


def _row(one: BudgetState) -> list[object]:
    budget = one.budget

    def shown(number: float) -> str:
        return f"${number:,.6g}" if budget.unit == "cost" else f"{number:,.15g}"

    limit = f"{shown(budget.limit)}{' tokens' if budget.unit == 'tokens' else ''}"
    used = [shown(number) for number in (one.used, one.held, one.estimated)]
    return [limit, budget.per, budget.reached, *used, "-" if one.ends is None else clock_time(one.ends)]
