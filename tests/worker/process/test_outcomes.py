"""How turns end: errors and retries, limits, time-outs, cancelling, and what nobody knows (G1, G2, G8, G9)."""

import re
from contextlib import asynccontextmanager

import pytest
from support.ensemble import agent_spec, open_ensemble
from support.eventually import wait_until_async

from antiphon.errors import AgentError, ProviderStreamBroken, TurnCancelled, TurnFailed
from antiphon.model import Retry


@pytest.fixture
def working(redis_url, tmp_path):
    """A worker on this loop, its stage and a client."""

    @asynccontextmanager
    async def start(**settings):
        async with open_ensemble(redis_url, tmp_path / "stage") as ensemble, ensemble.worker(**settings):
            yield ensemble

    return start


@pytest.mark.parametrize(
    ("fault", "code"), [("limited", "provider_rate_limited"), ("broken", "provider_stream_broken")]
)
async def test_a_passing_error_of_the_provider_is_tried_again(fault, code, working):
    async with working(retry_delay=0.05) as ensemble:
        turn = await ensemble.submit("s", f"at first not fail:{fault}*2")
        await turn.result(60)
        await ensemble.whole("s")
        retries = [event for event in await ensemble.events("s") if event.type == "turn_retrying"]
        assert [event.code for event in retries] == [code] * 2
        assert all(event.retry_at > event.at for event in retries)
        assert [await ensemble.field(turn, name) for name in ("errors", "crashes", "attempt")] == [
            "2",
            "0",
            "3",
        ]


async def test_an_error_that_does_not_pass_fails_the_turn_at_the_limit(working):
    async with working(retry_delay=0.02, error_limit=3) as ensemble:
        turn = await ensemble.submit("s", "never fail:broken")
        after = await ensemble.submit("s", "after it")
        with pytest.raises(ProviderStreamBroken):
            await turn.result(60)
        await after.result(60)
        await ensemble.whole("s")
        assert len(ensemble.stage.notes("asked", text="never fail:broken")) == 3
        assert [text for _, text in await ensemble.texts("s")][:1] == ["after it"]


async def test_an_agent_says_for_how_long_its_turns_are_tried_again(working, caplog):
    async with working(retry_delay=0.05) as ensemble:
        turn = await ensemble.submit("s", "never fail:broken", agent=agent_spec(retry=Retry(seconds=1)))
        once = await ensemble.submit("t", "not at all fail:broken", agent=agent_spec(retry=Retry(seconds=0)))
        for failing in (turn, once):
            with pytest.raises(ProviderStreamBroken):
                await failing.result(60)
        await ensemble.whole("s", "t")
        assert len(ensemble.stage.notes("asked", text="never fail:broken")) > 1
        assert len(ensemble.stage.notes("asked", text="not at all fail:broken")) == 1
        record = (await turn._record()).fields
        events = await ensemble.events("s")
        first = next(event.at for event in events if event.type == "turn_started")
        assert int(record["started_at"]) == first
        said = next(
            re.search(r"session s: failed after ([0-9.]+) s", line)
            for line in caplog.messages
            if "session s: failed" in line
        )
        between = max(event.retry_at for event in events if event.type == "turn_retrying") - first
        assert float(said[1]) >= between / 1000  # all attempts, and the pauses between them


@pytest.mark.parametrize(
    ("agent", "text", "code", "sentence"),
    [
        (agent_spec(), "no fail:unauthorized", "provider_unauthorized", "does not accept the key"),
        (agent_spec(), "no fail:rejected", "provider_rejected", "The stage refuses: rejected."),
        ("nobody", "hello", "unknown_agent", "The worker has no agent 'nobody'"),
        (agent_spec(provider="nowhere"), "hello", "unknown_provider", "There is no provider 'nowhere'"),
        (agent_spec(tools=["hammer"]), "hello", "unknown_tool", "This worker's App has no tool 'hammer'"),
        (None, "hello", "unknown_agent", r"has (several|none): submit it with agent="),
    ],
)  # fmt: skip
async def test_what_no_retry_can_mend_fails_at_once_and_says_why(agent, text, code, sentence, working):
    async with working() as ensemble:
        turn = await ensemble.submit("s", text, agent=agent)
        with pytest.raises(AgentError, match=sentence) as failed:
            await turn.result(60)
        after = await ensemble.submit("s", "after it")
        await after.result(60)
        await ensemble.whole("s")
        assert type(failed.value).code == failed.value.code == code
        assert await ensemble.field(turn, "attempt") == "1"
        assert len(await ensemble.texts("s")) == 2


async def test_a_turn_ends_at_its_time_out(working):
    async with working() as ensemble:
        turn = await ensemble.submit("s", "go on hang", timeout=0.2)
        after = await ensemble.submit("s", "after it")
        with pytest.raises(TurnFailed, match=r"did not end within 0\.2 s") as failed:
            await turn.result(60)
        await after.result(60)
        assert failed.value.code == "turn_timed_out"
        await ensemble.whole("s")


async def test_a_running_turn_is_cancelled_at_once_and_leaves_nothing(working):
    async with working() as ensemble:
        turn = await ensemble.submit("s", "go on hang")
        after = await ensemble.submit("s", "after it")
        await wait_until_async(lambda: ensemble.stage.notes("asked"))
        assert await turn.cancel("enough") == "requested"
        with pytest.raises(TurnCancelled, match="enough"):
            await turn.result(2)
        await after.result(60)
        await ensemble.whole("s")
        assert [text for _, text in await ensemble.texts("s")][:1] == ["after it"]
        assert await turn.cancel() == "cancelled"


async def test_a_cancelled_turn_keeps_its_finished_steps(working):
    async with working() as ensemble:
        turn = await ensemble.submit("s", "two steps tool:note hang")
        await wait_until_async(lambda: len(ensemble.stage.notes("asked")) == 2)
        await turn.cancel("enough")
        with pytest.raises(TurnCancelled):
            await turn.result(60)
        after = await ensemble.submit("s", "and on")
        await after.result(60)
        await ensemble.whole("s")
        messages = (await ensemble.client.snapshot("s")).messages
        assert [message.role for message in messages] == ["user", "assistant", "tool", "user", "assistant"]
        assert messages[2].tool_results[0].text == "noted"


async def test_a_tool_call_that_is_cancelled_does_not_stay_without_a_result(working):
    async with working() as ensemble:
        turn = await ensemble.submit("s", "two steps tool:note tool:wait")
        await wait_until_async(lambda: len(ensemble.stage.notes("tool")) == 2)
        await turn.cancel()
        with pytest.raises(TurnCancelled):
            await turn.result(60)
        await ensemble.whole("s")
        assert [role for role, _ in await ensemble.texts("s")] == ["user", "assistant", "tool"]


async def test_a_waiting_turn_is_cancelled_at_once(working):
    async with working() as ensemble:
        head = await ensemble.submit("s", "go on gate:g")
        waiting = await ensemble.submit("s", "and then")
        last = await ensemble.submit("s", "and last")
        await ensemble.waits("g")
        assert await waiting.cancel() == "cancelled"
        ensemble.stage.open("g")
        await head.result(60)
        await last.result(60)
        await ensemble.whole("s")
        assert len(await ensemble.texts("s")) == 4


async def test_a_turn_that_waits_for_its_retry_is_cancelled_at_once(working):
    async with working(retry_delay=30) as ensemble:
        turn = await ensemble.submit("s", "never fail:broken")
        after = await ensemble.submit("s", "after it")
        await ensemble.seen("s", "turn_retrying")
        assert await turn.status() == "retrying"
        assert await turn.cancel() == "cancelled"
        await after.result(60)
        await ensemble.whole("s")


async def test_a_turn_that_waits_for_its_retry_keeps_its_finished_steps_when_cancelled(working):
    async with working(retry_delay=30) as ensemble:
        turn = await ensemble.submit("s", "a step, then trouble tool:note fail:broken")
        await ensemble.seen("s", "turn_retrying")
        assert await turn.cancel() == "requested"
        with pytest.raises(TurnCancelled):
            await turn.result(60)
        await ensemble.whole("s")
        assert len(await ensemble.texts("s")) == 3


async def test_the_same_key_submits_once(working):
    async with working() as ensemble:
        turns = [await ensemble.submit("s", "just once", key="k") for _ in range(5)]
        assert len({turn.id for turn in turns}) == 1
        await turns[0].result(60)
        again = await ensemble.submit("s", "just once", key="k")
        assert (await again.result(1)).turn_id == turns[0].id
        await ensemble.whole("s")
        assert len(await ensemble.texts("s")) == 2
