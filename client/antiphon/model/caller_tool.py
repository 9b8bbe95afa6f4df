"""A tool that the caller runs."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from antiphon.model.suspension import AtLimit

__all__ = ["CallerTool"]


def _no_parameters() -> dict[str, Any]:
    return {"type": "object", "properties": {}}


class CallerTool(Struct, omit_defaults=True):
    """A tool without code: a model may call it, and whoever submitted the turn gives the result.

    ``parameters`` is the JSON schema of its arguments. ``timeout`` is how many seconds a call may wait for its result;
    None is the longest that any call waits, 30 days. Then ``at_limit`` says what happens: ``"reject"`` tells the model
    that no result came, and ``"fail"`` fails the turn.

    >>> CallerTool("open_page", "Open a page in the user's browser.", timeout=60).at_limit
    'reject'
    """

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=_no_parameters)
    timeout: float | None = None
    at_limit: AtLimit = "reject"
