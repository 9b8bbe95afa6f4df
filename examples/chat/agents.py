"""The assistant, for the workers: ``antiphon worker --app agents:app``.

It repeats what it is told, word by word. With ``CHAT_PROVIDER`` and ``CHAT_MODEL`` it is a real model.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

from antiphon import Agent, tool
from antiphon_worker import App

PROVIDER = os.environ.get("CHAT_PROVIDER", "scripted")
MODEL = os.environ.get("CHAT_MODEL", "any")
PARAMS: dict[str, Any] = {"pause": 0.2} if PROVIDER == "scripted" else {}  # seconds before each word


@tool
def current_time() -> str:
    """Say what time it is, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


assistant = Agent(
    PROVIDER,
    MODEL,
    name="assistant",
    system="You are a helpful assistant. Answer briefly, in plain text.",
    tools=[current_time],
    **PARAMS,
)
app = App(agents=[assistant])
