"""What a caller learns of a model service in trouble, and when the turn is tried again; on both runtimes."""

from __future__ import annotations

import pytest
from support.eventually import wait_until

from antiphon.errors import (
    ProviderOverloaded,
    ProviderRateLimited,
    ProviderRejected,
    ProviderStreamBroken,
    ProviderTimedOut,
    TurnCancelled,
    UsageError,
)
from antiphon.model import Retry, ServiceAnswer
from antiphon.testing import script, tool_call

LIMITED = ServiceAnswer(429, "req_1", 0.01)


def limited(**more):
    return ProviderRateLimited("Slow down.", status=429, request_id="req_1", retry_after=0.01, **more)


def test_what_the_service_said_reaches_the_caller(runtime):
    runtime.use(script(limited()))
    turn = runtime.agent(retry=Retry(seconds=0)).session("s").submit("Hello")
    with pytest.raises(ProviderRateLimited, match="Slow down") as caught:
        turn.result(20)
    assert ServiceAnswer.of(caught.value) == LIMITED
    info = turn.info()
    assert (info.status, info.code, info.service) == ("failed", "provider_rate_limited", LIMITED)
    assert list(turn.stream())[-1].service == LIMITED
    assert turn.runs()[0].service == LIMITED


@pytest.mark.parametrize("way", ["run", "stream"])
def test_what_the_service_said_reaches_whoever_waits_for_the_turn(runtime, way):
    runtime.use(script(limited()))
    session = runtime.agent(retry=Retry(seconds=0)).session("s")
    with pytest.raises(ProviderRateLimited) as caught:
        session.run("Hello") if way == "run" else list(session.stream("Hello"))
    assert ServiceAnswer.of(caught.value) == LIMITED


def test_an_error_without_a_service_says_nothing_of_one(runtime):
    runtime.use(script(ProviderRejected("No.")))
    turn = runtime.agent().session("s").submit("Hello")
    with pytest.raises(ProviderRejected) as caught:
        turn.result(20)
    assert (caught.value.status, turn.info().service, list(turn.stream())[-1].service) == (None, None, None)


def test_the_runs_of_a_turn_remember_what_the_service_said(runtime):
    runtime.use(script(limited(retryable=False), ProviderRejected("No.", status=400)))
    turn = runtime.agent(retry=Retry(seconds=0)).session("s").submit("Hello")
    with pytest.raises(ProviderRateLimited):
        turn.result(20)
    turn.requeue()
    assert turn.info().service != LIMITED
    with pytest.raises(ProviderRejected):
        turn.result(20)
    assert [run.service for run in turn.runs()] == [LIMITED, ServiceAnswer(400)]


class TestRetries:
    def test_a_turn_here_fails_with_its_first_error_unless_its_agent_says_so(self, runtime):
        runtime.use(script(ProviderOverloaded(), "Here."))
        with pytest.raises(ProviderOverloaded):
            runtime.agent().session("s").run("Hello")

    def test_it_is_tried_again_in_its_place(self, runtime):
        lines = script(
            ["The first", limited()], [tool_call("add", a=1, b=2)], ["Now", ProviderStreamBroken()], "Three."
        )
        calls = []

        def add(a: int, b: int) -> int:
            calls.append((a, b))
            return a + b

        runtime.use(lines)
        turn = runtime.agent(tools=[add], retry=Retry(delay=0.01)).session("s").submit("Add")
        assert turn.result(20).text == "Three."
        assert calls == [(1, 2)], "a finished step is not repeated"
        events = list(turn.stream())
        kinds = [e.type for e in events if e.type in ("turn_started", "turn_retrying", "tool_result")]
        assert kinds == [
            "turn_started", "turn_retrying", "turn_started", "tool_result", "turn_retrying", "turn_started",
        ]  # fmt: skip
        retrying = [e for e in events if e.type == "turn_retrying"]
        assert [(e.attempt, e.step, e.code) for e in retrying] == [
            (1, 1, "provider_rate_limited"), (2, 2, "provider_stream_broken"),
        ]  # fmt: skip
        assert (retrying[0].service, retrying[0].retry_at >= retrying[0].at) == (LIMITED, True)
        assert (events[-1].attempt, turn.info().attempt, turn.info().code) == (3, 3, None)
        assert [m.text for m in turn.info().messages if m.role == "assistant"][-1] == "Three."

    def test_the_policy_says_how_often_and_for_which_errors(self, runtime):
        lines = script(*[ProviderOverloaded()] * 9)
        runtime.use(lines)
        with pytest.raises(ProviderOverloaded):
            runtime.agent(retry=Retry(times=2, delay=0)).session("a").run("Hello")
        assert len(lines.requests) == 3
        only = Retry(codes=["provider_rate_limited"], delay=0)
        with pytest.raises(ProviderOverloaded):
            runtime.agent(retry=only).session("b").run("Hello")
        assert len(lines.requests) == 4

    def test_a_code_stands_for_the_more_special_errors_too(self, runtime):
        class Late(ProviderTimedOut):
            code = "provider_very_late"

        runtime.use(script(Late(), "Here."))
        agent = runtime.agent(retry=Retry(codes=["provider_timed_out"], delay=0))
        assert agent.session("s").run("Hello").text == "Here."

    def test_a_turn_that_waits_for_its_retry_can_be_cancelled(self, runtime):
        runtime.use(script(["Half a", ProviderOverloaded(retry_after=50.0)]))
        turn = runtime.agent(retry=Retry()).session("s").submit("Hello")
        wait_until(lambda: turn.status() == "retrying", description="the turn waits")
        assert (turn.info().code, turn.info().service) == (
            "provider_overloaded",
            ServiceAnswer(retry_after=50.0),
        )
        assert turn.cancel("enough", keep="partial") == "requested"
        with pytest.raises(TurnCancelled):
            turn.result(20)
        assert (turn.info().error, turn.info().code) == ("enough", None)

    @pytest.mark.parametrize(
        ("retry", "said"),
        [
            (60, "must be a Retry"),
            (Retry(seconds=-1), "seconds"),
            (Retry(times=-1), "times"),
            (Retry(times=True), "times"),
            (Retry(delay=-1), "delay"),
            (Retry(codes="provider"), "codes"),
            (Retry(codes=["provider_rejected"]), "never retried"),
        ],
    )
    def test_a_policy_that_makes_no_sense_is_refused(self, runtime, retry, said):
        with pytest.raises(UsageError, match=said):
            runtime.agent(retry=retry)
