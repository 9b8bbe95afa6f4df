"""Workers: run the turns of sessions."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon_worker.app import App
    from antiphon_worker.inline_agents import Allow

__all__ = ["Allow", "App"]

_MODULES = {"Allow": "antiphon_worker.inline_agents", "App": "antiphon_worker.app"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
