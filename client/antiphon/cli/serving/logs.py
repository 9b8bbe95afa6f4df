"""Sets the log of a process up: as text, or as JSON objects with fields that stay."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any

import msgspec

__all__ = ["FIELDS", "JSONFormatter", "set_up_logging"]

FIELDS = ("time", "level", "logger", "action", "message")
"""What every line has, in this order. Others follow where they are known: session, turn, fence, code, …"""

TEXT = "%(asctime)s %(levelname)-7s [%(action)s] %(message)s"
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


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
    """Log to standard error, each line with its ``action`` (``-`` where nothing has changed its state)."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter(TEXT, defaults={"action": "-"})
    handler.setFormatter(JSONFormatter() if form == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for noisy in ("httpx2", "httpcore2", "openai", "anthropic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
