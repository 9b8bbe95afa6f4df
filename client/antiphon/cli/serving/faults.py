"""Logs unexpected exceptions: where they were raised, and their text only at debug.

The text of an exception may hold what a user wrote. Its type and its frames (files, lines and source code) do not.
"""

from __future__ import annotations

import logging
import traceback
from typing import Any

__all__ = ["log_fault"]


def log_fault(log: logging.Logger, exc: BaseException, sentence: str, *args: Any, **fields: Any) -> None:
    """Log an error with the exception's type and frames, then, at debug, the whole traceback with its texts."""
    frames = "".join(traceback.format_tb(exc.__traceback__)).rstrip()
    log.error("%s: %s\n%s", sentence % args, type(exc).__name__, frames, extra=fields)
    log.debug(sentence, *args, exc_info=exc, extra=fields)
