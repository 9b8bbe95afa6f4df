"""Steering and stopping on workers: a crash repeats what the model was given, and an accepted cancel is the end."""

import asyncio

import pytest
from support.ensemble import agent_spec, open_ensemble
from support.eventually import wait_until_async
from support.gates import Gate

from antiphon import tool
from antiphon.errors import TurnCancelled
from antiphon.testing import script, tool_call
from antiphon_worker import Allow, App
from antiphon_worker.process.publisher import TurnSink
from antiphon_worker.process.worker import Worker
from antiphon_worker.providers.scripted import ScriptedProvider
from antiphon_worker.settings import Settings


@pytest.mark.main_path
async def test_a_crash_repeats_what_the_turn_was_steered_with_at_the_same_place(processes, ensemble):
    ensemble.supervisor(processes=2).ready(2)
    turn = await ensemble.submit("s", "look around tool:wait")
    await ensemble.seen("s", "tool_call")
    steering = await ensemble.submit("s", "and then die*1", if_busy="steer")
    ensemble.stage.open("tool")
    response = await turn.result(20)
    assert (await steering.result(5)).text == response.text
    assert [role for role, _ in await ensemble.texts("s")] == [
        "user", "assistant", "tool", "user", "assistant",
    ]  # fmt: skip
    asked = ensemble.stage.notes("asked", text="and then die*1")
    assert [note["messages"] for note in asked] == [4, 4]
    assert await ensemble.field(turn, "crashes") == "1"
    assert [event.type for event in await ensemble.events("s")].count("turn_steered") == 1
    await ensemble.whole("s")


async def test_a_message_that_no_model_call_takes_runs_after_the_crash(processes, ensemble):
    ensemble.supervisor(processes=2).ready(2)
    turn = await ensemble.submit("s", "go on die*1 gate:g")
    await ensemble.seen("s", "text_delta")
    steering = await ensemble.submit("s", "and this", if_busy="steer")
    ensemble.stage.open("g")
    await turn.result(20)
    await steering.result(20)
    await ensemble.whole("s")
    started = [event.turn_id for event in await ensemble.events("s") if event.type == "turn_started"]
    steered = [event.steered_id for event in await ensemble.events("s") if event.type == "turn_steered"]
    assert (steering.id in started) is not (steering.id in steered)


@pytest.mark.parametrize(("words", "kept"), [("words:3", 2), ("fail:rejected", 2), ("fail:limited", 2)])
async def test_a_turn_that_is_cancelled_while_its_end_is_written_ends_as_cancelled(
    ensemble, monkeypatch, words, kept
):
    answers = []

    def late(name):
        whole = getattr(TurnSink, name)

        async def cancelled_first(sink):
            if not answers:
                answers.append(await turn.cancel("enough", keep="partial"))
            return await whole(sink)

        monkeypatch.setattr(TurnSink, name, cancelled_first)

    turn = await ensemble.submit("s", f"go on {words}")
    waiting = await ensemble.submit("s", "and then")
    late("settle")
    late("flushed")
    async with ensemble.worker():
        with pytest.raises(TurnCancelled, match="enough"):
            await turn.result(20)
        await waiting.result(20)
    assert answers == ["requested"]
    assert [event.kept for event in await ensemble.events("s") if event.type == "turn_cancelled"] == [kept]
    messages = (await ensemble.client.snapshot("s")).messages
    assert [message.interrupted for message in messages] == [False, True, False, False]
    await ensemble.whole("s")


async def test_a_cancel_interrupts_tools_that_run_beside_the_one_that_brought_the_news(
    redis_url, tmp_path, monkeypatch
):
    """Neither the message nor a renewal tells of it: only the answer to the first tool's result."""
    quick = Gate()
    slow = asyncio.Event()

    @tool
    async def look() -> str:
        """Look."""
        await quick()
        return "seen"

    @tool
    async def search() -> str:
        """Search for ever."""
        await slow.wait()
        return "found"

    monkeypatch.setattr("antiphon_worker.process.control.Control._cancel", lambda *_: None)
    monkeypatch.setattr("antiphon_worker.process.lease._answer", lambda lease, _: lease.answered())
    model = ScriptedProvider(script([tool_call("look"), tool_call("search")]))
    app = App(tools=[look, search], providers={"stage": model}, travelling=Allow(providers="any"))
    async with open_ensemble(redis_url, tmp_path / "stage") as ensemble:
        spec = agent_spec(tools=["look", "search"])
        turn = await ensemble.submit("s", "both", agent=spec)
        worker = Worker(Settings(), app, url=redis_url)
        running = asyncio.create_task(worker.run())
        await wait_until_async(quick.reached.is_set, 20, "the tools run")
        assert await turn.cancel("enough") == "requested"
        quick.opened.set()
        with pytest.raises(TurnCancelled):
            await turn.result(20)
        worker.abort()
        await running
        await app.aclose()
