"""The options of a turn: each declared once, checked once, and carried to where it is used."""

import msgspec
import pytest

from antiphon import AsyncClient
from antiphon.errors import UsageError
from antiphon.input.request import TurnRequest, encode_request
from antiphon.session import work
from antiphon.session.work import OPTIONS, Work, options_of, work_of, work_of_client


def test_every_option_of_a_turn_is_a_field():
    assert {*OPTIONS} - {"ttl"} == {*Work.__struct_fields__} - {"messages", "output", "revises"}


def test_all_that_workers_are_told_is_a_field():
    own = {"version", "trace", "parent"}  # workers set the parent of a child
    assert {*TurnRequest.__struct_fields__} - own <= {*Work.__struct_fields__}


def test_what_travels_is_what_it_was_in_the_release_before():
    given = {"temperature": 0.5, "metadata": {"a": 1}, "timeout": 3, "queue": "slow", "key": "k", "delay": 1}
    asked = work_of("Hello", given, "support", submitted=True)
    assert encode_request(asked.request("support")) == (
        b'{"messages":[{"role":"user","parts":[{"type":"text","text":"Hello"}]}],"agent":"support",'
        b'"params":{"temperature":0.5},"metadata":{"a":1},"timeout":3.0}'
    )
    assert (asked.queue, asked.key, asked.delay, asked.if_busy) == ("slow", "k", 1.0, "enqueue")


def test_none_is_as_good_as_nothing():
    options = dict.fromkeys(options_of("session").keys() - {"if_busy"})
    assert work_of("Hello", options, "support", submitted=True) == work_of("Hello", {}, "support")
    assert work_of("Hello", {"agent": None}, "support").agent == "support"


@pytest.mark.parametrize("name", ["key", "delay"])
def test_an_option_of_another_call_is_no_parameter_of_a_model(name):
    with pytest.raises(UsageError, match=r"session\.submit"):
        work_of("Hello", {name: 1}, None)


async def test_a_client_takes_no_parameter_of_a_model_as_a_keyword():
    with pytest.raises(TypeError, match="temperature"):
        work_of_client("Hello", {"temperature": 0.5})
    async with AsyncClient("redis://localhost:1/0") as client:
        with pytest.raises(TypeError, match="'agnet': did you mean agent="):
            await client.submit("s", "Hello", agnet="support")


def test_each_value_is_looked_at_once(monkeypatch):
    seen = []
    for name, one in list(work._RUN.items()):
        check = lambda value, name=name, one=one: (seen.append(name), one.check(value))[1]  # noqa: E731
        monkeypatch.setitem(work._RUN, name, msgspec.structs.replace(one, check=check))
    work_of("Hello", {"timeout": 3, "queue": "slow", "metadata": {}}, "support")
    assert seen == ["timeout", "queue", "metadata"]
