"""The command that writes users of Redis with the rights that they need."""

from __future__ import annotations

import os
import secrets
import sys

from antiphon.cli.arguments import add_json, command_parser
from antiphon.cli.lists import print_json
from antiphon.redis.prefix import prefix_of
from antiphon.wire.connection.rights import ROLES, user_rule

__all__ = ["redis_acl"]

PASSWORD_VARIABLE = "ANTIPHON_ACL_PASSWORD"


def redis_acl(argv: list[str]) -> int:
    """Write a user of Redis that may do what its role needs, and nothing else

    Pass the line to redis-cli, or write it into the server's ACL file with --file. The password is that of
    ANTIPHON_ACL_PASSWORD. Without it, one is made and shown on standard error: the line has only its hash.
    """
    parser = command_parser(redis_acl, "redis acl")
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("--name", help="the user's name; by default the role")
    parser.add_argument(
        "--sessions", metavar="BEGINNING", help="what the ids of a subscriber's sessions begin with"
    )
    parser.add_argument(
        "--database", metavar="N", type=int, default=0, help="the subscriber's database; by default 0"
    )
    parser.add_argument("--prefix", help="first part of every key; by default ANTIPHON_PREFIX or ant")
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
