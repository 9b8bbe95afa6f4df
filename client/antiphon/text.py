"""Reads text and numbers from Redis, whatever is stored there, and formats times."""

from datetime import UTC, datetime


def text_of(data: bytes | None) -> str:
    r"""Return a text, an id or a name from Redis, or "" for None. Bytes that are not UTF-8 are escaped.

    Other programs may write to Redis, and no name there may crash the process that reads it. An escaped name matches
    no key.

    >>> text_of(b"ant\xff")
    'ant\\xff'
    """
    return data.decode(errors="backslashreplace") if data else ""


def time_text(ms: int) -> str:
    """Return a time in ms since 1970 in the form of ISO 8601, in UTC.

    >>> time_text(1_700_000_000_000)
    '2023-11-14T22:13:20.000Z'
    """
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def whole(score: float) -> int:
    """Return the score of a sorted set as a whole number between -2**53 and 2**53.

    >>> whole(float("inf"))
    9007199254740992
    """
    return int(min(max(score, -_MOST), _MOST))


def number(value: bytes | str | None) -> int:
    """Return a whole number from Redis, or 0 if there is none or it is invalid.

    >>> number(b"12"), number("1.5"), number(None)
    (12, 0, 0)
    """
    return int(value) if value and len(value) < 20 and value.isascii() and value.isdigit() else 0


_MOST = 2.0**53
