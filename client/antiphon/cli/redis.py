"""``antiphon redis`` and ``antiphon demo`` as they work without the demo package."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from typing import NoReturn

from msgspec.structs import asdict

from antiphon.cli.arguments import (
    Command,
    add_json,
    add_redis,
    command_parser,
    print_json,
    redis_urls,
    whole,
    with_acts,
)
from antiphon.errors import CorruptRecord, MissingPackage
from antiphon.redis.cells import prefix_of
from antiphon.wire.acl import ROLES, user_rule
from antiphon.wire.connection.open import keys_of, open_redis
from antiphon.wire.preflight import DURABILITIES, check_redis, read_redis
from antiphon.wire.shared_keys import damaged_keys

PASSWORD_VARIABLE = "ANTIPHON_ACL_PASSWORD"


def _check(argv: list[str]) -> int:
    """Show the version and the durability of a Redis; exit with 1 if it is unsuitable or a key is damaged"""
    parser = command_parser(_check, "redis check")
    add_redis(parser)
    parser.add_argument(
        "--durability",
        choices=DURABILITIES,
        default=os.environ.get("ANTIPHON_DURABILITY") or "everysec",
        help="what the Redis must guarantee; default: ANTIPHON_DURABILITY or everysec",
    )
    add_json(parser, "print what is known of each Redis as a line of JSON")
    options = parser.parse_args(argv)

    async def check() -> None:
        for url in redis_urls(options.redis_url):
            connection = open_redis(url, retries=0)
            keys = keys_of(connection, prefix_of(options.prefix))
            try:
                facts = await read_redis(connection, keys)
                check_redis(facts, options.durability)
                if damage := await damaged_keys(connection, keys):
                    raise CorruptRecord(" ".join(damage))
            finally:
                await connection.aclose()
            if options.json:
                print_json([asdict(facts) | {"durability": facts.durability}])
            else:
                print(facts.sentence())

    asyncio.run(check())
    return 0


def _acl(argv: list[str]) -> int:
    """Write a user of Redis that may do what its role needs, and nothing else

    Pass the line to redis-cli, or write it into the server's ACL file with --file. The password is that of
    ANTIPHON_ACL_PASSWORD. Without it, one is made and shown on standard error: the line has only its hash.
    """
    parser = command_parser(_acl, "redis acl")
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("--name", help="the user's name; default: the role")
    parser.add_argument("--sessions", metavar="BEGINNING", help="the prefix of a subscriber's session ids")
    parser.add_argument(
        "--database", metavar="N", type=whole, default=0, help="the subscriber's database; default: 0"
    )
    parser.add_argument("--prefix", help="first part of every key; default: ANTIPHON_PREFIX or ant")
    parser.add_argument("--file", action="store_true", help="write a line of an ACL file, not a command")
    add_json(parser, "print the user, the password if it was made, and the line as a line of JSON")
    options = parser.parse_args(argv)
    name = options.name or options.role
    given = os.environ.get(PASSWORD_VARIABLE)
    password = given or secrets.token_urlsafe(32)
    rule = user_rule(
        options.role, name, password,
        prefix=prefix_of(options.prefix), sessions=options.sessions, database=options.database,
    )  # fmt: skip
    line = f"{'user' if options.file else 'ACL SETUSER'} {rule}"
    if options.json:
        print_json([{"user": name, "password": None if given else password, "line": line}])
        return 0
    if not given:
        print(f"The password of {name}: {password}", file=sys.stderr)
    print(line)
    return 0


@with_acts({"check": _check, "acl": _acl})
def redis(argv: list[str]) -> int:
    """Start an embedded Valkey to try things out; `antiphon redis check` examines a Redis

    `antiphon redis acl` writes users with the rights that they need.
    """
    return _without_package(argv, redis)


def demo(argv: list[str]) -> int:
    """Play conversations, kill a worker in the middle of an answer, and check every guarantee"""
    return _without_package(argv, demo)


def _without_package(argv: list[str], command: Command) -> NoReturn:
    parser = command_parser(command)
    add_json(parser)
    parser.parse_args(argv)
    raise MissingPackage(f"`{parser.prog}` needs the package of the demo: pip install 'antiphon[demo]'.")
