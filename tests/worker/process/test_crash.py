"""Workers that die in the middle: nothing is lost, nothing is run twice, and it goes on soon (G1, G2, G5, G6)."""

import asyncio
import json
import signal
import time

import pytest
from support.ensemble import agent_spec, open_ensemble, signal_process
from support.eventually import wait_until_async
from support.share import share_of_processor

from antiphon.errors import TurnFailed


@pytest.mark.main_path
async def test_a_turn_goes_on_elsewhere_within_a_second_when_its_process_dies(processes, ensemble):
    supervised = ensemble.supervisor(processes=2)
    supervised.ready(2)
    first = await ensemble.submit("s", "hello")
    turn = await ensemble.submit("s", "go on gate:g")
    await first.result(60)
    pid = await ensemble.waits("g")
    await ensemble.seen("s", "text_delta", 2)
    with share_of_processor(processes) as share:
        died = time.time() * 1000
        signal_process(pid, signal.SIGKILL)
        other = await ensemble.waits("g", 2)
        given = share()
    ensemble.stage.open("g")
    response = await turn.result(60)
    events = await ensemble.events("s")
    await ensemble.whole("s")
    assert other != pid
    assert response.messages[-1].text == (await ensemble.texts("s"))[-1][1]
    started = [event for event in events if event.type == "turn_started" and event.turn_id == turn.id]
    assert [event.attempt for event in started] == [1, 2]
    assert (started[1].at - died) * given < 1000
    assert (await ensemble.types("s", turn)) == [
        "turn_queued", "turn_started", "text_delta", "turn_retrying", "turn_started", "text_delta",
        "step_finished", "turn_finished",
    ]  # fmt: skip
    assert await ensemble.field(turn, "crashes") == "1"
    assert supervised.process.terminate() == 0


@pytest.mark.main_path
async def test_a_turn_goes_on_within_a_lease_when_its_host_is_lost(processes, ensemble):
    lost = ensemble.supervisor(lease=1)
    lost.ready()
    turn = await ensemble.submit("s", "go on gate:g")
    waiting = await ensemble.submit("s", "and then")
    pid = await ensemble.waits("g")
    other = ensemble.supervisor(lease=1)
    other.ready()
    assert [pid] == lost.workers
    with share_of_processor(processes) as share:
        died = time.time() * 1000
        lost.process.kill()
        assert await ensemble.waits("g", 2) in other.workers
        given = share()
    ensemble.stage.open("g")
    await turn.result(60)
    await waiting.result(60)
    await ensemble.whole("s")
    (retrying,) = [event for event in await ensemble.events("s") if event.type == "turn_retrying"]
    assert retrying.code == "worker_died"
    assert (retrying.at - died) * given < 2000


@pytest.mark.main_path
async def test_a_finished_tool_call_is_not_run_again(processes, ensemble):
    ensemble.supervisor(processes=2).ready(2)
    turn = await ensemble.submit("s", "write it down tool:note gate:g")
    signal_process(await ensemble.waits("g"), signal.SIGKILL)
    await ensemble.waits("g", 2)
    ensemble.stage.open("g")
    response = await turn.result(60)
    await ensemble.whole("s")
    assert len(ensemble.stage.notes("tool")) == 1
    assert [call.result for call in response.tool_calls] == ["noted"]
    (retrying,) = [event for event in await ensemble.events("s") if event.type == "turn_retrying"]
    assert retrying.step == 2


async def test_a_call_that_is_repeated_has_the_key_that_it_had(processes, ensemble):
    ensemble.supervisor(processes=2).ready(2)
    turn = await ensemble.submit("s", "wait for it tool:wait")

    async def called(times):
        def calls():
            return len(ensemble.stage.notes("tool", tool="wait")) == times

        await wait_until_async(calls, description=f"the tool was called {times} times")
        return ensemble.stage.notes("tool", tool="wait")

    (first,) = await called(1)
    signal_process(first["pid"], signal.SIGKILL)
    await called(2)
    ensemble.stage.open("tool")
    await turn.result(60)
    other = await ensemble.submit("s", "and again tool:wait")
    await other.result(60)
    first, second, another = await called(3)
    await ensemble.whole("s")
    assert first["pid"] != second["pid"]
    assert (first["attempt"], second["attempt"], another["attempt"]) == (1, 2, 1)
    assert first["key"] == second["key"] != another["key"]


async def test_a_rejected_answer_is_not_asked_for_again(redis_url, tmp_path, processes):
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    answers = ["prose", '{"text": "' + "word " * 40 + '"}']
    agent = agent_spec(provider="scripted")
    async with open_ensemble(redis_url, tmp_path / "stage", processes) as ensemble:
        supervised = ensemble.supervisor()
        supervised.ready()
        params = {"script": answers, "delay": 2}  # the second answer takes a minute,
        turn = await ensemble.submit("s", "Plan", agent=agent, schema=schema, params=params)
        await ensemble.seen("s", "step_finished")
        request = json.loads(await ensemble.field(turn, "request"))
        request["params"]["delay"] = 0  # but not when it is asked for again
        cell = ensemble.client.connections.cell_of_session("s")
        await cell.redis.hset(cell.keys.turn(turn.id), "request", json.dumps(request))
        signal_process(supervised.workers[0], signal.SIGKILL)
        response = await turn.result(60)
        events = await ensemble.events("s")
        (retrying,) = [event for event in events if event.type == "turn_retrying"]
        assert retrying.step == 2
        steps = [(event.step, bool(event.rejected)) for event in events if event.type == "step_finished"]
        assert steps == [(1, True), (2, False)]
        assert response.output == {"text": "word " * 40}
        assert response.usage.output_tokens > 50
        assert [role for role, _ in await ensemble.texts("s")] == ["user", "assistant"]


@pytest.mark.main_path
async def test_an_at_most_once_tool_is_not_started_twice(processes, ensemble):
    ensemble.supervisor(processes=2).ready(2)
    turn = await ensemble.submit("s", "buy it unpaid tool:pay")
    response = await turn.result(60)
    await ensemble.whole("s")
    assert len(ensemble.stage.notes("tool", tool="pay")) == 1
    (call,) = response.tool_calls
    assert call.is_error
    assert "unknown whether this tool ran" in call.result


async def test_a_tool_that_was_not_finished_is_run_again(processes, ensemble):
    ensemble.supervisor(processes=2).ready(2)
    turn = await ensemble.submit("s", "wait for it tool:wait")
    started = await wait_until_async(lambda: ensemble.stage.notes("tool"), 20)
    signal_process(started[0]["pid"], signal.SIGKILL)
    await wait_until_async(lambda: len(ensemble.stage.notes("tool")) == 2, 20)
    ensemble.stage.open("tool")
    response = await turn.result(60)
    await ensemble.whole("s")
    assert [call.result for call in response.tool_calls] == ["waited"]


@pytest.mark.main_path
async def test_a_poison_turn_is_given_up_and_takes_nobody_with_it(processes, ensemble):
    supervised = ensemble.supervisor(processes=2, crash_limit=4)
    supervised.ready(2)
    neighbours = [await ensemble.submit(f"n{i}", "go on gate:g") for i in range(6)]
    await ensemble.waits("g", 6)
    poison = await ensemble.submit("s", "poison die")
    after = await ensemble.submit("s", "after it")
    with pytest.raises(TurnFailed) as failed:
        await poison.result(60)
    ensemble.stage.open("g")
    await after.result(60)
    for neighbour in neighbours:
        await neighbour.result(60)
    await ensemble.whole("s", *(f"n{i}" for i in range(6)))
    assert failed.value.code == "worker_crashed"
    assert (await ensemble.texts("s"))[0] == ("user", "after it")
    # Two crashes in company, the other two in processes of its own: no neighbour sees more than the first two.
    assert [int(await ensemble.field(turn, "crashes")) <= 2 for turn in neighbours] == [True] * 6
    deaths = [note["pid"] for note in ensemble.stage.notes("asked", text="poison die")]
    assert len(set(deaths)) == 4
    assert "runs in a process of its own" in supervised.process.output


async def test_a_turn_that_crashed_twice_may_still_finish_alone(processes, ensemble):
    supervised = ensemble.supervisor(processes=2)
    supervised.ready(2)
    turn = await ensemble.submit("s", "a bad start die*2")
    await turn.result(60)
    await ensemble.whole("s")
    assert await ensemble.field(turn, "crashes") == "2"
    assert await ensemble.field(turn, "attempt") == "3"


@pytest.mark.parametrize("code", [0, 1, 2])
async def test_a_process_that_a_tool_ends_has_died_whatever_its_exit_code(code, processes, ensemble):
    """The lease is a minute, and no other process is there: the supervisor hands back and starts another one."""
    supervised = ensemble.supervisor(lease=60)
    supervised.ready()
    turn = await ensemble.submit("s", f"{code} tool:leave*1")
    response = await turn.result(30)
    await ensemble.whole("s")
    assert [call.result for call in response.tool_calls] == ["stayed"]
    assert await ensemble.field(turn, "crashes") == "1"
    assert await asyncio.to_thread(supervised.process.terminate) == 0


async def test_a_process_of_its_own_that_a_tool_ends_has_died_whatever_its_exit_code(processes, ensemble):
    supervised = ensemble.supervisor(lease=60)
    supervised.ready()
    turn = await ensemble.submit("s", "0 die*2 tool:leave*1")
    await turn.result(30)
    await ensemble.whole("s")
    assert await asyncio.to_thread(supervised.process.terminate) == 0


async def test_an_interrupt_in_a_task_of_a_provider_fails_its_turn_and_ends_no_process(processes, ensemble):
    """It passes through the event loop, which goes on."""
    ensemble.supervisor(processes=1).ready()
    neighbour = await ensemble.submit("n", "go on gate:g")
    await ensemble.waits("g")
    turn = await ensemble.submit("s", "go on interrupt")
    with pytest.raises(TurnFailed, match="KeyboardInterrupt"):
        await turn.result(60)
    ensemble.stage.open("g")
    await neighbour.result(60)
    for one in (turn, neighbour):
        assert [await ensemble.field(one, name) for name in ("attempt", "crashes")] == ["1", "0"]


async def test_a_turn_that_revises_goes_on_elsewhere_and_takes_the_place_once(processes, ensemble):
    supervised = ensemble.supervisor(processes=2)
    supervised.ready(2)
    for text in ("hello", "go on gate:first"):
        ensemble.stage.open("first")
        await (await ensemble.submit("s", text)).result(60)
    session = ensemble.client.session("s")
    before = await session.messages()
    turn = await session.edit(before[2].id or "", "another way gate:g")
    signal_process(await ensemble.waits("g"), signal.SIGKILL)
    await ensemble.waits("g", 2)
    assert await session.messages() == before
    ensemble.stage.open("g")
    await turn.result(60)
    after = await session.messages()
    assert after[:2] == before[:2]
    assert [message.id for message in after[2:]] == [f"{turn.id}.1", f"{turn.id}.2"]
    kinds = [event.type for event in await ensemble.events("s")]
    assert kinds.count("history_rewound") == 1
    assert supervised.process.terminate() == 0
