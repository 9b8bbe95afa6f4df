"""What a tool may pass to its context, checked where it does so."""

import pytest

from antiphon.errors import LimitReached, UsageError
from antiphon.input.limits import LIMITS
from antiphon.tools import Context


class Said:
    """A call that keeps what its tool says."""

    cancelled = True

    def __init__(self):
        self.progressed = []
        self.emitted = []

    def progress(self, text, fraction):
        self.progressed.append((text, fraction))

    def emit(self, name, data):
        self.emitted.append((name, data))


@pytest.fixture
def said():
    return Said()


@pytest.fixture
def context(said):
    return Context("s", "t").of_call("c", 1, said)


def test_a_key_depends_on_the_call_and_on_nothing_else():
    one = Context("s", "t", "c", {"a": 1}, attempt=1, run=1, step_number=1)
    assert one.key == Context("s", "t", "c", {"b": 2}, attempt=9, run=1, step_number=1).key
    others = [
        Context("s", "u", "c", run=1, step_number=1),
        Context("s", "t", "d", run=1, step_number=1),
        Context("s", "t", "c", run=2, step_number=1),
        Context("s", "t", "c", run=1, step_number=2),
        Context("s", "t", "1c", run=1, step_number=1),
        Context("s", 't","', "c", run=1, step_number=1),
    ]
    assert len({one.key, *(other.key for other in others)}) == 7
    assert len(one.key) == 32
    assert set(one.key) <= set("0123456789abcdef")


def test_the_key_of_a_call_stays_the_same_from_release_to_release():
    assert Context("s", "turn", "call_1", run=1, step_number=1).key == "90430916af8ebbfa2ab810a25b565767"


def test_a_context_of_ones_own_is_never_cancelled_and_publishes_nothing():
    context = Context()
    context.progress("x", 1)
    context.emit("x", {"a": [1]})
    assert not context.cancelled
    assert (context.attempt, context.run) == (1, 1)


def test_the_variables_are_those_of_the_turn(context, said):
    turn = Context("s", "t", variables={"a": 1}, attempt=2, run=3)
    call = turn.of_call("c", 4, said)
    assert call.variables is turn.variables
    assert (call.call_id, call.step_number, call.attempt, call.run) == ("c", 4, 2, 3)
    assert call.cancelled


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), float("inf"), True, "0.5"])
def test_a_fraction_that_is_none_is_refused(context, said, fraction):
    with pytest.raises(UsageError, match="fraction="):
        context.progress("x", fraction)
    assert said.progressed == []


def test_a_fraction_is_a_number_from_nothing_to_all(context, said):
    for fraction in (0, 0.5, 1, None):
        context.progress("x", fraction)
    assert [fraction for _, fraction in said.progressed] == [0.0, 0.5, 1.0, None]


@pytest.mark.parametrize("text", [None, 3, b"x"])
def test_progress_is_text(context, text):
    with pytest.raises(UsageError, match="text="):
        context.progress(text)


@pytest.mark.parametrize("letter", ["x", "ä", "😀"])
def test_long_progress_is_cut_between_letters(context, said, letter):
    most = LIMITS.progress_bytes
    fits = letter * (most // len(letter.encode()))
    context.progress(fits)
    context.progress(fits + letter)
    (whole, _), (cut, _) = said.progressed
    assert whole == fits
    assert len(cut.encode()) <= most
    assert cut.rstrip("…") == letter * (len(cut) - 1)


def test_half_a_character_becomes_a_question_mark(context, said):
    context.progress("a\ud800b")
    assert said.progressed == [("a?b", None)]


@pytest.mark.parametrize("name", ["", "a b", "ü", "x" * 65, "a\n", None, 3])
def test_a_name_that_is_none_is_refused(context, said, name):
    with pytest.raises(UsageError, match="is not a valid event name"):
        context.emit(name, {})
    assert said.emitted == []


def test_data_is_copied_as_json(context, said):
    data = {"list": [1, (2, None)], 3: "three"}
    context.emit("shop/order.placed:v1", data)
    data["list"].clear()
    context.emit("nothing")
    assert said.emitted == [
        ("shop/order.placed:v1", {"list": [1, [2, None]], "3": "three"}),
        ("nothing", None),
    ]


def recursive():
    data = []
    data.append(data)
    return data


@pytest.mark.parametrize(
    "data", [object(), {"a": {object()}}, "\ud800", recursive()], ids=lambda d: str(type(d))
)
def test_data_without_a_json_form_is_refused(context, said, data):
    with pytest.raises(UsageError, match="'mine' cannot be written as JSON"):
        context.emit("mine", data)
    assert said.emitted == []


def test_data_is_nested_as_deep_as_all_other_json(context, said):
    deep = None
    for _ in range(LIMITS.json_depth):
        deep = [deep]
    context.emit("deep", deep)
    with pytest.raises(LimitReached) as refused:
        context.emit("deep", {"deeper": deep})
    assert refused.value.limit == "json_depth"
    assert len(said.emitted) == 1


def test_data_as_large_as_allowed_is_taken(context, said):
    context.emit("large", "x" * (LIMITS.custom_bytes - 2))
    with pytest.raises(LimitReached) as refused:
        context.emit("large", "x" * (LIMITS.custom_bytes - 1))
    assert refused.value.limit == "custom_bytes"
    assert len(said.emitted) == 1
