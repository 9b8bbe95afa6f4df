"""What a hostile or broken model says is held to limits before anything of it is kept or run."""

import pytest
from support.here import running_worker
from support.journals import Journal

from antiphon import Agent
from antiphon.client import AsyncClient
from antiphon.errors import LimitReached
from antiphon.input.limits import LIMITS
from antiphon.model import Item, Message, Text, ToolCall, Usage
from antiphon.tools import Context, tool
from antiphon_worker import App
from antiphon_worker.loop.input import LoopInput
from antiphon_worker.loop.loop import run_loop
from antiphon_worker.loop.toolbox import ToolBox
from antiphon_worker.providers.base import StepResult

RUN = []


@tool
def pay(to: str = "") -> str:
    """Pay."""
    RUN.append(to)
    return "paid"


def deep(levels):
    value = {}
    for _ in range(levels):
        value = {"a": value}
    return value


class Hostile:
    """A model service that says this, and nothing that its SDK would refuse."""

    name = "hostile"

    def __init__(self, *parts):
        self._parts = list(parts)

    async def stream(self, request):
        stop = "tool_use" if any(isinstance(part, ToolCall) for part in self._parts) else "end"
        yield StepResult(Message("assistant", self._parts), Usage(3, 4), stop, None, "m")

    async def aclose(self):
        """Nothing is open."""


def call(number=0, **arguments):
    return ToolCall(f"call_{number}", "pay", arguments)


ATTACKS = {
    "answer_calls": [call(number) for number in range(LIMITS.answer_calls + 1)],
    "call_bytes": [call(to="x" * LIMITS.call_bytes)],
    "answer_bytes": [Text("x" * LIMITS.answer_bytes)],
    "json_depth": [call(**deep(LIMITS.json_depth))],
}


async def played(*parts):
    kept = Journal()
    inp = LoopInput("m", new_messages=[Message.user("Hello")], tools=[pay])
    try:
        await run_loop(Hostile(*parts), inp, ToolBox([pay]), kept, kept, Context("session", "turn"))
    finally:
        assert [type(event).__name__ for event in kept.events] == ["StepFinished"]
        assert kept.events[0].usage == Usage(3, 4), "what it used is counted"
        assert kept.entries == []


@pytest.mark.parametrize("limit", ATTACKS)
async def test_an_answer_beyond_a_limit_ends_its_turn_and_nothing_of_it_is_kept_or_run(limit):
    RUN.clear()
    with pytest.raises(LimitReached) as refused:
        await played(*ATTACKS[limit])
    assert (refused.value.limit, RUN) == (limit, [])


async def test_an_item_of_a_service_is_held_to_the_depth_too():
    with pytest.raises(LimitReached) as refused:
        await played(Item("hostile", deep(LIMITS.json_depth + 1)), Text("Hello"))
    assert refused.value.limit == "json_depth"


@pytest.mark.one_server
async def test_a_session_goes_on_after_a_hostile_answer(redis_url):
    RUN.clear()
    bad, good = Hostile(*ATTACKS["answer_calls"]), Hostile(Text("Hello"))
    bad.name, good.name = "bad", "good"
    app = App(
        agents=[Agent("bad", "m", name="bad", tools=[pay]), Agent("good", "m", name="good")],
        providers={"bad": bad, "good": good},
    )
    async with running_worker(redis_url, app), AsyncClient(redis_url) as client:
        turn = await client.submit("s", "Hello", agent="bad")
        with pytest.raises(LimitReached) as failed:
            await turn.result(30)
        assert (failed.value.limit, RUN) == ("answer_calls", [])
        assert turn.id
        assert (await (await client.submit("s", "Hello", agent="good")).result(30)).text == "Hello"
