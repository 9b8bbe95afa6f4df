"""Turns that do not finish, on workers: what stays of them, also when the worker that was to end them dies (G2, G6)."""

import signal

import pytest
from support.ensemble import agent_spec, signal_process
from support.eventually import wait_until_async

from antiphon.errors import ProviderStreamBroken, TurnCancelled, TurnFailed
from antiphon.input.request import WAITS

# What a dead worker leaves is ended by the reaper's script, whose own tests run on each server.
pytestmark = pytest.mark.one_server


KEPT = pytest.mark.parametrize(
    ("keep", "kept"),
    [
        ("partial", [("user", False), ("assistant", False), ("tool", True)]),
        ("steps", [("user", False), ("assistant", False), ("tool", False)]),
        ("nothing", []),
    ],
)


@KEPT
async def test_what_is_to_stay_is_known_to_whoever_ends_the_turn_of_a_dead_worker(
    processes, keep, kept, ensemble
):
    ensemble.supervisor(processes=2).ready(2)
    turn = await ensemble.submit("s", "write it down tool:note gate:g")
    pid = await ensemble.waits("g")
    signal_process(pid, signal.SIGSTOP)  # so that it does not hear of it
    assert await turn.cancel("enough", keep=keep) == "requested"
    signal_process(pid, signal.SIGKILL)
    with pytest.raises(TurnCancelled, match="enough"):
        await turn.result(60)
    messages = (await ensemble.client.snapshot("s")).messages
    assert [(one.role, one.interrupted) for one in messages] == kept
    info = await turn.info()
    assert [one.role for one in info.messages] == ["assistant", "tool"], "the answer that it wrote is lost"
    assert len(ensemble.stage.notes("asked")) == 2, "no model is asked again"
    ensemble.stage.open("g")
    await (await ensemble.submit("s", "and on")).result(60)
    await ensemble.whole("s")
    assert [len(one["told"]) for one in ensemble.stage.notes("asked", text="and on")] == [int(not kept)]


@KEPT
async def test_what_a_revising_turn_of_a_dead_worker_keeps_takes_the_place_of_what_it_revised(
    processes, keep, kept, ensemble
):
    ensemble.supervisor(processes=2).ready(2)
    await (await ensemble.submit("s", "hello")).result(60)
    session = ensemble.client.session("s")
    before = await session.messages()
    turn = await session.edit(before[0].id, "write it down tool:note gate:g")
    pid = await ensemble.waits("g")
    signal_process(pid, signal.SIGSTOP)  # so that it does not hear of it
    assert await turn.cancel("enough", keep=keep) == "requested"
    signal_process(pid, signal.SIGKILL)
    with pytest.raises(TurnCancelled, match="enough"):
        await turn.result(60)
    messages = await session.messages()
    if kept:
        assert [(one.role, one.interrupted) for one in messages] == kept
        assert messages[0].text == "write it down tool:note gate:g"
    else:
        assert messages == before
    ensemble.stage.open("g")
    await (await ensemble.submit("s", "and on")).result(60)
    (asked,) = ensemble.stage.notes("asked", text="and on")
    assert len(asked["told"]) == int(not kept)


async def test_a_turn_that_was_given_up_can_be_read_and_tells_the_next_one_what_it_did(processes, ensemble):
    ensemble.supervisor(processes=2, crash_limit=2).ready(2)
    turn = await ensemble.submit("s", "write it down tool:note die:always")
    with pytest.raises(TurnFailed, match="given up after 2 crashes"):
        await turn.result(60)
    info = await turn.info()
    assert (info.status, info.code, info.attempt) == ("failed", "worker_crashed", 2)
    assert info.usage.output_tokens == 1
    assert [one.text for one in info.input] == ["write it down tool:note die:always"]
    assert [result.text for one in info.messages for result in one.tool_results] == ["noted"]
    assert [one.role for one in await history(ensemble, failed=True)] == ["user", "assistant", "tool"]
    await (await ensemble.submit("s", "and on")).result(60)
    (asked,) = ensemble.stage.notes("asked", text="and on")
    assert "returned: noted" in asked["told"][0]
    await ensemble.whole("s")


async def history(ensemble, **options):
    return await ensemble.client.session("s").history(**options)


@pytest.mark.main_path
async def test_a_call_that_a_crash_left_open_has_a_result_that_says_so(processes, ensemble):
    ensemble.supervisor(processes=2, crash_limit=1).ready(2)
    turn = await ensemble.submit("s", "pay unpaid tool:pay")
    with pytest.raises(TurnFailed):
        await turn.result(60)
    (result,) = [result for one in (await turn.info()).messages for result in one.tool_results]
    assert result.is_error
    assert "unknown what it has done" in result.text
    await (await ensemble.submit("s", "and on")).result(60)
    (asked,) = ensemble.stage.notes("asked", text="and on")
    assert "unknown what it has done" in asked["told"][0]


async def approved(ensemble, text):
    turn = await ensemble.submit("s", text, agent=agent_spec(approval=["pay"], version=WAITS))
    await wait_until_async(lambda: is_suspended(turn), 60)
    (call,) = (await turn.info()).calls
    return turn, call.call_id


async def is_suspended(turn):
    return await turn.status() == "suspended"


async def test_an_approved_call_of_a_turn_that_ends_before_a_worker_continues_it_was_not_run(ensemble):
    async with ensemble.worker():
        turn, call = await approved(ensemble, "buy tool:pay")
    await turn.approve(call, by="ada")
    await turn.cancel("enough", keep="partial")
    async with ensemble.worker():
        with pytest.raises(TurnCancelled):
            await turn.result(60)
    assert ensemble.stage.notes("tool") == []
    (result,) = [one for message in (await turn.info()).messages for one in message.tool_results]
    assert result.text == "This tool was not run: it was approved, and the turn ended before it began."


async def test_a_failed_turn_that_runs_again_on_workers_begins_a_run_with_new_attempts(ensemble):
    async with ensemble.worker(error_limit=1):
        turn = await ensemble.submit("s", "at first not tool:note fail:broken*2", key="k")
        with pytest.raises(ProviderStreamBroken):
            await turn.result(60)
        again = await ensemble.submit("s", "at first not tool:note fail:broken*2", key="k", retry_failed=True)
        assert again.id == turn.id
        await again.result(60)
        first, second = await turn.runs()
        assert (first.status, first.attempt, second.status, second.attempt) == ("failed", 1, "finished", 1)
        assert [one.role for one in first.messages] == ["assistant", "tool", "assistant"]
        asked = ensemble.stage.notes("asked")
        assert [bool(one["told"]) for one in asked] == [False, False, True, True]
        await ensemble.whole("s")


async def test_a_snapshot_shows_what_was_accepted(ensemble):
    async with ensemble.worker():
        later = await ensemble.submit("s", "later", delay=3600)
        running = await ensemble.submit("s", "first gate:g", metadata={"a": 1})
        waiting = await ensemble.submit("s", "second")
        await ensemble.waits("g")
        shown = (await ensemble.client.snapshot("s")).pending
        assert [(one.turn_id, one.input[0].text, one.status) for one in shown] == [
            (running.id, "first gate:g", "running"), (waiting.id, "second", "waiting"), (later.id, "later", "queued"),
        ]  # fmt: skip
        assert shown[0].metadata == {"a": 1}
        assert [turn.id async for turn in ensemble.client.turns("s", status="waiting")] == [waiting.id]
        ensemble.stage.open("g")
        await waiting.result(60)
        await later.cancel()
        assert (await ensemble.client.snapshot("s")).pending == []
