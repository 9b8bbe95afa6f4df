"""What turns and sessions may use: limits, prices and stop conditions, in this process and on workers."""

from __future__ import annotations

import asyncio
import json

import pytest
from support.eventually import wait_until
from support.gates import Gate
from support.runtimes import PRICES

from antiphon import Agent, tool
from antiphon.errors import (
    LimitReached,
    StepLimitReached,
    TurnCancelled,
    TurnFailed,
    UnknownPrice,
    UsageError,
)
from antiphon.input.request import KNOWN, LIMITED, WAITS
from antiphon.model import Usage
from antiphon.model.usage import Limits, stricter
from antiphon.testing import answer, script, tool_call

MILLION = 1_000_000


@pytest.fixture(autouse=True)
def _prices(tmp_path, monkeypatch):
    """What the workers' App is given, for the runtime of this process."""
    models = {name: {"input": p.input, "output": p.output, "cached_input": 0.5} for name, p in PRICES.items()}
    file = tmp_path / "prices.json"
    file.write_text(json.dumps({"date": "2026-01-01", "models": models}))
    monkeypatch.setenv("ANTIPHON_PRICES", str(file))


@tool
def look() -> str:
    """Look."""
    return "seen"


def looks(*said, usage=None):
    """An answer that calls the tool."""
    return answer(*said, tool_call("look"), usage=usage or Usage(60, 40))


def opened(runtime, *lines, model="any", session="s", tools=(look,), **limits):
    runtime.use(script(*lines))
    return runtime.agent(model, tools=list(tools), limits=Limits(**limits)).session(session)


def paired(messages) -> bool:
    """Whether each tool call has its result."""
    calls = [call.call_id for message in messages for call in message.tool_calls]
    return sorted(calls) == sorted(one.call_id for message in messages for one in message.tool_results)


@pytest.mark.parametrize(
    ("limits", "model", "limit"),
    [
        ({"steps": 2}, "any", "steps"),
        ({"tokens": 200}, "any", "tokens"),
        ({"cost": 0.00028}, "priced", "cost"),
        ({"session_tokens": 200}, "any", "session_tokens"),
        ({"session_cost": 0.00028}, "priced", "session_cost"),
    ],
)
def test_at_a_limit_an_answer_with_text_is_the_result_and_its_calls_are_not_run(
    runtime, limits, model, limit
):
    session = opened(runtime, looks(), looks("So far: "), "Never", model=model, **limits)
    response = session.run("Look")
    assert (response.text, response.stop_reason, response.limit) == ("So far: ", "limit", limit)
    assert [call.is_error for call in response.tool_calls] == [False, True]
    assert "not run" in response.tool_calls[1].result
    assert paired(session.messages)
    assert response.usage.tokens == session.usage.tokens == 200


@pytest.mark.parametrize(
    ("limits", "limit"), [({"tokens": 100}, "tokens"), ({"session_tokens": 50}, "session_tokens")]
)
def test_at_a_limit_a_turn_without_text_fails_and_names_it(runtime, limits, limit):
    session = opened(runtime, looks(), "Never", **limits)
    turn = session.submit("Look")
    with pytest.raises(LimitReached, match=r"has used 100|have used 100") as caught:
        turn.result(20)
    assert caught.value.limit == limit
    assert [event.limit for event in turn.stream() if event.terminal] == [limit]
    assert turn.info().code == "limit_reached"
    assert turn.usage.tokens == session.usage.tokens == 100
    assert session.messages == []


def test_a_session_that_has_used_all_it_may_asks_no_model(runtime):
    session = opened(runtime, answer("Yes", usage=Usage(80, 20)), "No", session_tokens=100)
    assert session.run("One?").text == "Yes"
    with pytest.raises(LimitReached, match="session"):
        session.run("Two?")
    assert session.usage.tokens == 100


def test_the_cost_of_a_session_is_that_of_all_its_turns(runtime):
    first = answer("One", usage=Usage(MILLION, MILLION, cached_input_tokens=MILLION // 2))
    broken = answer(tool_call("look"), usage=Usage(MILLION, 0))
    session = opened(runtime, first, broken, model="priced", steps=1)
    assert session.run("1").usage.cost == 2.75
    with pytest.raises(StepLimitReached):
        session.run("2")
    assert session.cost == 3.75
    assert session.usage == Usage(2 * MILLION, MILLION, MILLION // 2, cost=3.75)
    assert session.fork().usage == Usage()


def test_tokens_without_a_price_are_told_beside_the_cost(runtime):
    session = opened(
        runtime, answer("One", usage=Usage(10, 10)), answer("Two", usage=Usage(0, MILLION), model="priced")
    )
    assert session.run("1").usage.cost is None
    assert session.run("2").usage.cost == 2.0
    assert (session.cost, session.usage.unpriced_tokens, session.usage.tokens) == (2.0, 20, MILLION + 20)


@pytest.mark.parametrize("limit", ["cost", "session_cost"])
def test_the_cost_of_a_model_without_a_price_cannot_be_limited(runtime, limit):
    session = opened(runtime, "Never", model="nobody-knows", **{limit: 1.0})
    with pytest.raises(UnknownPrice, match=r"nobody-knows has no price.*App\(prices=…\)"):
        session.run("Hello")


@pytest.mark.parametrize(
    ("limits", "model"), [({"session_tokens": 250}, "any"), ({"session_cost": 1e-9}, "priced")]
)
def test_a_session_whose_turns_are_stopped_keeps_to_its_limit(runtime, limits, model):
    """The model has been sent 150 tokens, and has answered 125 of them."""
    gate = Gate()
    session = opened(runtime, ["word " * 100, gate], "Never", model=model, tools=(), **limits)
    turn = session.submit("Hello " * 100)
    gate.wait()
    turn.cancel()
    with pytest.raises(TurnCancelled):
        turn.result(20)
    used = turn.usage
    assert 150 <= used.input_tokens < 200
    assert (used.output_tokens, used.estimated_tokens) == (125, used.tokens)
    assert (session.usage, session.cost) == (used, used.cost)
    with pytest.raises(LimitReached, match="session"):
        session.run("Hello")


def test_a_turn_ends_when_its_seconds_are_over(runtime):

    @tool
    async def wait() -> str:
        """Wait for ever."""
        await asyncio.Event().wait()
        return ""

    session = opened(runtime, tool_call("wait"), "Never", tools=(wait,), seconds=0.3)
    with pytest.raises(LimitReached, match=r"within the 0\.3 s") as caught:
        session.run("Wait")
    assert caught.value.limit == "seconds"
    assert session.messages == []


def test_calls_run_side_by_side_only_up_to_their_limit(runtime):
    running, most = 0, 0

    @tool
    async def work() -> str:
        """Work."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        running -= 1
        return "done"

    calls = [tool_call("work") for _ in range(6)]
    session = opened(runtime, calls, "Done", tools=(work,), parallel_calls=2)
    response = session.run("Work")
    assert [call.result for call in response.tool_calls] == ["done"] * 6
    assert most == 2


@tool(approval=True)
def ask() -> str:
    """Ask."""
    return "seen"


def suspended(turn):
    wait_until(lambda: turn.status() == "suspended", description="the turn is suspended")
    return turn.info().calls[0].call_id


@pytest.mark.parametrize("others", [0, 7])
def test_what_a_turn_used_before_it_was_suspended_counts_once_it_goes_on(runtime, others):
    first = answer(tool_call("ask"), usage=Usage(60, 40))
    between = [answer("Fine", usage=Usage(3, 4))] if others else []
    session = opened(runtime, first, *between, looks("So far: "), "Never", tools=(ask, look), tokens=200)
    turn = session.submit("Look", while_suspended="continue" if others else "wait")
    call = suspended(turn)
    if others:
        assert session.run("And now?").usage.tokens == others
    turn.approve(call)
    response = turn.result(20)
    assert (response.text, response.limit, response.usage.tokens) == ("So far: ", "tokens", 200)
    assert [call.is_error for call in response.tool_calls] == [False, True]
    assert session.usage.tokens == 200 + others


def test_a_suspended_turn_that_is_cancelled_has_used_what_it_used(runtime):
    session = opened(
        runtime, answer(tool_call("ask"), usage=Usage(60, 40)), "Never", tools=(ask,), tokens=200
    )
    turn = session.submit("Look")
    suspended(turn)
    turn.cancel()
    with pytest.raises(TurnCancelled):
        turn.result(20)
    assert turn.usage.tokens == session.usage.tokens == 100


def saw(steps):
    return any(result.text == "seen" for step in steps for result in step.results)


async def after_two(steps):
    await asyncio.sleep(0)
    return len(steps) == 2 and steps[1].usage.tokens == 100


@pytest.mark.parametrize(("stop", "steps"), [(saw, 1), (after_two, 2)])
def test_a_stop_condition_ends_a_turn_after_its_tools(runtime, stop, steps):
    session = opened(runtime, looks(), looks(), "Never", stop=[stop])
    response = session.run("Look")
    assert (response.stop_reason, response.limit) == ("limit", stop.__name__)
    assert [call.result for call in response.tool_calls] == ["seen"] * steps
    assert paired(session.messages)


@pytest.mark.parametrize("error", [ValueError, SystemExit, GeneratorExit])
def test_an_error_in_a_stop_condition_fails_the_turn_and_nothing_else(runtime, error):
    def broken(steps):
        raise error(f"secret of {len(steps)}")

    session = opened(runtime, looks(), "Never", stop=[broken])
    why = rf"The stop condition 'broken' raised {error.__name__}\."
    with pytest.raises(TurnFailed, match=why) as caught:
        session.run("Look")
    assert caught.value.code == "stop_condition"
    runtime.use(script("Fine"))
    assert runtime.agent().session("other").run("And now?").text == "Fine"


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ("many", "must be Limits"),
        (Limits(steps=0), "steps"),
        (Limits(tokens=1.5), "tokens"),  # type: ignore[arg-type]
        (Limits(cost=float("nan")), "cost"),
        (Limits(seconds=-1), "seconds"),
        (Limits(parallel_calls=True), "parallel_calls"),
        (Limits(stop=[3]), "stop"),
    ],
)
def test_limits_that_mean_nothing_are_refused(limits, said):
    with pytest.raises(UsageError, match=said):
        Agent("scripted", "any", limits=limits)


def test_steps_are_said_once():
    with pytest.raises(UsageError, match="not both"):
        Agent("scripted", "any", max_steps=3, limits=Limits(steps=3))
    assert Agent("scripted", "any", limits=Limits(steps=3)).spec().max_steps == 3


def test_an_agent_with_limits_is_for_workers_that_know_them():
    assert Agent("scripted", "any", limits=Limits(steps=3)).spec().version == 1
    assert Agent("scripted", "any", limits=Limits(tokens=3)).spec().version == LIMITED
    waits = Agent("scripted", "any", tools=[look], approval=True)
    assert waits.spec().version == WAITS < LIMITED <= KNOWN["agent"]
    assert (
        Agent("scripted", "any", tools=[look], approval=True, limits=Limits(tokens=3)).spec().version
        == LIMITED
    )


def test_of_two_limits_the_stricter_one_holds():
    one, other = Limits(steps=3, cost=1.0, stop=["a"]), Limits(steps=5, cost=0.5, tokens=9, stop=["a", "b"])
    assert stricter(one, other) == Limits(steps=3, cost=0.5, tokens=9, stop=["a", "b"])
    assert stricter(None, None) == Limits()
