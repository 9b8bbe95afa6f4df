"""The size and cost of the data of idle sessions, for docs/scaling.md."""

from bench.idle import SHARES, WHOLE
from bench.results import Result, number

SESSIONS = 1_000_000
HOURS = 730
PRICES = {
    "ElastiCache Serverless for Valkey": 0.084 * HOURS,
    "ElastiCache Serverless for Redis OSS": 0.125 * HOURS,
    "Upstash, pay as you go": 0.25,
}
"""Dollars a month for a GB of data. The page has the sources."""
AGES = {
    "in the first hour": (1 / 24, ()),
    "then, for 7 days": (7, ("`rq:job`", "`ant:events`")),
    "then, until 30 days": (30, ("`rq:job`", "`ant:turn`", "`ant:events`")),
}
"""How long a session has been idle: until which day, and what has expired by then."""


def block(result: Result) -> list[str]:
    """Return the shares of an idle session, and the sums for many of them."""
    shares = {name: result.value(f"… {name}", "in Redis") or 0.0 for name in SHARES}
    whole = result.value(WHOLE, "in Redis") or 0.0
    text = ["| keys of a session | bytes |", "|---|---|"]
    text += [f"| {name} | {value:,.0f} |" for name, value in shares.items()]
    head = ("idle", "a session", f"{SESSIONS:,} sessions", *[f"{name}, a month" for name in PRICES])
    text += ["", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    before = days = byte_days = 0.0
    for age, (days, expired) in AGES.items():
        size = whole - sum(value for name, value in shares.items() if name.startswith(expired))
        text.append(_row(age, size))
        byte_days += size * (days - before)
        before = days
    return [*text, _row("sessions of every age, equally many", byte_days / days)]


def _row(age: str, size: float) -> str:
    gigabytes = size * SESSIONS / 1e9
    costs = (f"${number(gigabytes * price)}" for price in PRICES.values())
    return f"| {age} | {size / 1024:.1f} KiB | {gigabytes:.1f} GB | {' | '.join(costs)} |"
