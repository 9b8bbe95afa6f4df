"""Schedules and webhooks over HTTP, and who may set them."""

import pytest
from support.gateway import STAGE, keys, open_gateway

from antiphon_gateway import Access

pytestmark = [pytest.mark.one_server, pytest.mark.lasting_keys("ant:schedule*", "ant:webhook*")]

DAILY = {"input": "Good morning", "agent": STAGE, "cron": "0 18 * * *", "tz": "Europe/Berlin"}
EVERYTHING = ["read", "write", "admin"]
HOOK = {"url": "https://example.com/hooks", "types": ["turn_finished"]}


async def test_a_schedule_is_set_listed_paused_resumed_and_removed(redis_url):
    async with open_gateway(redis_url) as (api, _):
        path = "/sessions/a%2Fb/schedules"
        assert await api.get(path) == {"schedules": []}
        await api.call("PUT", f"{path}/daily", 204, json=DAILY)
        await api.call("PUT", f"{path}/soon", 204, json={"input": "x", "agent": STAGE, "every": 3600})
        (daily,) = [one for one in (await api.get(path))["schedules"] if one["name"] == "daily"]
        assert (daily["session_id"], daily["cron"], daily["tz"]) == ("a/b", DAILY["cron"], DAILY["tz"])
        await api.call("DELETE", f"{path}/soon", 204)
        await api.call("PUT", f"{path}/push", 204, json={"input": "x", "agent": STAGE, "on": "github:*"})
        assert await api.post("/events/github:push", {}) == {"turns": 1}
        (push,) = [one for one in (await api.get(path))["schedules"] if one["name"] == "push"]
        await api.post(f"/turns/{push['last_turn']}/cancel", {})
        await api.call("DELETE", f"{path}/push", 204)
        await api.post(f"{path}/daily/pause", None, 204)
        assert [one["due"] for one in (await api.get("/schedules"))["schedules"]] == [None]
        await api.post(f"{path}/daily/resume", None, 204)
        assert (await api.get("/schedules?limit=1"))["schedules"] == [daily]
        for method, where, body in (
            ("PUT", f"{path}/x", {"input": "x"}), ("PUT", f"{path}/x", {**DAILY, "every": 1}),
            ("PUT", f"{path}/x", {**DAILY, "cron": "never"}), ("PUT", f"{path}/x", {**DAILY, "delay": 1}),
            ("PUT", f"{path}/a%20b", DAILY),
        ):  # fmt: skip
            await api.call(method, where, 400, json=body)
        for method, where in (("DELETE", f"{path}/soon"), ("POST", f"{path}/soon/pause")):
            await api.call(method, where, 404)
        await api.call("DELETE", f"{path}/daily", 204)
        assert await api.get("/schedules") == {"schedules": []}


async def test_a_webhook_is_set_listed_and_removed(redis_url):
    async with open_gateway(redis_url) as (api, _):
        made = await api.call("PUT", "/webhooks/billing", json=HOOK)
        assert made["secret"].startswith("whsec_")
        assert await api.call("PUT", "/webhooks/billing", json={**HOOK, "agent": "clerk"}) == made
        (listed,) = (await api.get("/webhooks"))["webhooks"]
        assert (listed["name"], listed["url"], listed["agent"]) == ("billing", HOOK["url"], "clerk")
        assert "secret" not in listed
        for wrong in (
            {"url": "http://example.com"},
            {**HOOK, "types": ["text_delta"]},
            {**HOOK, "secret": "short"},
        ):
            await api.call("PUT", "/webhooks/billing", 400, json=wrong)
        await api.call("PUT", "/webhooks/inside", json={"url": "http://10.0.0.1/hooks", "private": True})
        for name in ("billing", "inside"):
            await api.call("DELETE", f"/webhooks/{name}", 204)
        await api.call("DELETE", "/webhooks/billing", 404)


async def test_a_key_sets_schedules_and_webhooks_of_its_tenant_and_its_sessions_alone(redis_url):
    given = {
        "a": {"tenant": "a", "rights": EVERYTHING}, "b": {"tenant": "b", "rights": EVERYTHING},
        "part": {"tenant": "a", "sessions": ["own-*"], "rights": EVERYTHING}, "few": {"tenant": "a"},
    }  # fmt: skip
    known, secrets = keys(**given)
    async with open_gateway(redis_url, access=Access(known)) as (api, _):

        async def call(key, method, path, status, body=None):
            headers = {"authorization": f"Bearer {secrets[key]}"}
            return await api.call(
                method, path, status, headers=headers, **({} if body is None else {"json": body})
            )

        await call("a", "PUT", "/sessions/s/schedules/daily", 204, DAILY)
        await call("a", "PUT", "/sessions/own-1/schedules/daily", 204, DAILY)
        await call("a", "PUT", "/webhooks/hook", 200, HOOK)
        for key, method, path, body, status in (
            ("b", "DELETE", "/sessions/s/schedules/daily", None, 403),
            ("b", "PUT", "/webhooks/hook", HOOK, 403),
            ("b", "PUT", "/sessions/s/schedules/daily", DAILY, 403),
            ("b", "PUT", "/webhooks/mine", {**HOOK, "tenant": "a"}, 403),
            ("b", "POST", "/sessions/s/schedules/daily/pause", None, 403), ("b", "DELETE", "/webhooks/hook", None, 403),
            ("a", "PUT", "/webhooks/hook", {"url": "http://10.0.0.1", "private": True}, 403),
            ("part", "PUT", "/sessions/s/schedules/daily", DAILY, 403), ("part", "GET", "/webhooks", None, 403),
            ("part", "PUT", "/webhooks/hook", HOOK, 403), ("few", "GET", "/webhooks", None, 403),
            ("few", "GET", "/schedules", None, 403), ("few", "PUT", "/sessions/s/schedules/daily", DAILY, 403),
        ):  # fmt: skip
            await call(key, method, path, status, body)
        for number in range(10):
            await call("b", "PUT", f"/webhooks/b-{number}", 200, HOOK)
        await call("b", "PUT", "/webhooks/b-10", 429, HOOK)
        await call("b", "PUT", "/webhooks/b-9", 200, HOOK)
        for number in range(10):
            await call("b", "DELETE", f"/webhooks/b-{number}", 204)
        assert await call("b", "GET", "/schedules", 200) == {"schedules": []}
        assert await call("b", "GET", "/webhooks", 200) == {"webhooks": []}
        listed = (await call("part", "GET", "/schedules", 200))["schedules"]
        assert [one["session_id"] for one in listed] == ["own-1"]
        assert len((await call("a", "GET", "/schedules", 200))["schedules"]) == 2
        for session in ("s", "own-1"):
            await call("a", "DELETE", f"/sessions/{session}/schedules/daily", 204)
        await call("a", "DELETE", "/webhooks/hook", 204)
