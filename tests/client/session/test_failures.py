"""A turn that failed raises the same error on both runtimes, whichever call hears of it."""

import pytest

from antiphon.errors import ProviderRejected, TurnCancelled, TurnError, TurnFailed, UsageError
from antiphon.testing import script


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
        turn.result(20)
    assert type(of_run.value) is type(of_result.value)
    assert not isinstance(of_result.value, TurnError)
    assert of_result.value.turn_id == turn.id


def test_a_failure_without_a_class_of_its_own_is_a_failed_turn(runtime):
    def break_down(request):
        raise ValueError("oh")

    runtime.use(script(break_down, repeat=True))
    turn = runtime.agent().session("s").submit("a")
    with pytest.raises(TurnFailed) as caught:
        turn.result(20)
    assert caught.value.code == "internal_error"


def test_a_cancelled_turn_raises_its_reason(runtime):
    session = runtime.agent().session("s")
    turn = session.submit("a", delay=60)
    turn.cancel("not needed any more")
    with pytest.raises(TurnCancelled):
        turn.result(20)
