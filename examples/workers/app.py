# app.py
import os

from antiphon import Agent, tool
from antiphon_worker import App


@tool
def order_status(order_id: str) -> str:
    """Say where an order is."""
    return f"Order {order_id} was shipped yesterday."


support = Agent(
    provider="openai" if "OPENAI_API_KEY" in os.environ else "scripted",
    model="gpt-4o",
    name="support",
    tools=[order_status],
    system="You are a support agent. Be brief.",
)
app = App(agents=[support])
