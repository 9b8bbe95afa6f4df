"""Workers: what runs the turns of sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon_worker.app import App

__all__ = ["App"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name != "App":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from antiphon_worker.app import App

    return App


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
