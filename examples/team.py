"""A team of agents: a clerk hands over to billing, which asks two researchers in parallel and refunds with an approval.

    python examples/team.py

No worker and no key are needed: the models are scripts. With `App(agents=[clerk])` and workers, each researcher runs on
any of them, and the turn goes on after every crash.
"""

from __future__ import annotations

from antiphon import Agent, tool
from antiphon.handoffs import Handoff
from antiphon.testing import script, tool_call


@tool(approval=True)
def refund(order: str, amount: int) -> str:
    """Give the customer the money back."""
    return f"{amount} € were refunded for the order {order}."


researcher = Agent(
    script("The order 4711 was paid twice.", repeat=True), "any", name="researcher",
    system="You look orders up in the books.",
)  # fmt: skip

billing = Agent(
    script(
        [tool_call("researcher", input="Order 4711: payments?"), tool_call("researcher", input="4711: refunds?")],
        tool_call("refund", order="4711", amount=30),
        "You were charged twice. Your 30 € are on their way.",
        "Your refund was ordered today.",
    ),
    "any", name="billing", system="You answer questions about payments.",
    tools=[researcher.as_tool(timeout=600), refund],
)  # fmt: skip

clerk = Agent(
    script(tool_call("transfer_to_billing", reason="A double charge.")), "any", name="clerk",
    system="Find out what the customer needs.",
    handoffs=[Handoff(billing, after="stay", description="For questions about payments.")],
)  # fmt: skip


def main() -> None:
    session = clerk.session()
    turn = session.submit("Why was I charged twice for 4711?")
    for event in turn.stream():
        match event.type:
            case "handoff":
                print(f"{event.source} hands over to {event.target}: {event.reason}")
            case "child_event" if event.event["type"] in ("turn_queued", "turn_finished"):
                print(f"{event.agent}: {event.event['type']}")
            case "turn_suspended":
                for call in event.calls:
                    print(f"a person approves {call.name} {call.arguments}")
                    turn.approve(call.call_id, by="ada")
            case _:
                pass
    print(turn.result().text)
    print(session.run("When?").text, f"({session.messages[-1].agent})")


if __name__ == "__main__":
    main()
