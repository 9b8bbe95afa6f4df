"""The JSON forms of messages and events, and how readers bear what they do not know."""

import inspect
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import errors, events, model
from antiphon.errors import AgentError, CorruptRecord
from antiphon.events import (
    EventBase,
    Heartbeat,
    TextDelta,
    TurnFailedEvent,
    TurnFinished,
    UnknownEvent,
    decode_event,
)
from antiphon.model import Message, Response, Text, ToolCall, ToolResult, Usage, decode_message


@given(st.text(), st.text())
def test_a_message_survives_its_json_form(said, result):
    message = Message(
        "assistant", [Text(said), ToolCall.from_text("c1", "look", '{"a":[]}'), ToolResult("c1", result)]
    )
    assert decode_message(message.to_json()) == message


def test_a_part_of_a_newer_release_is_kept_whole_as_an_item():
    message = decode_message(
        b'{"role":"user","parts":[{"type":"hologram","x":1},{"type":"text","text":"a"}]}'
    )
    assert message.parts[0] == model.Item("", {"type": "hologram", "x": 1})
    assert message.text == "a"


@pytest.mark.parametrize(
    "data", [b"", b"nonsense", b"[]", b'{"role":"wizard"}', b'{"role":"user","parts":7}', b"\xff"]
)
def test_a_damaged_message_is_a_corrupt_record(data):
    with pytest.raises(CorruptRecord):
        decode_message(data)


@pytest.mark.parametrize("data", [b"", b"nonsense", b"[]", b"\xff", b'{"seq":"x","type":"what"}'])
def test_a_damaged_event_is_a_corrupt_record(data):
    with pytest.raises(CorruptRecord):
        decode_event(data)


def test_an_event_of_a_newer_release_is_handed_on_whole():
    event = decode_event(b'{"seq":3,"at":9,"type":"weather","session_id":"s","text":"x"}')
    assert isinstance(event, UnknownEvent)
    assert (event.seq, event.at, event.session_id) == (3, 9, "s")
    assert event.fields["text"] == "x"


def test_an_unknown_field_of_an_event_is_ignored():
    event = decode_event(b'{"seq":3,"type":"text_delta","text":"x","colour":"red"}')
    assert event == TextDelta(seq=3, text="x")


def test_every_event_says_its_type_in_its_json_and_only_three_are_terminal():
    known = [
        one
        for _, one in inspect.getmembers(events, inspect.isclass)
        if issubclass(one, EventBase) and one is not EventBase
    ]
    assert {one().type for one in known if one().terminal} == {
        "turn_finished",
        "turn_failed",
        "turn_cancelled",
    }
    for one in known:
        assert one().to_dict()["type"] == one().type == one.__struct_config__.tag
        if one not in (Heartbeat, UnknownEvent):
            assert type(decode_event(one(turn_id="t").to_json())) is one


def test_a_finished_event_carries_the_response():
    event = TurnFinished(seq=4, response=Response(text="hi", usage=Usage(3, 4)))
    assert decode_event(event.to_json()) == event


@pytest.mark.parametrize("text", ["", "   ", None, "null", "{}"])
def test_empty_and_null_arguments_mean_none(text):
    call = ToolCall.from_text("c", "f", text)
    assert call.arguments == {}
    assert not call.invalid


@pytest.mark.parametrize("text", ["{bad", "[1]", '"text"', "7", '{"a":1} trailing', "[" * 5000])
def test_arguments_that_are_no_object_are_kept_and_marked(text):
    call = ToolCall.from_text("c", "f", text)
    assert call.invalid
    assert call.raw == text


def test_arguments_go_back_exactly_as_they_came():
    assert ToolCall.from_text("c", "f", '{"a": 1}').arguments_text == '{"a": 1}'
    assert ToolCall.from_text("c", "f", '{"a":1}').arguments_text == '{"a":1}'


def test_usage_adds_up_and_a_cost_that_nobody_told_stays_untold():
    total = Usage(1, 2, 3, 4, 5) + Usage(10, 20, 30, 40, 50)
    assert total == Usage(11, 22, 33, 44, 55)
    assert (Usage(cost=0.5) + Usage()).cost == 0.5


def test_every_error_has_a_code_a_sentence_and_its_place_in_the_tree():
    drawn = errors.__doc__ or ""
    for name in errors.__all__:
        known = getattr(errors, name)
        assert issubclass(known, AgentError)
        assert name in drawn or name == "AgentError"
        assert str(known()).strip()
    codes = [getattr(errors, name).code for name in errors.__all__]
    assert len(codes) == len(set(codes))


INTERNAL = re.compile(
    r"api|key|token|address|network|tenant|worker|app\b|redis|server|gateway|\w+_\w+|[=()`{}]|https?:",
    re.IGNORECASE,
)


def test_no_sentence_for_end_users_names_anything_internal():
    offenders = [text for text in {*errors.USER_MESSAGES.values(), errors.user_message("no such code")}
                 if INTERNAL.search(text) or not text.endswith(".")]  # fmt: skip
    assert offenders == []
    assert [code for code in errors.USER_MESSAGES if not re.fullmatch("[a-z_]+", code)] == []


def test_every_error_of_a_model_service_has_a_sentence_for_end_users():
    kinds = [getattr(errors, name) for name in errors.__all__]
    spoken = [kind for kind in kinds if issubclass(kind, errors.ProviderError | errors.NotFound)]
    assert [kind.code for kind in spoken if kind.code not in errors.USER_MESSAGES] == []


def test_an_event_of_a_failure_has_a_sentence_for_end_users_also_if_an_older_release_wrote_it():
    written = b'{"type":"turn_failed","code":"provider_unauthorized","message":"check the API key"}'
    event = decode_event(written)
    assert event.user_message == errors.ProviderUnauthorized().user_message
    assert decode_event(event.to_json()) == event
    assert (
        TurnFailedEvent(code="provider_silent", user_message="Bitte warten.").user_message == "Bitte warten."
    )
