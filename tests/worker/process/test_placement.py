"""A turn runs on the revision that it began with, through retries, suspensions and deploys."""

import pytest
from support.cells import body, stranger
from support.eventually import wait_until_async
from support.here import running_worker
from support.revisions import app, approve, client_of, plain, revision, status_is, suspended

from antiphon import Agent
from antiphon.errors import RevisionUnavailable, UsageError
from antiphon.model.revisions import Rollout
from antiphon.wire.revisions import begin
from antiphon_worker.app import App

pytestmark = pytest.mark.one_server


async def test_a_suspended_turn_continues_on_the_revision_it_began_with(redis_url):
    old, new = app("old"), app("new")
    async with client_of(redis_url) as client:
        turn = await suspended(client, redis_url, old)
        async with running_worker(redis_url, new), running_worker(redis_url, old):
            await approve(turn)
            assert (await turn.result(30)).text == "old"


async def test_without_a_worker_it_waits_with_a_reason_and_then_moves(redis, redis_url):
    old, new = app("old"), app("new", rollout=Rollout(timeout=1.0), asks=False)
    async with client_of(redis_url) as client:
        turn = await suspended(client, redis_url, old)
        async with running_worker(redis_url, new):
            await approve(turn)
            await wait_until_async(lambda: status_is(turn, "retrying"), 30, "it waits")
            info = await turn.info()
            assert info.code == "revision_unavailable"
            assert "No worker has the revision" in (info.error or "")
            assert (await turn.result(30)).text == "new"
        events = [event async for event in turn.stream(after=0)]
        (changed,) = [event for event in events if event.type == "agent_changed"]
        assert (changed.agent, changed.previous, changed.revision, changed.reason) == (
            "support", revision(old), revision(new), "revision_unavailable",
        )  # fmt: skip
        assert redis.hget(f"ant:turn:{turn.id}", "revision").decode() == revision(new)


async def test_a_time_limit_may_fail_the_turn(redis_url):
    old, new = app("old"), app("new", rollout=Rollout(timeout=0.5, at_limit="fail"))
    async with client_of(redis_url) as client:
        turn = await suspended(client, redis_url, old)
        async with running_worker(redis_url, new):
            await approve(turn)
            with pytest.raises(RevisionUnavailable) as failed:
                await turn.result(30)
            assert failed.value.code == "revision_unavailable"
            assert "support" not in str(failed.value)


async def test_a_worker_that_returns_in_time_takes_the_turn(redis_url):
    old, new = app("old"), app("new", rollout=Rollout(timeout=600))
    async with client_of(redis_url) as client:
        turn = await suspended(client, redis_url, old)
        async with running_worker(redis_url, new):
            await approve(turn)
            await wait_until_async(lambda: status_is(turn, "retrying"), 30, "it waits")
            async with running_worker(redis_url, old):
                assert (await turn.result(60)).text == "old"


async def test_a_session_takes_the_newest_revision_at_each_turn_by_default(redis, redis_url):
    async with client_of(redis_url) as client:
        for answer in ("old", "new"):
            async with running_worker(redis_url, plain(answer)):
                turn = await client.submit("s", "Hello", agent="support")
                assert (await turn.result(30)).text == answer
        assert not redis.hexists("ant:session:s", "pins")


async def test_a_pinned_session_keeps_the_revision_it_began_with(redis, redis_url):
    old, new = plain("old", "pinned"), plain("new", "pinned")
    async with client_of(redis_url) as client:
        async with running_worker(redis_url, old):
            assert (await (await client.submit("s", "Hello", agent="support")).result(30)).text == "old"
        async with running_worker(redis_url, new), running_worker(redis_url, old):
            await wait_until_async(lambda: _advertised(client, 2))
            for session, expected in (("s", "old"), ("s", "old"), ("s", "old")):
                turn = await client.submit(session, "Again", agent="support")
                assert (await turn.result(30)).text == expected
        async with running_worker(redis_url, new):
            assert (await (await client.submit("t", "Hello", agent="support")).result(30)).text == "new"


async def _advertised(client, number) -> bool:
    return sum([len(one.workers) async for one in client.agents()]) == number


async def test_a_pinned_session_moves_when_its_revision_is_gone_and_stays_there(redis_url):
    old, new = plain("old", "pinned"), plain("new", Rollout("pinned", timeout=0))
    async with client_of(redis_url) as client:
        async with running_worker(redis_url, old):
            await (await client.submit("s", "Hello", agent="support")).result(30)
        async with running_worker(redis_url, new):
            turn = await client.submit("s", "Again", agent="support")
            assert (await turn.result(30)).text == "new"
            assert [event.type async for event in turn.stream(after=0)].count("agent_changed") == 1
            turn = await client.submit("s", "Again", agent="support")
            assert (await turn.result(30)).text == "new"
            assert "agent_changed" not in [event.type async for event in turn.stream()]


async def test_a_fork_of_a_pinned_session_keeps_its_revision(redis, redis_url):
    async with client_of(redis_url) as client, running_worker(redis_url, plain("old", "pinned")):
        await (await client.submit("s", "Hello", agent="support")).result(30)
        await client.session("s").fork("f")
        assert redis.hget("ant:session:f", "pins") == redis.hget("ant:session:s", "pins") != None  # noqa: E711


@pytest.mark.parametrize(
    "given", ["newest", 5, Rollout("pinned", timeout=-1), Rollout("pinned", at_limit="wait"), Rollout("pin")]
)
def test_a_rollout_is_checked(given):
    with pytest.raises(UsageError, match=r"rollout=|timeout=|at_limit="):
        Agent("scripted", "any", rollout=given)
    with pytest.raises(UsageError, match=r"rollout=|timeout=|at_limit="):
        App(rollout=given)


def test_a_rollout_is_no_part_of_a_revision():
    assert revision(plain("a", "pinned")) == revision(plain("a"))


async def test_begin_notes_a_revision_once_and_only_its_holder_may(cell):
    turn = await cell.started("t1")
    for _ in range(2):
        assert await begin(cell, turn, "r1", pins={"support": "r1"}, bodies=[body("agent_changed")])
    assert (await cell.event_types()).count("agent_changed") == 1
    assert not await begin(cell, stranger(turn, "9-other"), "r2")
    assert (await cell.turn("t1")).fields["revision"] == b"r1"
    await cell.end(turn)
    await cell.put("t2")
    second = await cell.take_one(app="a1")
    assert (second.app, second.pins) == ("", b'{"support":"r1"}'), "its worker notes the revision"
    await cell.end(second)


async def test_a_turn_that_waits_for_its_revision_continues_when_a_worker_of_it_starts(
    redis_url, monkeypatch
):
    monkeypatch.setattr("antiphon_worker.process.placement.seconds_until_newer", lambda _: 600.0)
    old, new = app("old"), app("new", rollout=Rollout(timeout=3600))
    async with client_of(redis_url) as client:
        turn = await suspended(client, redis_url, old)
        async with running_worker(redis_url, new):
            await approve(turn)
            await wait_until_async(lambda: status_is(turn, "retrying"), 30, "it waits")
            async with running_worker(redis_url, old):
                assert (await turn.result(30)).text == "old"
