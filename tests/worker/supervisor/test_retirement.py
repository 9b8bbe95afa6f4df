"""Workers stop by themselves when nothing needs a revision of theirs, and others have all the rest."""

import asyncio

import pytest
from support.eventually import patience, wait_until_async
from support.here import running_worker
from support.revisions import client_of, plain, revision

from antiphon.redis.agents import AgentRevision
from antiphon_worker.settings import Settings
from antiphon_worker.supervisor import supervisor as module
from antiphon_worker.supervisor.retirement import are_unneeded, may_stop


def row(agent: str, revision: str, *workers: str, share: float | None = 0.0, **needs) -> AgentRevision:
    return AgentRevision(
        agent, revision, workers=[*workers], share=share, pinned=needs.pop("pinned", 0), **needs
    )


OLD, NEW = row("a", "1", "w1", "w2"), row("a", "2", "w3", share=1.0, promoted=True)


@pytest.mark.parametrize(
    ("found", "stops"),
    [
        ([OLD, NEW], True),
        ([OLD], True),
        ([row("a", "1", "w1", "w2", share=None), NEW], False),
        ([row("a", "1", "w1", "w2", turns=1), NEW], False),
        ([row("a", "1", "w1", "w2", pinned=1), NEW], False),
        ([row("a", "1", "w1", "w2", share=0.95, promoted=True), NEW], False),
        ([row("a", "1", "w1"), NEW], False),
        ([OLD, NEW, row("b", "1", "w1", "w2", "w3", share=None)], True),
        ([OLD, NEW, row("b", "1", "w1", "w2", share=None)], False),
        ([], False),
    ],
)
def test_workers_stop_where_nothing_needs_them(found, stops):
    assert are_unneeded(found, ["w1", "w2"]) is stops


def test_without_workers_there_is_nothing_to_stop():
    assert not are_unneeded([OLD, NEW], [])


@pytest.mark.one_server
async def test_old_workers_may_stop_when_another_revision_was_promoted_and_no_session_keeps_theirs(redis_url):
    settings = Settings(redis_url=redis_url)
    old, new = plain("old", "pinned"), plain("new")
    async with (
        client_of(redis_url) as client,
        running_worker(redis_url, old) as first, running_worker(redis_url, new) as second,
    ):  # fmt: skip

        async def there() -> bool:
            return len([one async for one in client.agents() if one.workers]) == 2

        await wait_until_async(there, 30)
        assert not await may_stop(settings, [first.name])
        await client.agents().promote(f"support@{revision(old)}")
        await (await client.submit("s", "Hello", agent="support")).result(30)
        await client.agents().promote(f"support@{revision(new)}")
        assert not await may_stop(settings, [first.name]), "a session keeps its revision"
        await client.session("s").delete()
        assert await may_stop(settings, [first.name])
        assert not await may_stop(settings, [second.name])


async def test_nothing_stops_while_redis_is_away(caplog):
    assert not await may_stop(Settings(redis_url="redis://127.0.0.1:1/0"), ["w1"])
    assert "cannot be read" in caplog.text


async def test_a_supervisor_drains_once(monkeypatch):
    asked = []

    async def may(settings, workers):
        asked.append([*workers])
        return len(asked) == 3

    monkeypatch.setattr("antiphon_worker.supervisor.retirement.may_stop", may)
    monkeypatch.setattr(module, "RETIRE_SECONDS", 0)
    supervisor = module.Supervisor(Settings(retire=True))
    await asyncio.wait_for(supervisor._retire(), patience(30))
    assert len(asked) == 3
    assert supervisor.unready() == "It drains."
    supervisor._ending.cancel()
