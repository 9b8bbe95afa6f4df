"""Operators promote revisions of agents over HTTP and from the shell."""

import asyncio
import json

import pytest
from support.eventually import wait_until_async
from support.gateway import keys, programs, stand
from support.here import running_worker
from support.revisions import client_of, plain, revision

from antiphon.cli.main import main
from antiphon_gateway import Access

pytestmark = pytest.mark.one_server

EVERYTHING = ["read", "write", "admin"]
OLD, NEW = plain("old"), plain("new")


async def listed(client) -> None:
    async def both() -> bool:
        return len([one async for one in client.agents() if one.agent == "support" and one.workers]) == 2

    await wait_until_async(both, 30, "both workers advertise their revisions")


async def test_a_gateway_promotes_pauses_and_rolls_back(redis_url, tmp_path):
    old, new = revision(OLD), revision(NEW)
    known, secrets = keys(all={"tenant": "*", "rights": EVERYTHING}, a={"tenant": "a", "rights": EVERYTHING})
    access = Access(known, secret="a secret that every replica has, 32 bytes")
    async with (
        stand(redis_url, tmp_path, access=access) as (_, api, _), programs(api, secrets) as all_,
        client_of(redis_url) as client,
        running_worker(redis_url, OLD), running_worker(redis_url, NEW),
    ):  # fmt: skip
        await listed(client)
        api, asked = all_["all"], {"revision": new, "share": 0.05}
        for act in ("promote", "pause", "roll-back", "reset"):
            await all_["a"].post(f"/agents/support/{act}", asked if act == "promote" else {}, 403)
        await all_["a"].get("/agents", 403)
        canary = {"revision": old, "canary": new, "share": 0.05}
        assert await api.post("/agents/support/promote", asked, 200) == canary
        assert await api.post("/agents/support/pause", {}, 200) == {**canary, "paused": True}
        found = await api.get("/agents?sessions=true")
        rows = {one["revision"]: one for one in found["agents"] if one["agent"] == "support"}
        assert (rows[old]["share"], rows[new]["share"], rows[new]["sessions"]) == (0.95, 0.05, 0)
        assert found["promotions"] == {"support": {**canary, "paused": True}}
        after = await api.post("/agents/support/roll-back", {}, 200)
        assert after == {"revision": old, "withdrawn": [new]}
        await api.post("/agents/support/promote", {"revision": "none"}, 400)
        await api.post("/agents/support/promote", {"revision": new, "share": 2}, 400)
        await api.post("/agents/support/reset", {}, 204)
        assert (await api.get("/agents"))["promotions"] == {}


async def test_the_shell_promotes_and_shows_what_may_stop(redis_url, capsys):
    async def run(*argv, code=0):
        assert await asyncio.to_thread(main, ["agents", *argv, "--redis-url", redis_url]) == code
        return capsys.readouterr()

    old, new = revision(OLD), revision(NEW)
    async with client_of(redis_url) as client, running_worker(redis_url, OLD), running_worker(redis_url, NEW):
        await listed(client)
        told = (await run("promote", f"support@{new}", "--share", "5%")).out
        assert [line.split() for line in told.splitlines()[1:]] == [["5%", new], ["all", "others", old]]
        assert "5%, paused" in (await run("pause", "support")).out
        rows = {line.split()[1]: line.split() for line in (await run()).out.splitlines()}
        assert (rows[old][3], rows[new][3]) == ("95%", "5%")
        told = json.loads((await run("promote", f"support@{new}", "--json")).out)
        assert told == {"revision": new, "previous": old}
        retire = {line.split()[1]: line for line in (await run("retire")).out.splitlines()}
        assert "its workers may stop" in retire[old]
        assert retire[new].endswith("next turns")
        needed = [json.loads(line)["needed_by"] for line in (await run("retire", "--json")).out.splitlines()]
        assert sorted(needed) == [[], ["next turns"]]
        assert "tenant acme" in (await run("promote", f"support@{old}", "--tenant", "acme")).out
        assert (await run("roll-back", "support")).out.splitlines()[-1].split()[-1] == old
        assert "worker that claims" in (await run("reset", "support")).out
        assert "--share" in (await run("promote", f"support@{new}", "--share", "some", code=2)).err
