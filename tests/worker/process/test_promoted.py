"""The next turns of sessions run on the revisions that were promoted, on the workers that have them."""

import pytest
from support.eventually import wait_until_async
from support.here import running_worker
from support.revisions import app as asking
from support.revisions import approve, client_of, plain, revision, suspended

from antiphon.errors import UsageError
from antiphon.model.revisions import Rollout, is_in_share
from antiphon_worker.app import App

pytestmark = pytest.mark.one_server

OLD, NEW = plain("old"), plain("new")
IN_SHARE = next(f"s{n}" for n in range(1000) if is_in_share("support", f"s{n}", 0.05))
OUTSIDE = next(f"s{n}" for n in range(1000) if not is_in_share("support", f"s{n}", 0.05))


async def listed(client, number: int) -> None:
    async def there() -> bool:
        return len([one async for one in client.agents() if one.workers]) == number

    await wait_until_async(there, 30, "the workers advertise their revisions")


async def answer(client, session: str, **options) -> str:
    turn = await client.submit(session, "Hello", agent="support", **options)
    return (await turn.result(60)).text


async def changes(client, session: str) -> list[tuple[str, str, str]]:
    turn = await client.submit(session, "The last one", agent="support")
    await turn.result(30)
    found = []
    async for event in client.subscribe(session, after=0):
        found.append(event)
        if event.type == "turn_finished" and event.turn_id == turn.id:
            break
    return [(one.previous, one.revision, one.reason) for one in found if one.type == "agent_changed"]


def at(app: App) -> str:
    return f"support@{revision(app)}"


async def test_a_share_of_the_sessions_takes_the_new_revision_and_returns_when_it_is_rolled_back(redis_url):
    old, new = revision(OLD), revision(NEW)
    async with client_of(redis_url) as client, running_worker(redis_url, OLD):
        assert await answer(client, IN_SHARE) == await answer(client, OUTSIDE) == "old"
        async with running_worker(redis_url, NEW):
            await listed(client, 2)
            await client.agents().promote(at(NEW), share=0.05)
            for _ in range(3):
                assert [await answer(client, one) for one in (IN_SHARE, OUTSIDE)] == ["new", "old"]
            await client.agents().roll_back("support")
            for _ in range(2):
                assert [await answer(client, one) for one in (IN_SHARE, OUTSIDE)] == ["old", "old"]
        assert await changes(client, IN_SHARE) == [(old, new, "promoted"), (new, old, "rolled_back")]
        assert await changes(client, OUTSIDE) == []


async def test_a_paused_share_keeps_its_sessions_and_takes_no_more(redis_url):
    others = [f"t{n}" for n in range(1000) if is_in_share("support", f"t{n}", 0.05)][:2]
    async with client_of(redis_url) as client, running_worker(redis_url, OLD), running_worker(redis_url, NEW):
        await listed(client, 2)
        await client.agents().promote(at(NEW), share=0.05)
        assert await answer(client, others[0]) == "new"
        await client.agents().pause("support")
        assert [await answer(client, one) for one in others] == ["new", "old"]
        await client.agents().promote(at(NEW))
        assert [await answer(client, one) for one in others] == ["new", "new"]


async def test_a_tenant_and_a_session_take_their_own(redis_url):
    async with client_of(redis_url) as client, running_worker(redis_url, OLD), running_worker(redis_url, NEW):
        await listed(client, 2)
        await client.agents().promote(at(OLD))
        await client.agents().promote(at(NEW), tenant="acme")
        await client.agents().promote(at(NEW), session="mine")
        assert await answer(client, "a", tenant="acme") == "new"
        assert await answer(client, "mine") == "new"
        assert await answer(client, "b") == "old"
        await client.forget(tenant="acme")
        await client.forget(session="mine")
        (left,) = (await client.agents().promotions()).values()
        assert (left.tenants, left.sessions) == ({}, {})


async def test_a_pinned_session_stays_unless_it_is_named_or_its_revision_is_withdrawn(redis_url):
    old, new = plain("old", "pinned"), plain("new", "pinned")
    async with client_of(redis_url) as client, running_worker(redis_url, old):
        assert await answer(client, "s") == await answer(client, "t") == "old"
        async with running_worker(redis_url, new):
            await listed(client, 2)
            agents = client.agents()
            await agents.promote(at(old))
            await agents.promote(at(new))
            assert [await answer(client, one) for one in ("s", "t", "later")] == ["old", "old", "new"]
            await agents.promote(at(new), session="s")
            assert [await answer(client, one) for one in ("s", "t")] == ["new", "old"]
            await agents.roll_back("support")
            assert [await answer(client, one) for one in ("s", "t", "later")] == ["old", "old", "old"]


async def test_a_turn_that_has_begun_stays_on_its_revision(redis_url):
    old, new = asking("old"), asking("new", asks=False)
    async with client_of(redis_url) as client:
        turn = await suspended(client, redis_url, old)
        async with running_worker(redis_url, new), running_worker(redis_url, old):
            await listed(client, 2)
            await client.agents().promote(at(new))
            await approve(turn)
            assert (await turn.result(30)).text == "old"
            assert await answer(client, "s") == "new"


async def test_a_turn_waits_for_workers_of_a_promoted_revision_and_then_moves(redis_url):
    patient = plain("old", Rollout(timeout=0.5))
    async with client_of(redis_url) as client, running_worker(redis_url, patient):
        async with running_worker(redis_url, NEW):
            await listed(client, 2)
            await client.agents().promote(at(NEW))
        await listed(client, 1)
        assert await answer(client, "s") == "old"


async def test_after_a_reset_turns_cost_what_they_cost_before(redis, redis_url):
    async with client_of(redis_url) as client, running_worker(redis_url, OLD):
        await listed(client, 1)
        await client.agents().promote(at(OLD))
        assert await answer(client, "s") == "old"
        assert redis.hexists("ant:session:s", "ran")
        await client.agents().reset("support")
        assert await answer(client, "s") == "old"
        assert not redis.hexists("ant:session:s", "ran")
        assert not redis.exists("ant:promotions")


async def test_damaged_promotions_stop_no_turn(redis, redis_url):
    async with client_of(redis_url) as client, running_worker(redis_url, OLD):
        redis.set("ant:promotions", "no JSON")
        assert await answer(client, "s") == "old"


async def test_only_what_workers_have_is_promoted(redis_url):
    other = plain("other")
    async with client_of(redis_url) as client, running_worker(redis_url, OLD), running_worker(redis_url, NEW):
        await listed(client, 2)
        agents = client.agents()
        with pytest.raises(UsageError, match="No worker has the revision"):
            await agents.promote("support@000000000000")
        with pytest.raises(UsageError, match="agent@revision"):
            await agents.promote("support")
        with pytest.raises(UsageError, match="share="):
            await agents.promote(at(NEW), share=0)
        with pytest.raises(UsageError, match="Pass one of"):
            await agents.promote(at(NEW), share=0.5, session="s")
        await agents.promote(at(NEW), share=0.5)
        await agents.promote(at(NEW))
        with pytest.raises(UsageError, match=r"take .* already"):
            await agents.promote(at(NEW), share=0.5)
        await agents.reset("support")
        async with running_worker(redis_url, other):
            await listed(client, 3)
            with pytest.raises(UsageError, match="2 other ones"):
                await agents.promote(at(NEW), share=0.5)


async def test_what_still_needs_a_revision_is_listed(redis_url):
    old, new = plain("old", "pinned"), plain("new")
    async with client_of(redis_url) as client, running_worker(redis_url, old), running_worker(redis_url, new):
        await listed(client, 2)
        agents = client.agents(sessions=True)

        async def needs() -> dict[str, list[str]]:
            return {one.revision: one.needed_by async for one in agents}

        assert await needs() == {revision(old): ["next turns"], revision(new): ["next turns"]}
        await agents.promote(at(old))
        assert await answer(client, "s") == "old"
        await agents.promote(at(new))
        assert await needs() == {revision(old): ["sessions"], revision(new): ["next turns"]}
        await client.session("s").delete()
        assert await needs() == {revision(old): [], revision(new): ["next turns"]}
