"""Every field of a session is kept by both runtimes, saved, forked and listed: it is enough to declare it."""

import msgspec
import pytest

from antiphon import Session
from antiphon.errors import UsageError
from antiphon.model import File, Usage
from antiphon.redis.fields import decode_field, encode_field
from antiphon.session.listing import list_query
from antiphon.session.opening import opening_of
from antiphon.session.runtime import Opening
from antiphon.session.saved import FIELDS, ListedFields, OpeningFields, SavedSession, Titled
from antiphon.session.session import SessionList
from antiphon.window import SavedSummary

# A value of each kind of field, and another one that takes its place.
VALUES = {
    str | None: ("one", "two"),
    dict: ({"a": 1}, {"b": [None, "x"]}),
    dict | str | None: ("agent", {"name": "agent"}),
    bool: (True, True),
    int: (5, 1_700_000_000_000),
    list[str]: (["a"], ["b", "c"]),
    Usage | None: (Usage(1, 2), Usage(3, 4, cost=0.5)),
    Titled | None: (Titled("One", "t1"), Titled("Two", "t2")),
    SavedSummary | None: (SavedSummary(1, "First: this."), SavedSummary(2, "Then\nthat.")),
}
FILES = ({"a": File(url="u", name="a")}, {"b": File(file_id="f", name="b")})


def values_of(name):
    kind = FIELDS[name].kind
    if name == "branches":
        return {"f": "t.2"}, {"g": ""}
    if name == "files":
        return FILES
    if name == "agent":
        return VALUES[dict | str | None]
    return VALUES[dict if getattr(kind, "__origin__", None) is dict else kind]


OPENED = {name: values_of(name)[0] for name in OpeningFields.__struct_fields__}
LISTED = {name: OPENED[name] for name in ListedFields.__struct_fields__}


def of(session):
    data = session.to_dict()
    return {name: data.get(name) for name in OPENED}


def opened(agent, session_id, **values):
    return Session(agent.open_session(session_id, Opening(**values), ttl=60.0))


def test_a_session_keeps_every_field_that_it_is_opened_with(runtime):
    agent = runtime.agent()
    session = opened(agent, "s", **OPENED)
    assert of(session) == OPENED
    assert of(opened(agent, "s")) == OPENED
    assert of(session.fork("f")) == {**OPENED, "parent": None}


def test_a_saved_session_comes_back_with_every_field(runtime):
    data = opened(runtime.agent(), "s", **OPENED).to_dict() | {"session_id": "again"}
    again = Session.from_dict(data, runtime.agent())
    assert of(again) == OPENED


def test_a_list_shows_and_finds_every_field_that_is_listed(runtime):
    agent = runtime.agent()
    for session_id in ("s", "other"):
        opened(agent, session_id, **(LISTED if session_id == "s" else {})).set_variables({"used": True})
    for name, value in LISTED.items():
        found = {
            one.session_id: one for one in SessionList(agent.sessions_async(**{name: value}, children=True))
        }
        assert getattr(found["s"], name) == value
        assert "other" not in found


def test_a_child_has_what_is_inherited_unless_it_is_given(runtime):
    agent = runtime.agent()
    opened(agent, "s", **OPENED).set_variables({"used": True})
    inherited = {name: value for name, value in OPENED.items() if FIELDS[name].inherited}
    child = opened(agent, "c", parent="s").to_dict()
    assert {name: child.get(name) for name in OPENED} == {
        **{name: {} if isinstance(value, dict) else None for name, value in OPENED.items()},
        **inherited, "parent": "s",
    }  # fmt: skip
    assert opened(agent, "d", parent="s", queue="own").to_dict()["queue"] == "own"


def test_what_is_given_later_takes_the_place_of_what_was_given_first(runtime):
    agent = runtime.agent()
    opened(agent, "s", **OPENED).set_variables({"used": True})
    later = {name: values_of(name)[1] for name in OPENED if name != "tenant"}
    found = of(opened(agent, "s", **later, tenant=OPENED["tenant"]))
    assert found == {
        name: OPENED[name] | later[name] | ({"used": True} if name == "variables" else {})
        if isinstance(OPENED[name], dict)
        else later.get(name, OPENED[name])
        for name in OPENED
    }


@pytest.mark.parametrize("name", FIELDS)
def test_redis_gives_back_what_was_put_into_a_field(name):
    for value in values_of(name):
        assert decode_field(name, encode_field(name, value)) == value
    empty = getattr(SavedSession("s"), name)
    assert encode_field(name, empty) == b""
    assert decode_field(name, b"") == empty


@pytest.mark.parametrize("name", FIELDS)
def test_the_saved_form_says_what_it_cannot_read(name):
    data = SavedSession("s").to_dict() | {name: object()}
    with pytest.raises(Exception, match=f"The {name} of the saved session must be {FIELDS[name].expected}"):
        Session.from_dict(data, None)


def test_an_opening_and_a_list_take_no_keywords_that_are_none():
    for call, name in (
        (opening_of, "closed"),
        (opening_of, "labl"),
        (list_query, "system"),
        (list_query, "labl"),
    ):
        with pytest.raises(TypeError, match=f"Unknown keyword {name}="):
            call(**{name: None})
    with pytest.raises(UsageError, match="system= must be text, not int"):
        opening_of(system=5)


def test_an_opening_that_asks_for_nothing_is_empty():
    assert Opening().empty
    assert Opening(replace=True).empty
    for name, value in OPENED.items():
        assert not msgspec.structs.replace(Opening(), **{name: value}).empty
