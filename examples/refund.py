"""A refund that waits for a person, for the end of a cooling-off time, and for the bank. No worker and no key needed:

    python examples/refund.py

The tool is plain code. With `App(agents=[clerk])` and a worker, each wait may last for days, and the tool goes on after
every crash: what it did in a step does not run again.
"""

from __future__ import annotations

import threading
from datetime import timedelta

from antiphon import Agent, tool
from antiphon.errors import EventTimeout
from antiphon.testing import script, tool_call
from antiphon.tools import Context

COOLING_OFF = timedelta(seconds=1)  # in production: timedelta(days=1)
BANK_ANSWERS_WITHIN = timedelta(days=5)


def reserve(order: str, amount: int) -> str:
    """Set the money aside. In production this calls your ledger."""
    return f"reservation-{order}"


def transfer(reservation: str, amount: int) -> str:
    """Order the transfer. In production this calls your bank, which later sends the event `transfer:ID`."""
    return f"transfer-{reservation}"


def release(reservation: str) -> None:
    """Undo the reservation."""


@tool(approval=True)
async def refund(order: str, amount: int, context: Context) -> str:
    """Give the customer the money back."""
    reservation = await context.step("reserve", reserve, order, amount)
    await context.sleep(COOLING_OFF)
    paid = await context.step("transfer", transfer, reservation, amount, retries=3, at_most_once=True)
    try:
        receipt = await context.wait_for_event(paid, timeout=BANK_ANSWERS_WITHIN)
    except EventTimeout:
        await context.step("release", release, reservation)
        return "The bank did not answer: the refund was undone."
    return f"{amount} € were refunded. Receipt: {receipt['receipt']}."


model = script(tool_call("refund", order="4711", amount=30), "Your refund is done.")
clerk = Agent(model, "any", name="clerk", tools=[refund])


def main() -> None:
    session = clerk.session()
    turn = session.submit("I want my 30 € back.")
    for event in turn.stream():
        match event.type:
            case "turn_suspended":
                (call,) = event.calls
                print(f"waits for a person: {call.name} {call.arguments}")
                threading.Thread(target=turn.approve, args=[call.call_id], kwargs={"by": "ada"}).start()
            case "turn_sleeping":
                (wait,) = event.waits
                print(f"waits without a worker: {wait.name}")
                if wait.event:
                    session.send_event(wait.event, {"receipt": "R-1"}, key="from the bank")
            case "step_recorded":
                print(f"has done: {event.name}")
            case _:
                pass
    print(turn.result().tool_calls[0].result)


if __name__ == "__main__":
    main()
