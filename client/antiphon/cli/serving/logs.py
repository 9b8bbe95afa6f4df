"""Sets the log of a process up: as text, or as JSON objects with fields that stay."""

from __future__ import annotations

import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any

import msgspec

__all__ = ["FIELDS", "JSONFormatter", "TextFormatter", "set_up_logging"]

FIELDS = ("time", "level", "logger", "action", "message")
"""What every line has, in this order. Others follow where they are known: session, turn, fence, code, …"""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
TEXT = "%(asctime)s %(levelname)-7s [%(action)s] %(message)s"
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class TextFormatter(logging.Formatter):
    """Lines of text, each with its ``action`` (``-`` where nothing has changed its state).

    What follows the first line of a record is indented, and control characters are left out: whatever a record quotes,
    a line that begins with a time is one of ours.

    >>> import logging
    >>> record = logging.makeLogRecord({"msg": "it said: %s", "args": ("no\\n2026-01-01 INFO [stopped] bye",)})
    >>> TextFormatter().format(record).splitlines()[1]
    '    2026-01-01 INFO [stopped] bye'
    """

    def __init__(self) -> None:
        super().__init__(TEXT, defaults={"action": "-"})

    def format(self, record: logging.LogRecord) -> str:
        return _CONTROL.sub("", super().format(record)).replace("\n", "\n    ")


class JSONFormatter(logging.Formatter):
    """One JSON object for each line. What a log call adds with ``extra`` becomes fields of their own.

    >>> import logging
    >>> record = logging.makeLogRecord({"msg": "turn %s ended", "args": ("t",), "created": 0.0, "turn": "t"})
    >>> JSONFormatter().format(record).partition(',"level"')[0]
    '{"time":"1970-01-01T00:00:00.000Z"'
    """

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "action": getattr(record, "action", None),
            "message": record.getMessage(),
            "process": record.process,
        }
        line |= {
            name: value for name, value in vars(record).items() if name not in _STANDARD and name not in line
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def set_up_logging(level: str, form: str = "text") -> None:
    """Log to standard error, each line with its ``action``: as text, or as ``json``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for noisy in ("httpx2", "httpcore2", "openai", "anthropic", "faiss"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
