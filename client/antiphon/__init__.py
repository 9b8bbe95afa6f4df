"""Sessions of turns between users and language models, on Redis and RQ."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from antiphon.lazy import names_of

if TYPE_CHECKING:
    from antiphon.agent import Agent
    from antiphon.client import AsyncClient, Client
    from antiphon.model import Message
    from antiphon.session.async_session import AsyncSession
    from antiphon.session.session import Session
    from antiphon.tools import tool

logging.getLogger(__name__).addHandler(logging.NullHandler())  # an application decides what it prints

__all__ = ["Agent", "AsyncClient", "AsyncSession", "Client", "Message", "Session", "tool"]

__getattr__, __dir__ = names_of(
    __name__,
    {
        "Agent": "agent",
        "AsyncClient": "client",
        "AsyncSession": "session.async_session",
        "Client": "client",
        "Message": "model",
        "Session": "session.session",
        "tool": "tools",
    },
)
