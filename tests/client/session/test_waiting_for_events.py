"""Turns that wait for events, in this process and on workers: nothing holds them, and each event is received once."""

from __future__ import annotations

from datetime import timedelta

import pytest
from support.eventually import wait_until

from antiphon import tool
from antiphon.errors import EventTimeout, InvalidId, LimitReached, UsageError
from antiphon.testing import script, tool_call
from antiphon.tools import Context


@pytest.fixture
def order(runtime):
    """A session whose tool waits for a payment between two steps, and what it has done."""

    class Order:
        def __init__(self):
            self.ran = []
            self.timeout = None

        def session(self, tool_=None, **options):
            @tool
            async def order(context: Context) -> str:
                """Order."""
                await context.step("reserve", self.ran.append, "reserved")
                try:
                    paid = await context.wait_for_event("payment:7", timeout=self.timeout)
                except EventTimeout as exc:
                    return exc.message
                await context.step("send", self.ran.append, "sent")
                return f"paid {paid['amount']}"

            runtime.use(script([tool_call("order")], "Done."))
            return runtime.agent(tools=[tool_ or order]).session(**options)

    return Order()


def waiting(turn):
    wait_until(lambda: turn.status() == "suspended", description="the turn waits")
    return turn.info()


def test_a_tool_waits_for_an_event_and_runs_each_of_its_steps_once(order):
    session = order.session()
    turn = session.submit("Order 7.")
    (wait,) = waiting(turn).waits
    assert (wait.kind, wait.event) == ("event", "payment:7")
    assert session.send_event("payment:7", {"amount": 30}, key="evt_1") == 1
    assert turn.result().tool_calls[0].result == "paid 30"
    assert order.ran == ["reserved", "sent"]
    kinds = [event.type for event in turn.stream()]
    assert [kind for kind in kinds if kind in ("turn_sleeping", "event_received", "turn_resumed")] == [
        "turn_sleeping", "event_received", "turn_resumed",
    ]  # fmt: skip
    received = next(event for event in turn.stream() if event.type == "event_received")
    assert (received.wait_id, received.event_name) == (wait.id, "payment:7")


def test_an_event_that_was_sent_before_is_received(order):
    session = order.session()
    assert session.send_event("payment:7", {"amount": 1}) == 0
    assert session.run("Order 7.").tool_calls[0].result == "paid 1"


def test_without_an_event_the_wait_raises_after_its_time(order):
    order.timeout = 0.1
    assert order.session().run("Order 7.").tool_calls[0].result == "No event 'payment:7' came in time."
    assert order.ran == ["reserved"]


def test_an_event_of_another_tenant_is_not_received(order):
    turn = order.session(tenant="acme").submit("Order 7.")
    waiting(turn)
    assert order.session(tenant="other").send_event("payment:7", {"amount": 1}) == 0
    assert order.session().send_event("payment:7", {"amount": 2}) == 0
    assert order.session(tenant="acme").send_event("payment:7", {"amount": 3}) == 1
    assert turn.result().tool_calls[0].result == "paid 3"


def test_a_tool_may_wait_for_one_event_after_another(order):
    @tool(name="order")
    async def order_votes(context: Context) -> str:
        """Count votes."""
        return "".join([await context.wait_for_event("vote", timeout=timedelta(hours=1)) for _ in range(3)])

    session = order.session(order_votes)
    turn = session.submit("Go")
    waiting(turn)
    for vote in ("a", "b", "b", "c"):
        session.send_event("vote", vote, key=vote)
    assert turn.result().tool_calls[0].result == "abc"


def test_what_cannot_be_sent_is_refused_at_once(order):
    session = order.session()
    with pytest.raises(InvalidId, match="not a valid event name"):
        session.send_event("two words")
    with pytest.raises(UsageError, match="cannot be written as JSON"):
        session.send_event("paid", object())
    with pytest.raises(LimitReached) as caught:
        session.send_event("paid", "x" * 70_000)
    assert caught.value.limit == "event_bytes"
    with pytest.raises(UsageError, match="key= must be text"):
        session.send_event("paid", key="")
    with pytest.raises(UsageError, match=r"context\.wait_for_event takes a timedelta or seconds"):
        Context().wait_for_event("paid", timeout=-1)
