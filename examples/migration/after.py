"""After: ten lines. Start the worker with `antiphon worker --app after:app`."""

import os

from antiphon import Agent, Client
from antiphon_worker import App

app = App(agents=[Agent("openai-chat", "gpt-4o-mini", name="assistant")])
client = Client(os.environ.get("REDIS_URL", "redis://localhost:6379/0"))


def ask(user: str, text: str) -> str:
    return client.submit(user, text, agent="assistant").id
