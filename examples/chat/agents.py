"""The assistant, for the workers: ``antiphon worker --app agents:app``.

It repeats what it is told, word by word. With ``CHAT_PROVIDER`` and ``CHAT_MODEL`` it is a real model.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

from antiphon import Agent, Message, tool
from antiphon_worker import App, TitleModel

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


def first_words(messages: list[Message]) -> str:
    """Name a chat without a model."""
    return messages[0].text[:60]


app = App(
    agents=[assistant],
    titles=first_words if PROVIDER == "scripted" else TitleModel(PROVIDER, MODEL),
    search="ANTIPHON_ARCHIVE" in os.environ,
)
