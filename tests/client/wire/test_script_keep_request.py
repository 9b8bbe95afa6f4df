"""`keep_request`: what a model received is kept for its turn, by the turn's holder only, and within bounds."""

import pytest

from antiphon.errors import CorruptRecord
from antiphon.input.ids import Fence
from antiphon.model.recording import KeptRequest
from antiphon.wire import requests
from antiphon.wire.editing import delete_session
from antiphon.wire.requests import keep_request, kept_requests


def sent(step: int = 1, **fields) -> KeptRequest:
    return KeptRequest(step, fields.pop("run", 1), 1, 5, "openai", "gpt", 9, fields.pop("body", {"n": step}))


async def keep(cell, turn, number=1, request=None, fence=None) -> bool:
    return await keep_request(cell, "s", turn.turn_id, fence or turn.fence, number, request or sent(number))


async def kept(cell, turn="t1") -> list[KeptRequest]:
    return await kept_requests(cell, await cell.turn(turn))


async def test_requests_are_kept_once_each_in_the_order_of_runs_and_calls(cell):
    turn = await cell.started("t1")
    for number in (1, 10, 2, 2):
        assert await keep(cell, turn, number)
    await keep(cell, turn, 1, sent(1, run=2, body={"again": True}))
    assert [(one.run, one.step) for one in await kept(cell)] == [(1, 1), (1, 2), (1, 10), (2, 1)]
    assert (await kept(cell))[-1].body == {"again": True}
    assert 0 < await cell.redis.pttl("ant:requests:t1") <= requests.LASTS_MS


async def test_who_does_not_hold_the_turn_keeps_nothing(cell):
    turn = await cell.started("t1")
    assert not await keep(cell, turn, fence=Fence("0:other"))
    await cell.end(turn)
    assert not await keep(cell, turn)
    assert await kept(cell) == []


async def test_what_is_too_long_is_kept_without_its_body(cell, monkeypatch):
    monkeypatch.setattr(requests, "MOST_BYTES_OF_TURN", 400)
    turn = await cell.started("t1")
    for number in range(1, 4):
        assert await keep(cell, turn, number, sent(number, body="x" * 150))
        assert await keep(cell, turn, number, sent(number, body="x" * 150))
    assert [(one.step, one.body is None) for one in await kept(cell)] == [(1, False), (2, True), (3, True)]


async def test_a_turn_has_no_more_requests_than_it_may(cell, monkeypatch):
    monkeypatch.setattr(requests, "MOST", 2)
    turn = await cell.started("t1")
    for number in (1, 2, 3):
        assert await keep(cell, turn, number)
    assert [one.step for one in await kept(cell)] == [1, 2]


async def test_a_deleted_session_leaves_no_request(cell):
    turn = await cell.started("t1")
    await keep(cell, turn)
    await cell.end(turn)
    await delete_session(cell, "s")
    assert await cell.redis.exists("ant:requests:t1") == 0


@pytest.mark.parametrize("damaged", [{"1.1.1": "no JSON"}, {"what": "{}"}, {"1.1.1": '{"step": "x"}'}])
async def test_a_damaged_request_is_an_error_that_names_the_turn(cell, damaged):
    await cell.put("t1")
    await cell.redis.hset("ant:requests:t1", mapping=damaged)
    await cell.redis.expire("ant:requests:t1", 60)
    with pytest.raises(CorruptRecord) as raised:
        await kept(cell)
    assert raised.value.turn_id == "t1"
