"""Turns that wait for decisions on real workers: nothing holds them, and nothing loses them."""

import asyncio
import os
import signal

import pytest
from support.ensemble import agent_spec, open_ensemble, signal_process
from support.eventually import wait_until_async
from support.servers import RedisServer

from antiphon.client import AsyncClient
from antiphon.errors import AlreadyDecided
from antiphon.input.request import WAITS


def waiting_agent(*names):
    """The stage's agent, with tools that wait for an approval."""
    return agent_spec(approval=list(names), version=WAITS)


async def open_call(turn):
    """The one call that the turn waits for, as soon as it does."""

    async def waits():
        return await turn.status() == "suspended"

    await wait_until_async(waits, 30, "the turn is suspended")
    (call,) = (await turn.info()).calls
    return call


@pytest.mark.main_path
@pytest.mark.one_server
@pytest.mark.parametrize("decided_before", [False, True])
async def test_a_turn_waits_through_the_death_of_everything(tmp_path, processes, decided_before):
    with RedisServer(appendonly=True, appendfsync="always") as server:
        async with open_ensemble(server.url, tmp_path / "stage", processes) as ensemble:
            supervisor = ensemble.supervisor()
            turn = await ensemble.submit("s", "buy tool:note tool:pay", agent=waiting_agent("pay"))
            call = await open_call(turn)
            if decided_before:
                for pid in supervisor.workers:
                    signal_process(pid, signal.SIGSTOP)  # so that the decision is all that happens
                await turn.approve(call.call_id, by="ada")
            workers = supervisor.workers
            assert workers
            for pid in (supervisor.process.pid, *workers):
                signal_process(pid, signal.SIGKILL)
            server.restart()  # with a SIGKILL
            async with AsyncClient(server.url) as client:
                again = await client.turn(turn.id)
                if not decided_before:
                    assert [one.turn_id async for one in client.waiting()] == [turn.id]
                    await again.approve(call.call_id, by="ada")
                ensemble.supervisor()
                assert (await again.result(60)).text
                (decision,) = (await again.info()).decisions
                assert decision.by == "ada"
            assert [note["tool"] for note in ensemble.stage.notes("tool")] == ["note", "pay"], "each ran once"
            await ensemble.whole("s")


async def test_a_worker_that_dies_in_an_approved_tool_is_followed_by_one_that_knows_of_the_approval(
    processes, ensemble
):
    ensemble.supervisor(processes=2)
    turn = await ensemble.submit("s", "go tool:wait", agent=waiting_agent("wait"))
    call = await open_call(turn)
    await turn.approve(call.call_id, by="ada")
    await wait_until_async(lambda: ensemble.stage.notes("tool"), 30, "the tool runs")
    os.kill(ensemble.stage.notes("tool")[0]["pid"], signal.SIGKILL)
    await wait_until_async(lambda: len(ensemble.stage.notes("tool")) == 2, 30, "the tool runs again")
    ensemble.stage.open("tool")
    await turn.result(60)
    types = [event.type for event in await ensemble.events("s")]
    assert (types.count("turn_suspended"), types.count("turn_resumed")) == (1, 1)
    await ensemble.whole("s")


@pytest.mark.parametrize("approves", [False, True])
async def test_of_ten_clients_that_decide_at_once_one_decides(ensemble, redis_url, approves):
    """Every second one rejects, so that either kind wins somewhere; with ``approves`` none does."""
    async with ensemble.worker():
        turn = await ensemble.submit("s", "go tool:note", agent=waiting_agent("note"))
        call = await open_call(turn)
        clients = [AsyncClient(redis_url) for _ in range(10)]
        try:
            turns = [await client.turn(turn.id) for client in clients]
            raced = [
                one.approve(call.call_id, by=f"client {n}")
                if approves or n % 2
                else one.reject(call.call_id, by=f"client {n}")
                for n, one in enumerate(turns)
            ]
            answers = await asyncio.gather(*raced, return_exceptions=True)
        finally:
            for client in clients:
                await client.aclose()
        (winner,) = [n for n, answer in enumerate(answers) if answer is None]
        late = [answer for answer in answers if answer is not None]
        assert all(isinstance(one, AlreadyDecided) for one in late)
        assert {one.decision.by for one in late} == {f"client {winner}"}
        await turn.result(60)
        assert [event.type for event in await ensemble.events("s")].count("turn_resumed") == 1
        assert len(ensemble.stage.notes("tool")) == (approves or winner % 2), (
            "it ran once, or it was rejected"
        )
        assert {(one.decision.kind) for one in late} == {"approve" if approves or winner % 2 else "reject"}
        await ensemble.whole("s")


@pytest.mark.one_server
async def test_a_worker_holds_nothing_of_the_turns_that_wait(ensemble):
    async with ensemble.worker(concurrency=2):
        turns = [
            await ensemble.submit(f"s{n}", "go tool:note", agent=waiting_agent("note")) for n in range(6)
        ]
        calls = [await open_call(turn) for turn in turns]
        free = await ensemble.submit("free", "hello")
        assert (await free.result(60)).text, "more turns wait than the worker has places"
        for turn, call in zip(turns, calls, strict=True):
            await turn.approve(call.call_id)
        for turn in turns:
            await turn.result(60)
        await ensemble.whole(*(f"s{n}" for n in range(6)))
