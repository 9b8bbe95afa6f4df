"""``Session`` and the parts that all runtimes share: turns, streams, properties and the saved form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon.session.session import Session

__all__ = ["Session"]


def __getattr__(name: str) -> Any:
    """Import ``Session`` on first access, because other modules of this package are used without it."""
    if name != "Session":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from antiphon.session.session import Session

    return Session
