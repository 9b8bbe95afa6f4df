"""Turns that sleep, in this process and on workers: a tool goes on behind its steps, and nothing holds it before."""

from __future__ import annotations

import time

import pytest
from support.eventually import wait_until

from antiphon import tool
from antiphon.errors import TurnCancelled, UsageError
from antiphon.ext.turns import ModelAnswer, TurnFunction
from antiphon.model import Message
from antiphon.testing import script, tool_call
from antiphon.tools import Context

SECONDS = 1.0  # the least that is not slept in the worker


@pytest.fixture
def order(runtime):
    """A session whose tool takes a step, sleeps and takes another, and what it has done."""

    class Order:
        def __init__(self):
            self.ran = []
            self.seconds = SECONDS

        def session(self, **options):
            @tool(**options)
            async def order(context: Context) -> str:
                """Order."""
                self.ran.append("called")
                reserved = await context.step("reserve", self.step, "reserved")
                await context.sleep(self.seconds)
                return f"{reserved}, {await context.step('charge', self.step, 'charged')}"

            runtime.use(script([tool_call("order")], "Done."))
            return runtime.agent(tools=[order]).session()

        def step(self, name):
            self.ran.append(name)
            return name

    return Order()


def asleep(turn):
    wait_until(lambda: turn.status() == "suspended", description="the turn sleeps")
    return turn.info()


def test_a_tool_sleeps_and_runs_each_of_its_steps_once(order):
    session = order.session()
    began = time.time()
    turn = session.submit("Order 7.")
    events = list(turn.stream())
    assert turn.result().tool_calls[0].result == "reserved, charged"
    assert order.ran == ["called", "reserved", "called", "charged"]
    kinds = [event.type for event in events]
    assert [kind for kind in kinds if kind in ("step_recorded", "turn_sleeping", "turn_resumed")] == [
        "step_recorded", "turn_sleeping", "turn_resumed", "step_recorded",
    ]  # fmt: skip
    (wait,) = next(event for event in events if event.type == "turn_sleeping").waits
    assert (wait.name, wait.kind) == ("sleep", "sleep")
    resumed = next(event for event in events if event.type == "turn_resumed")
    assert resumed.decisions == []
    assert resumed.at >= wait.until >= (began + SECONDS) * 1000 - 5


def test_a_sleeping_turn_says_until_when_and_asks_nobody(order):
    order.seconds = 3_600
    turn = order.session().submit("Order 7.")
    info = asleep(turn)
    (wait,) = info.waits
    assert info.calls == []
    assert 3_500_000 < wait.until - time.time() * 1000 <= 3_600_000
    with pytest.raises(UsageError, match="sleeps until its time"):
        turn.approve(wait.id)
    turn.cancel()
    with pytest.raises(TurnCancelled):
        turn.result()
    assert order.ran == ["called", "reserved"]


def test_an_approved_tool_sleeps_and_its_message_names_who_approved_it(order):
    session = order.session(approval=True)
    turn = session.submit("Order 7.")
    (call,) = asleep(turn).calls
    turn.approve(call.call_id, by="ada")
    assert turn.result().tool_calls[0].result == "reserved, charged"
    (decision,) = [one for message in session.messages for one in message.decisions]
    assert (decision.kind, decision.by) == ("approve", "ada")


def test_the_next_turn_of_a_session_may_pass_by_a_sleeping_one(order):
    order.seconds = 3_600
    session = order.session()
    first = session.submit("Order 7.", while_suspended="continue")
    asleep(first)
    assert session.run("And now?").text == "Done."
    first.cancel()
    with pytest.raises(TurnCancelled):
        first.result()


def test_a_turn_function_sleeps_between_its_steps(workers_runtime):
    ran = []

    async def run(turn):
        first = await turn.context.step("first", lambda: ran.append("first") or "1")
        await turn.context.sleep(SECONDS)

        async def ask():
            return ModelAnswer(Message.assistant("2"))

        second = await turn.model_call(ask)
        await turn.context.sleep(SECONDS)
        return first + second.message.text

    workers_runtime.app.script = TurnFunction(run)
    assert workers_runtime.agent().session().run("Go").text == "12"
    assert ran == ["first"]
