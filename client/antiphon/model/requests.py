"""A model call of a turn, as the model received it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

MOST_BYTES = 1024 * 1024
"""A longer request is listed without its body."""


class KeptRequest(Struct, omit_defaults=True):
    """What a model received in one call: ``body`` is the JSON that was sent, without headers.

    What looks like a key or a password is replaced by ``[removed]``. ``step`` is 0 for a summary of the history. ``at``
    is the time in milliseconds since 1970, and ``size`` the length of the body in bytes. ``body`` is None if it was
    longer than 1 MiB, or if the turn's requests were too long to keep them all.
    """

    step: int
    run: int
    attempt: int
    at: int
    provider: str
    model: str
    size: int
    body: Any = None
