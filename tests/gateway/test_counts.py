"""Lists of sessions by state and by text, and how many there are: for every session, and for keys of some."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis
from support.eventually import wait_until_async
from support.gateway import keys, open_gateway, programs, stand

from antiphon_gateway.access.access import Access

LOOK = {"caller_tools": [{"name": "look"}]}


def ids(page):
    return [one["session_id"] for one in page["sessions"]]


async def some_of_each(ensemble, api):
    """A session that runs, one that is suspended, one that has failed, one that had failed, and one that is done."""
    await api.submit("runs", "go gate:never", tenant="acme")
    await ensemble.waits("never")
    await api.submit("asks", "go tool:look", tenant="acme", **LOOK)
    for session, tenant in (("fails", "acme"), ("mends", "other")):
        await api.result(await api.submit(session, "go fail:rejected*1", tenant=tenant))
    await api.result(await api.submit("mends", "again"))
    await api.result(await api.submit("rests", "go"))

    async def suspended():
        return [one["session_id"] for one in (await api.get("/waiting"))["turns"]] == ["asks"]

    await wait_until_async(suspended, 20)


async def end(api):
    """Cancel what runs and what is suspended."""
    for state in ("running", "suspended"):
        for session in ids(await api.get(f"/sessions?state={state}")):
            (turn,) = (await api.get(f"/sessions/{session}/turns"))["turns"]
            await api.post(f"/turns/{turn['turn_id']}/cancel", {})
            await api.result(turn["turn_id"])


async def test_a_state_lists_its_sessions_alone_and_every_session_says_its_own(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (ensemble, api, _):
        await some_of_each(ensemble, api)
        assert {one["session_id"]: one["status"] for one in (await api.get("/sessions"))["sessions"]} == {
            "runs": "running", "asks": "suspended", "fails": "failed", "mends": "done", "rests": "done",
        }  # fmt: skip
        for state, expected in (("running", "runs"), ("suspended", "asks"), ("failed", "fails")):
            assert ids(await api.get(f"/sessions?state={state}")) == [expected]
            assert ids(
                await api.get(f"/sessions?state={state}&tenant=acme&search={expected[:3].upper()}")
            ) == [expected]
            assert ids(await api.get(f"/sessions?state={state}&tenant=other")) == []
        assert sorted(ids(await api.get("/sessions?state=done"))) == ["mends", "rests"]
        assert (await api.get("/sessions?state=gone", 400))["code"] == "invalid_query"
        await end(api)


async def test_counts_are_of_all_sessions_and_a_key_of_some_counts_its_own(redis_url, tmp_path):
    known, secrets = keys(
        root={"tenant": "*", "rights": ["read", "write", "admin"]},
        acme={"tenant": "acme"},
        one={"tenant": "acme", "sessions": ["asks"]},
    )
    async with (
        stand(redis_url, tmp_path, access=Access(known)) as (ensemble, api, _),
        programs(api, secrets) as by,
    ):
        await some_of_each(ensemble, by["root"])
        whole = {"sessions": 5, "running": 1, "suspended": 1, "failed": 1, "limit": None, "searchable": False}
        assert await by["root"].get("/counts") == whole
        of_acme = {
            "sessions": None,
            "running": 1,
            "suspended": 1,
            "failed": 1,
            "limit": 1000,
            "searchable": False,
        }
        assert await by["acme"].get("/counts") == await by["root"].get("/counts?tenant=acme") == of_acme
        assert await by["one"].get("/counts") == {**of_acme, "running": 0, "failed": 0}
        assert (await by["acme"].get("/counts?tenant=other", 403))["code"] == "wrong_tenant"
        await end(by["root"])


@pytest.mark.parametrize("state", ["running", "suspended", "failed"])
async def test_a_state_of_a_large_deployment_reads_no_other_sessions(redis_url, state):
    """Ten thousand idle sessions: counts and states ask for none of them."""
    async with open_gateway(redis_url) as (api, _), Redis.from_url(redis_url) as redis:
        await redis.zadd("ant:sessions", {f"s{number}": 9e12 + number for number in range(10_000)})
        await redis.config_resetstat()
        assert ids(await api.get(f"/sessions?state={state}")) == []
        assert (await api.get("/counts"))["sessions"] == 10_000
        stats = await redis.info("commandstats")
        assert sum(one["calls"] for name, one in stats.items() if name != "cmdstat_info") < 40
        assert "cmdstat_hmget" not in stats
