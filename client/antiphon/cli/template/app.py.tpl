"""The agents and tools of the workers: `antiphon worker --app app:app`."""

import os

from antiphon import Agent, tool
from antiphon_worker import App


@tool
def order_status(order_id: str) -> str:
    """Return where an order is."""
    return f"Order {order_id} was shipped yesterday."


support = Agent(
    provider=os.environ.get("MODEL_PROVIDER", "openai"),
    model=os.environ.get("MODEL_NAME", "gpt-4o"),
    name="support",
    tools=[order_status],
    system="You are a support agent. Be brief.",
)
app = App(agents=[support])
