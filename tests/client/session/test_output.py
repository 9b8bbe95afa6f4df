"""Structured output of turns, in this process and on workers: one turn, checked and corrected where it runs."""

from __future__ import annotations

import msgspec
import pydantic
import pytest

from antiphon import Client
from antiphon.client import Submission
from antiphon.errors import InvalidOutput, KeyReused, UsageError
from antiphon.events import OutputDelta, TurnFailedEvent, TurnFinished
from antiphon.model import Usage
from antiphon.session.synchronous import asynchronous
from antiphon.testing import answer, script, tool_call
from antiphon.tools import tool


class Plan(msgspec.Struct):
    title: str
    steps: list[str]


class Even(pydantic.BaseModel):
    n: int

    @pydantic.field_validator("n")
    @classmethod
    def _even(cls, n):
        if n % 2:
            raise ValueError("it is odd")
        return n


PLAN = {"title": "Cook", "steps": ["boil", "eat"]}
WRONG = {"title": 7}
TERMINAL = ("turn_finished", "turn_failed", "turn_cancelled")


def texts(session):
    return [(message.role, message.text) for message in session.messages]


def test_every_call_that_runs_a_turn_takes_a_schema(runtime):
    runtime.use(script(PLAN, repeat=True))
    session = runtime.agent().session()
    assert session.run("1", schema=Plan).output == Plan(**PLAN)
    assert session.json("2", schema=Plan).output == Plan(**PLAN)
    assert session.submit("3", schema=Plan).result(60).output == Plan(**PLAN)
    last = list(session.stream("4", schema=Plan))[-1]
    assert isinstance(last, TurnFinished)
    assert last.response.output == Plan(**PLAN)
    *_, last = session.submit("5", schema=Plan).stream()
    assert last.response.output == Plan(**PLAN)


async def test_so_do_the_asynchronous_ones(runtime):
    runtime.use(script(PLAN, repeat=True))
    session = runtime.agent().session()
    assert (await session.run_async("1", schema=Plan)).output == Plan(**PLAN)
    turn = await session.submit_async("2", schema=Plan)
    assert (await turn.result(60)).output == Plan(**PLAN)
    assert [event async for event in turn.stream()][-1].response.output == Plan(**PLAN)
    await runtime.aclose()


def test_a_turn_without_a_schema_is_not_read(runtime):
    runtime.use(script('{"title": 7}'))
    session = runtime.agent().session()
    turn = session.submit("1")
    assert turn.result(60).output is None
    assert "output_delta" not in [event.type for event in turn.stream()]


def test_an_answer_is_corrected_within_the_one_turn(runtime):
    first, second = answer(WRONG, usage=Usage(10, 1)), answer(PLAN, usage=Usage(20, 2))
    runtime.use(script(first, second))
    session = runtime.agent().session()
    turn = session.submit("Plan", schema=Plan)
    response = turn.result(60)
    assert (response.output, response.usage) == (Plan(**PLAN), Usage(30, 3))
    events = list(turn.stream())
    assert [event.type for event in events if event.type in TERMINAL] == ["turn_finished"]
    assert {event.turn_id for event in events} == {turn.id}
    steps = [(event.step, bool(event.rejected)) for event in events if event.type == "step_finished"]
    assert steps == [(1, True), (2, False)]
    assert texts(session) == [("user", "Plan"), ("assistant", msgspec.json.encode(PLAN).decode())]
    assert {message.turn_id for message in session.messages} == {turn.id}
    assert [message.text for message in response.messages] == [texts(session)[1][1]]


def test_what_does_not_match_twice_carries_the_text_everywhere(runtime):
    runtime.use(script("no JSON", "still none", repeat=True))
    session = runtime.agent().session()
    turn = session.submit("1", schema=Plan)
    stream, seen = session.stream("3", schema=Plan), []
    failing = [
        lambda: turn.result(60),
        lambda: session.run("2", schema=Plan),
        lambda: seen.extend(stream),
    ]
    for call in failing:
        with pytest.raises(InvalidOutput, match="not JSON") as caught:
            call()
        assert caught.value.raw == "still none"
        assert caught.value.session_id == session.session_id
        assert caught.value.turn_id
    assert session.messages == []
    for last in (list(turn.stream())[-1], seen[-1]):
        assert isinstance(last, TurnFailedEvent)
        assert (last.code, last.raw) == ("invalid_output", "still none")


def test_what_a_strict_schema_cannot_say_is_checked_and_corrected_too(runtime):
    class Short(pydantic.BaseModel):
        text: str = pydantic.Field(max_length=5, pattern="^[a-z]+$")
        day: str = pydantic.Field(json_schema_extra={"format": "date"})

    fits = {"text": "abc", "day": "2026-02-28"}
    for wrong in ({**fits, "text": "abcdef"}, {**fits, "text": "ABC"}, {**fits, "day": "2026-02-30"}):
        runtime.use(lines := script(wrong, fits))
        assert runtime.agent().session().run("1", schema=Short).output == Short(**fits)
        assert lines.done


def test_what_only_the_type_knows_is_checked_by_the_caller(runtime):
    runtime.use(script({"n": 1}, repeat=True))
    session = runtime.agent().session()
    with pytest.raises(InvalidOutput, match="it is odd") as caught:
        session.run("1", schema=Even)
    assert (caught.value.raw, caught.value.session_id) == ('{"n":1}', session.session_id)
    turn = session.submit("2", schema=Even)
    with pytest.raises(InvalidOutput, match="it is odd"):
        turn.result(60)
    assert turn.status() == "finished"


def test_a_value_that_is_no_object_is_plain_for_those_who_know_no_type(runtime):
    runtime.use(script({"value": [PLAN]}))
    session = runtime.agent().session()
    turn = session.submit("1", schema=list[Plan])
    assert turn.result(60).output == [Plan(**PLAN)]
    asynchronous(turn)._schema = None
    assert turn.result(60).output == [PLAN]


def test_partial_values_come_while_the_answer_does(runtime):
    plan = {"title": "Cook", "steps": [f"the step with the number {n}" for n in range(20)]}
    runtime.use(script(plan))
    session = runtime.agent().session()
    events = list(session.stream("Plan", schema=Plan))
    partial = [event for event in events if isinstance(event, OutputDelta)]
    assert len(partial) > 3
    assert {event.step for event in partial} == {1}
    assert [event.output["title"] for event in partial] == ["Cook"] * len(partial)
    sizes = [len(event.output.get("steps", [])) for event in partial]
    assert sizes == sorted(sizes)
    assert partial[-1].seq < events[-1].seq
    text = "".join(event.text for event in events if event.type == "text_delta")
    assert msgspec.json.decode(text) == plan


def test_a_correction_after_tools_leaves_the_tools_in_the_history(runtime):
    @tool
    def look() -> str:
        return "seen"

    runtime.use(script(tool_call("look"), "no JSON", PLAN))
    session = runtime.agent(tools=[look]).session()
    response = session.run("1", schema=Plan)
    assert [role for role, _ in texts(session)] == ["user", "assistant", "tool", "assistant"]
    assert [call.result for call in response.tool_calls] == ["seen"]


def test_a_schema_that_cannot_be_used_is_refused_before_anything_runs(runtime):
    session = runtime.agent().session()
    for call in (session.run, session.submit, session.stream, session.json):
        with pytest.raises(UsageError, match="object"):
            call("1", schema={"type": "array"})
    with pytest.raises(UsageError, match="schema="):
        session.json("1", schema=None)


def test_a_key_with_another_schema_is_another_request(runtime):
    runtime.use(script(PLAN, repeat=True))
    session = runtime.agent().session()
    first = session.submit("1", schema=Plan, key="k")
    assert session.submit("1", schema=Plan, key="k").id == first.id
    with pytest.raises(KeyReused):
        session.submit("1", schema=Even, key="k")
    assert first.result(60).output == Plan(**PLAN)


def test_a_client_submits_with_a_schema_and_finds_the_turn_with_one(workers_runtime):
    workers_runtime.use(script(WRONG, PLAN, "no JSON", "still none"))
    agent = workers_runtime.agent()
    with Client(workers_runtime.url) as client:
        options = {"agent": agent, "schema": Plan, "delay": 0.01, "queue": "antiphon"}
        turn = client.submit("s", "1", key="k", **options)
        assert turn.result(60).output == Plan(**PLAN)
        assert client.submit("s", "1", key="k", **options).result(60).output == Plan(**PLAN)
        assert client.turn(turn.id).result(60).output == PLAN
        assert client.turn(turn.id, schema=Plan).result(60).output == Plan(**PLAN)
        assert client.turn(turn.id, schema=dict).result(60).output == PLAN
        with pytest.raises(InvalidOutput) as caught:
            client.turn(turn.id, schema=Even).result(60)
        assert caught.value.turn_id == turn.id
        failed = client.submit("s", "2", **options)
        for handle in (failed, client.turn(failed.id)):
            with pytest.raises(InvalidOutput) as caught:
                handle.result(60)
            assert caught.value.raw == "still none"


def test_the_turns_of_a_batch_have_options_of_their_own(workers_runtime):
    workers_runtime.use(script(lambda request: PLAN if request.output else "Hello", repeat=True))
    agent = workers_runtime.agent()
    with Client(workers_runtime.url) as client:
        turns = client.submit_many([
            Submission("a", "1", agent=agent, schema=Plan, key="k", metadata={"m": 1}),
            Submission("b", "2", agent=agent, tenant="acme", ttl=None, delay=0.01),
        ])  # fmt: skip
        assert [turn.result(60).output for turn in turns] == [Plan(**PLAN), None]
        assert client.submit("a", "1", agent=agent, schema=Plan, key="k", metadata={"m": 1}).id == turns[0].id
        (kept,) = client.sessions(tenant="acme")
        assert kept.session_id == "b"


def test_a_failed_turn_whose_events_are_gone_still_says_what_was_said(workers_runtime):
    from redis import Redis

    workers_runtime.use(script("no JSON", "still none"))
    with Client(workers_runtime.url) as client:
        turn = client.submit("s", "1", agent=workers_runtime.agent(), schema=Plan)
        with pytest.raises(InvalidOutput):
            turn.result(60)
        with Redis.from_url(workers_runtime.url) as redis:
            redis.xtrim("ant:events:s", maxlen=0)
        assert [(event.type, event.raw) for event in turn.stream()] == [("turn_failed", "still none")]
