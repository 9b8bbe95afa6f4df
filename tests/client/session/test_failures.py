"""A turn that failed raises the same error on both runtimes, whichever call hears of it."""

import asyncio

import pytest

from antiphon.errors import ProviderRejected, TurnCancelled, TurnError, TurnFailed, UsageError
from antiphon.testing import script


class Own(BaseException):
    """Of an App, and no ``Exception``."""


class Mute(Exception):
    def __str__(self):
        raise Own


@pytest.mark.parametrize("failure", [ProviderRejected("no such model"), UsageError("not like this")])
def test_a_submitted_turn_raises_what_run_raises(runtime, failure):
    def refuse(request):
        raise type(failure)(failure.message)

    runtime.use(script(refuse, repeat=True))
    session = runtime.agent().session("s")
    with pytest.raises(type(failure), match=failure.message) as of_run:
        session.run("a")
    turn = session.submit("b")
    with pytest.raises(type(failure), match=failure.message) as of_result:
        turn.result(60)
    assert type(of_run.value) is type(of_result.value)
    assert not isinstance(of_result.value, TurnError)
    assert of_result.value.turn_id == turn.id


def test_a_failure_without_a_class_of_its_own_is_a_failed_turn(runtime):
    def break_down(request):
        raise ValueError("oh")

    runtime.use(script(break_down, repeat=True))
    turn = runtime.agent().session("s").submit("a")
    with pytest.raises(TurnFailed) as caught:
        turn.result(60)
    assert caught.value.code == "internal_error"


@pytest.mark.parametrize(
    "raised", [Own, GeneratorExit, KeyboardInterrupt, SystemExit, asyncio.CancelledError, Mute]
)
def test_what_is_no_exception_fails_its_turn_alone_at_once(runtime, raised):
    """Each of these, raised by a provider, once ended the task or the process, and the turn waited for its lease."""
    attempts = []

    def play(request):
        text = request.messages[-1].text
        attempts.append(text)
        if text == "break":
            raise raised
        return "Fine."

    runtime.use(script(play, repeat=True))
    broken, beside = runtime.agent().session("s"), runtime.agent().session("beside")
    turn = broken.submit("break")
    neighbour = beside.submit("hello")
    with pytest.raises(TurnFailed, match=raised.__name__) as of_result:
        turn.result(60)
    assert of_result.value.code == "internal_error"
    with pytest.raises(TurnFailed, match=raised.__name__):
        broken.run("break")
    assert neighbour.result(60).text == broken.run("go on").text == "Fine."
    assert sorted(attempts) == ["break", "break", "go on", "hello"]


def test_a_cancelled_turn_raises_its_reason(runtime):
    session = runtime.agent().session("s")
    turn = session.submit("a", delay=60)
    turn.cancel("not needed any more")
    with pytest.raises(TurnCancelled):
        turn.result(60)
