"""What a client is handed before anything reaches Redis."""

import inspect
from datetime import timedelta

import pytest

from antiphon import AsyncClient, Client
from antiphon.client import Submission
from antiphon.errors import ClientClosed, InvalidId, InvalidMessage, LimitReached, SettingsError, UsageError
from antiphon.input.ids import SessionId, TurnId, check_queue, new_turn_id
from antiphon.input.limits import LIMITS
from antiphon.input.messages import to_input
from antiphon.input.request import (
    AgentSpec,
    TurnRequest,
    decode_request,
    encode_request,
)
from antiphon.input.values import parse_cursor
from antiphon.model import Image, Message, Text
from antiphon.redis.cells import open_cells
from antiphon.redis.turn import AsyncTurn
from antiphon.session.work import ClientSubmitOptions

NOWHERE = "redis://localhost:1/0"


def test_text_parts_and_messages_are_all_input():
    assert to_input("hi") == [Message.user("hi")]
    assert to_input([Text("a"), Image(url="http://x/y.png")])[0].role == "user"
    assert to_input([Message.user("a"), Message.assistant("b")])[1].role == "assistant"


@pytest.mark.parametrize(
    "bad", ["", "  ", 7, None, [], [Message.user("a"), Text("b")], {"role": "user"}, [" ", Text("")]]
)
def test_input_that_says_nothing_is_refused(bad):
    with pytest.raises(InvalidMessage):
        to_input(bad)


def test_a_request_that_is_too_large_says_its_size_and_the_limit():
    with pytest.raises(LimitReached, match=str(LIMITS.request_bytes)) as refused:
        encode_request(TurnRequest(to_input("x" * (LIMITS.request_bytes + 1))))
    assert refused.value.limit == "request_bytes"


def test_a_request_that_cannot_be_encoded_is_refused():
    with pytest.raises(InvalidMessage):
        encode_request(TurnRequest(to_input("x"), params={"f": object()}))
    with pytest.raises(InvalidMessage):
        encode_request(TurnRequest([Message.user("\ud800")]))


def test_a_request_comes_back_as_it_was():
    request = TurnRequest(to_input("x"), AgentSpec("openai", "m", tools=["t"]), {"temperature": 0.5})
    assert decode_request(encode_request(request)) == request


@pytest.mark.parametrize("bad", ["", "a b", "a:b", None, "x" * 101])
def test_a_queue_name_that_rq_cannot_hold_is_refused(bad):
    with pytest.raises(UsageError):
        check_queue(bad)


@pytest.mark.parametrize("bad", ["x", -1, "-3", 1.5j, 1.5, [], b"7"])
def test_a_cursor_is_a_seq(bad):
    with pytest.raises(UsageError, match="after="):
        parse_cursor(bad)


def test_cursors_come_as_numbers_text_or_none():
    assert [parse_cursor(one) for one in (0, 7, "12", None)] == [0, 7, 12, None]


@pytest.mark.parametrize(
    "url", ["http://x", "localhost:6379", "", "redis+sentinel://h", "redis://h/x", "rediss://h/0/1"]
)
def test_a_url_that_names_no_redis_is_refused_without_its_password(url):
    with pytest.raises(SettingsError):
        AsyncClient(url)
    with pytest.raises(SettingsError) as caught:
        AsyncClient("amqp://user:secret@host/")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["redis://h/0", "redis://h/", "rediss://h", "unix:///x.sock", "redis+sentinel://h/name/0"]
)
def test_an_option_of_a_url_that_does_not_exist_is_refused(url):
    AsyncClient(url)
    with pytest.raises(SettingsError, match="nope"):
        AsyncClient(f"{url}?nope=1")


def test_something_that_is_no_redis_at_all_is_refused():
    with pytest.raises(SettingsError):
        AsyncClient(object())
    with pytest.raises(SettingsError):
        AsyncClient([])


def test_constructing_a_client_connects_to_nothing():
    with Client(NOWHERE) as client:
        assert client is not None


async def test_a_closed_client_says_so():
    client = AsyncClient(NOWHERE)
    await client.aclose()
    with pytest.raises(ClientClosed):
        await client.submit("s", "hi")


async def test_wrong_options_of_submit_are_named():
    async with AsyncClient(NOWHERE) as client:
        with pytest.raises(UsageError, match="if_busy"):
            await client.submit("s", "hi", if_busy="explode")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="agent"):
            await client.submit("s", "hi", agent=7)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="window"):
            await client.submit("s", "hi", agent=AgentSpec("openai", "m", window=0))
        with pytest.raises(InvalidMessage, match="params"):
            await client.submit("s", "hi", agent=AgentSpec("openai", "m", params=[1]))  # type: ignore[arg-type]


WRONG_OPTIONS = [
    *(
        {name: value}
        for name in ("delay", "ttl", "timeout")
        for value in (0, -1, "1", float("nan"), float("inf"), 1e300, True, timedelta(0))
    ),
    {"params": [1]},
    {"params": {"f": object}},
    {"metadata": [1]},
    {"metadata": "x"},
    {"key": 5},
    {"key": ""},
    {"key": "\ud800"},
]


@pytest.mark.parametrize("wrong", WRONG_OPTIONS, ids=str)
async def test_an_option_of_submit_that_makes_no_sense_is_refused_by_its_name(wrong):
    async with AsyncClient(NOWHERE) as client:
        with pytest.raises(UsageError, match=f"{next(iter(wrong))}="):
            await client.submit("s", "hi", **wrong)


def test_a_submission_takes_what_submit_takes():
    def taken(function):
        first, *parameters = inspect.signature(function).parameters.values()
        assert first.name == "self"
        return parameters

    assert taken(Submission.__init__) == taken(AsyncClient.submit)
    named = [one.name for one in taken(Client.submit) if one.kind is one.KEYWORD_ONLY]
    assert {*named} == {*ClientSubmitOptions.__annotations__}
    assert {"agent", "ttl", "key", "delay", "queue", "tenant", "schema", "metadata", "timeout"} < {*named}


@pytest.mark.parametrize(
    "wrong", [*WRONG_OPTIONS, {"agent": 7}, {"if_busy": "panic"}, {"schema": {}}], ids=str
)
def test_a_submission_refuses_what_submit_refuses(wrong):
    with pytest.raises(UsageError):
        Submission("s", "hi", **wrong)
    with pytest.raises(TypeError, match="temperature"):
        Submission("s", "hi", temperature=0.5)
    with pytest.raises(InvalidMessage):
        Submission("s", "")
    with pytest.raises(InvalidId):
        Submission("", "hi")


async def test_submit_many_refuses_all_where_one_is_no_submission():
    async with AsyncClient(NOWHERE) as client:
        with pytest.raises(UsageError, match="Submission"):
            await client.submit_many([Submission("s", "x"), {"session_id": "s", "text": "x"}])


@pytest.mark.parametrize("wrong", ["x", "1", -1, float("nan"), True])
async def test_the_patience_for_a_result_is_a_number(wrong):
    async with AsyncClient(NOWHERE) as client:
        turn = AsyncTurn(client, TurnId("t"), SessionId("s"))
        with pytest.raises(UsageError, match="timeout="):
            await turn.result(wrong)


def test_a_session_and_its_turns_live_on_one_cell_whatever_the_order_of_the_urls():
    urls = [f"redis://host{n}:6379/0" for n in range(5)]
    one, other = open_cells(urls), open_cells(list(reversed(urls)))
    homes = set()
    for n in range(200):
        session = f"session-{n}"
        home = one.of_session(session).redis.connection_pool.connection_kwargs["host"]
        assert other.of_session(session).redis.connection_pool.connection_kwargs["host"] == home
        assert one.of_turn(new_turn_id(session)) is one.of_session(session)
        homes.add(home)
    assert len(homes) == 5


def test_a_new_cell_moves_only_the_sessions_that_it_wins():
    urls = [f"redis://host{n}:6379/0" for n in range(4)]
    before, after = open_cells(urls), open_cells([*urls, "redis://new:6379/0"])

    def home(cells, session):
        return cells.of_session(session).redis.connection_pool.connection_kwargs["host"]

    moved = [(home(before, f"s{n}"), home(after, f"s{n}")) for n in range(300)]
    assert all(old == new or new == "new" for old, new in moved)
    assert 20 < sum(old != new for old, new in moved) < 120
