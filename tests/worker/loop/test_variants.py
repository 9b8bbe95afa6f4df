"""A recorded turn runs again from a model call on, with another model or prompt, and no tool runs."""

import asyncio
import json
import sys

import msgspec
import pytest
from support.gateway import stand

from antiphon import Agent, tool
from antiphon.cli.main import main
from antiphon.errors import UsageError
from antiphon.model import Decision, Message, ToolCall, ToolResult
from antiphon.model.recording import Recording
from antiphon.testing import script, tool_call
from antiphon_worker.loop.variants import run_variant

RAN = []


@tool
def find_order(name: str) -> str:
    """Find an order."""
    RAN.append(name)
    return "another"


@tool(approval=True)
def refund(order: str) -> str:
    """Refund."""
    RAN.append(order)
    return "another"


RECORDING = Recording(
    "t1", "s", "finished", [Message.user("Refund my order.")],
    [
        Message("assistant", [ToolCall("c1", "find_order", {"name": "Ada"})]),
        Message("tool", [ToolResult("c1", "order 7", "find_order")]),
        Message("assistant", [ToolCall("c2", "refund", {"order": "7"})]),
        Message("tool", [ToolResult("c2", "done", "refund")], decisions=[Decision("c2", "approve", by="ada")]),
        Message.assistant("It is refunded."),
    ],
    history=[Message.user("Hello"), Message.assistant("Hello.")],
)  # fmt: skip


def agent(*said, **options) -> Agent:
    return Agent(
        script(*said), "old", name="support", system="Be kind.", tools=[find_order, refund], **options
    )


def results(variant) -> list[str]:
    return [one.text for message in variant.messages for one in message.tool_results]


async def test_calls_like_the_recorded_ones_have_their_results_and_decisions():
    RAN.clear()
    one = agent(tool_call("find_order", name="Ada"), tool_call("refund", order="7"), "Done, as you wish.")
    found = await run_variant(RECORDING, one, model="new", system="Be brief.")
    assert (found.text, found.model, found.error) == ("Done, as you wish.", "new", None)
    assert results(found) == ["order 7", "done"]
    assert RAN == []
    (first, *_) = one.provider.requests
    assert (first.model, first.system) == ("new", "Be brief.")
    assert [message.text for message in first.messages] == ["Hello", "Hello.", "Refund my order."]
    assert found.usage.tokens > 0


async def test_other_calls_have_no_result_and_are_not_approved():
    RAN.clear()
    found = await run_variant(
        RECORDING, agent(tool_call("find_order", name="Bob"), tool_call("refund", order="8"), "No.")
    )
    assert found.text == "No."
    assert "has no result" in results(found)[0]
    assert "has no decision" in results(found)[1]
    assert RAN == []


async def test_a_variant_forks_at_a_model_call():
    one = agent("I would rather not.")
    found = await run_variant(RECORDING, one, step=3)
    assert found.text == "I would rather not."
    assert results(found) == ["order 7", "done"]
    assert len(one.provider.requests) == 1
    for step in (0, 5):
        with pytest.raises(UsageError, match="--step"):
            await run_variant(RECORDING, one, step=step)


async def test_a_variant_that_fails_has_its_error():
    found = await run_variant(RECORDING, agent())
    assert found.error.startswith("provider_rejected")


@pytest.mark.one_server
async def test_runs_are_compared_in_the_terminal(redis_url, tmp_path, capsys, monkeypatch):
    (tmp_path / "shop.py").write_text(
        'from antiphon import Agent\nsupport = Agent("scripted", "any", name="support")\nother = 5\n'
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    file = tmp_path / "turn.json"
    file.write_bytes(msgspec.json.encode(RECORDING))

    async def run(*argv, code=0):
        assert await asyncio.to_thread(main, ["replay", *argv, "--redis-url", redis_url]) == code
        return capsys.readouterr()

    told = (await run(str(file), "--agent", "shop:support", "-n", "2", "--model", "new")).out
    assert [line.split()[:3] for line in told.splitlines()[1:4]] == [
        ["recorded", "-", "3"], ["run", "1", "new"], ["run", "2", "new"],
    ]  # fmt: skip
    assert told.count("in call 1") == 2
    assert "find_order(name='Ada')" in told
    assert "You said: Refund my order." in told
    async with stand(redis_url, tmp_path) as (_, api, _):
        turn = await api.submit("s", "Hello")
        await api.result(turn)
        (line,) = (await run(turn, "--agent", "shop:support", "--json")).out.splitlines()
        assert json.loads(line)["text"] == "You said: Hello"
    for place in ("shop", "shop:missing", "shop:other", "missing:support"):
        assert "--agent" in (await run(str(file), "--agent", place, code=2)).err
