"""Sessions of turns between users and language models, on Redis and RQ."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon.agent import Agent
    from antiphon.client import AsyncClient, Client
    from antiphon.model import Message
    from antiphon.session.async_session import AsyncSession
    from antiphon.session.session import Session
    from antiphon.tools import tool

logging.getLogger(__name__).addHandler(logging.NullHandler())  # an application decides what it prints

__all__ = ["Agent", "AsyncClient", "AsyncSession", "Client", "Message", "Session", "tool"]

_MODULES = {
    "Agent": "agent",
    "AsyncClient": "client",
    "AsyncSession": "session.async_session",
    "Client": "client",
    "Message": "model",
    "Session": "session.session",
    "tool": "tools",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for, so that ``import antiphon`` stays light."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
