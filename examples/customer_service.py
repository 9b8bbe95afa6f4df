"""Customer service: a triage agent passes the customer on to billing, whose refunds wait for a person.

    OPENAI_API_KEY=… python customer_service.py "I was charged twice for order 4711."

This runs in one process. `antiphon worker --app customer_service:app` runs the same agents on workers.
"""

from __future__ import annotations

import sys

from antiphon import Agent, tool
from antiphon.handoffs import Handoff
from antiphon_worker import App


@tool(approval=True)
def refund(order: int, euros: float) -> str:
    """Give a customer money back."""
    return f"{euros:.2f} € were refunded for order {order}."


billing = Agent(
    "openai", "gpt-5-mini", name="billing", system="You answer questions about payments.", tools=[refund]
)
triage = Agent(
    "openai", "gpt-5-mini", name="triage", system="Find out what the customer needs and pass them on.",
    handoffs=[Handoff(billing, after="stay", description="For questions about payments.")],
)  # fmt: skip
app = App(agents=[triage])


def main() -> None:
    turn = triage.session().submit(" ".join(sys.argv[1:]))
    for event in turn.stream():
        if event.type == "handoff":
            print(f"{event.source} hands over to {event.target}: {event.reason}")
        elif event.type == "turn_suspended":
            for call in event.calls:
                if input(f"Allow {call.name} {call.arguments}? [y/n] ") == "y":
                    turn.approve(call.call_id, by="you")
                else:
                    turn.reject(call.call_id, by="you")
    print(turn.result().text)


if __name__ == "__main__":
    main()
