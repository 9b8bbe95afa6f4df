"""Odd answers of batch services: a turn is asked for once, and ends at the latest through the usual endpoint (G27)."""

import itertools
import json

import pytest
from support.batched import service, working
from support.cells import open_cell
from support.eventually import wait_until_async
from support.services.batch_server import Refused

from antiphon_worker.providers.batches import Unreadable

pytestmark = pytest.mark.one_server

ODD = [
    b"", b"<html>busy</html>", b"null", b"[]", b'"batch"', b"{", b"{}", b'{"id": 5}', b'{"id": "batch_1"',
    b'{"custom_id": 5}', b"\xff\xfe", b"[" * 100_000,
]  # fmt: skip
CALLS = {
    "openai": ["POST /v1/files", "POST /v1/batches", "GET /v1/batches/*", "GET /v1/files/*/content",
               "DELETE /v1/files/*"],
    "anthropic": ["POST /v1/messages/batches", "GET /v1/messages/batches/*", "GET /v1/messages/batches/*/results",
                  "DELETE /v1/messages/batches/*"],
}  # fmt: skip
RESULTS = {"openai": "GET /v1/files/*/content", "anthropic": "GET /v1/messages/batches/*/results"}


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    monkeypatch.setattr("antiphon_worker.batches.IDLE_SECONDS", 0.05)


@pytest.mark.parametrize(("kind", "call"), [(kind, call) for kind, calls in CALLS.items() for call in calls])
async def test_after_one_odd_answer_the_turn_is_answered_by_its_batch(redis_url, kind, call):
    async with working(redis_url, kind) as (client, server):
        for number, body in enumerate(ODD):
            server.odd[call] = iter([lambda _, body=body: body])
            turn = await client.submit(f"s{number}", "Hello", agent="a", service="batch")
            assert (await turn.result(20)).text == "Hello."
            assert len(server.orders) == number + 1, body
        nothing_in_it = 1 if call == RESULTS[kind] else 0
        assert len(server.usual) == nothing_in_it, "a batch without any line has no answer"
        await wait_until_async(lambda: server.messages == {})
        lost = len(ODD) if call == "POST /v1/files" else 0
        await wait_until_async(lambda: len(server.files) == lost)


@pytest.mark.parametrize(("kind", "call"), [(kind, call) for kind, calls in CALLS.items() for call in calls])
async def test_if_all_answers_are_odd_the_turn_goes_to_the_usual_endpoint_or_has_its_answer(
    redis_url, kind, call
):
    async with working(redis_url, kind, batch_deadline=2.0) as (client, server):
        server.odd[call] = itertools.repeat(lambda _: b"<html>busy</html>")
        turn = await client.submit("s", "Hello", agent="a", service="batch")
        assert (await turn.result(30)).text == "Hello."
        assert len(server.orders) <= 1
        answered = call.startswith(("DELETE", "POST /v1/batches", "POST /v1/messages"))
        assert len(server.usual) == (0 if answered else 1)
        assert server.heard.count("POST /v1/files") <= 3


def cut(real):
    """The last line ends in the middle."""
    return real[: real.rstrip().rindex(b"\n") + 30]


def with_a_foreign_line(real):
    line = json.loads(real.splitlines()[0])
    return json.dumps({**line, "custom_id": "f" * 32}).encode() + b"\n" + real


@pytest.mark.parametrize("kind", RESULTS)
@pytest.mark.parametrize(
    ("odd", "times", "usual"),
    [
        (cut, 1, 0),
        (cut, 1_000, 1),
        (lambda real: real + real, 1_000, 0),
        (with_a_foreign_line, 1_000, 0),
        (lambda real: b"<html>\n" + real + b"</html>", 1_000, 0),
    ],
    ids=["cut-once", "cut", "twice", "foreign", "page"],
)
async def test_lines_that_can_be_read_reach_their_turns(redis_url, kind, odd, times, usual):
    async with working(redis_url, kind, batch_seconds=60.0, batch_size=2) as (client, server):
        server.odd[RESULTS[kind]] = itertools.repeat(odd, times)
        turns = [await client.submit(f"s{n}", "Hello", agent="a", service="batch") for n in range(2)]
        assert [(await turn.result(20)).text for turn in turns] == ["Hello."] * 2
        assert (len(server.orders), len(server.usual)) == (1, usual)
        await wait_until_async(lambda: server.messages == server.files == {})


@pytest.mark.parametrize("kind", RESULTS)
async def test_a_status_that_is_unknown_ends_no_batch(redis_url, kind):
    call, ended = {
        "openai": ("GET /v1/batches/*", b'"completed"'),
        "anthropic": ("GET /v1/messages/batches/*", b'"ended"'),
    }[kind]
    async with working(redis_url, kind) as (client, server):
        server.odd[call] = itertools.repeat(lambda real: real.replace(ended, b'"paused"'), 3)
        turn = await client.submit("s", "Hello", agent="a", service="batch")
        assert (await turn.result(20)).text == "Hello."
        assert (len(server.orders), server.usual) == (1, [])
        assert server.heard.count(call) == 4


@pytest.mark.parametrize("kind", RESULTS)
async def test_a_page_of_batches_that_cannot_be_read_is_not_taken_for_an_empty_one(kind, redis_url):
    async with working(redis_url, kind) as (_, server):
        provider = service(kind, server.url)
        call = f"GET /v1/{'messages/' if kind == 'anthropic' else ''}batches"
        for body in (b"<html>", b"[]", b'{"data": [{}]}', b'{"data": 5}'):
            server.odd[call] = iter([lambda _, body=body: body])
            with pytest.raises(Unreadable):
                await provider.batches.find("label", 1, 0.0, ())
        await provider.aclose()


@pytest.mark.parametrize("kind", RESULTS)
async def test_what_cannot_be_deleted_now_is_deleted_later_and_what_must_not_be_is_left(redis_url, kind):
    call = {"openai": "DELETE /v1/files/*", "anthropic": "DELETE /v1/messages/batches/*"}[kind]
    async with working(redis_url, kind) as (client, server), open_cell(redis_url) as cell:
        answers = iter([503] * 8)

        def refuse():
            if (status := next(answers, None)) is not None:
                raise Refused(status, "not now")

        server.before[call] = refuse
        await (await client.submit("s", "Hello", agent="a", service="batch")).result(20)
        await wait_until_async(lambda: server.files == server.messages == {})
        answers = itertools.repeat(403)
        await (await client.submit("s", "Hello", agent="a", service="batch")).result(20)
        await wait_until_async(lambda: is_empty(cell))
        assert server.usual == []
        assert server.files or server.messages


async def is_empty(cell):
    return await cell.redis.zcard(cell.keys.batches) == 0
