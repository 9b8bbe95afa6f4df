"""`/budgets/{scope}`: who may read and set budgets over HTTP, and what that changes."""

import pytest
from support.gateway import keys, open_gateway

from antiphon import AsyncClient
from antiphon.model import Budget
from antiphon_gateway import Access

pytestmark = [pytest.mark.one_server, pytest.mark.lasting_keys("ant:budgets:*")]

FIVE = {"cost": 5, "per": "day"}
EVERYTHING = ["read", "write", "admin"]


async def put(api, where, status=204, **body):
    return await api.call("PUT", f"/budgets/{where}", status, json=body)


async def test_budgets_are_set_and_read(redis_url):
    async with open_gateway(redis_url) as (api, _), AsyncClient(redis_url) as client:
        await put(
            api, "tenant?name=acme", budgets=[FIVE, {"tokens": 100, "per": "month", "reached": "suspend"}]
        )
        budgets = client.budgets("tenant", "acme")
        assert [one.budget for one in await budgets.read()] == [
            Budget(cost=5, per="day"),
            Budget(tokens=100, per="month", reached="suspend"),
        ]
        first, _ = (await api.get("/budgets/tenant?name=acme"))["budgets"]
        assert (first["budget"], first["used"], first["held"]) == ({"cost": 5.0}, 0.0, 0.0)
        await put(api, "user?name=alice&tenant=acme", budgets=[FIVE])
        assert len(await client.budgets("user", "alice", tenant="acme").read()) == 1
        await put(api, "agent", budgets=[FIVE])
        assert len(await client.budgets("agent", "clerk").read()) == 1
        await put(api, "agent?name=clerk", budgets=[])
        assert (await api.get("/budgets/agent?name=clerk")) == {"budgets": []}
        await put(api, "agent?name=clerk", budgets=None)
        assert len((await api.get("/budgets/agent?name=clerk"))["budgets"]) == 1


@pytest.mark.parametrize(
    ("where", "body"),
    [
        ("everyone?name=acme", {"budgets": []}),
        ("tenant?name=acme", {}),
        ("tenant?name=acme", {"budgets": [{}]}),
        ("tenant?name=acme", {"budgets": [{"cost": 5, "tokens": 5}]}),
        ("tenant?name=acme", {"budgets": [{"cost": -5}]}),
        ("tenant?name=acme", {"budgets": [{"cost": 5, "by": "day"}]}),
        ("tenant?name=acme&tenant=acme", {"budgets": []}),
        ("user?tenant=acme", {"budgets": []}),
    ],
)
async def test_what_is_no_budget_is_refused(redis_url, where, body):
    async with open_gateway(redis_url) as (api, _):
        await put(api, where, 400, **body)


async def test_a_key_of_a_tenant_reads_its_budgets_and_sets_those_of_its_users(redis_url):
    known, secrets = keys(
        all={"tenant": "*", "rights": EVERYTHING}, acme={"tenant": "acme", "rights": EVERYTHING},
        some={"tenant": "acme", "sessions": ["own-*"], "rights": EVERYTHING}, writer={"tenant": "*"},
    )  # fmt: skip
    async with open_gateway(redis_url, access=Access(known)) as (api, _):

        async def call(who, method, where, status, **json):
            headers = {"authorization": f"Bearer {secrets[who]}"}
            asked = {"json": json} if json else {}
            return await api.call(method, f"/budgets/{where}", status, headers=headers, **asked)

        await call("all", "PUT", "tenant?name=acme", 204, budgets=[FIVE])
        assert len((await call("acme", "GET", "tenant?name=acme", 200))["budgets"]) == 1
        await call("acme", "PUT", "user?name=alice", 204, budgets=[FIVE])
        assert len((await call("all", "GET", "user?name=alice&tenant=acme", 200))["budgets"]) == 1
        assert (await call("all", "GET", "user?name=alice", 200)) == {"budgets": []}
        for where in (
            "tenant?name=other",
            "tenant",
            "user",
            "user?name=alice&tenant=other",
            "agent?name=a",
            "session?name=s",
        ):
            await call("acme", "GET", where, 403)
            await call("acme", "PUT", where, 403, budgets=[])
        await call("acme", "PUT", "tenant?name=acme", 403, budgets=[])
        for who in ("some", "writer"):
            await call(who, "GET", "tenant?name=acme", 403)
            await call(who, "PUT", "user?name=alice", 403, budgets=[])


async def listed(ask, where="") -> list[tuple[str, str | None, str | None]]:
    """Whose budgets all pages list, in their order."""
    found, cursor = [], ""
    while cursor is not None:
        page = await ask(f"/budgets?{where}{f'&cursor={cursor}' if cursor else ''}")
        found += [(one["scope"], one["tenant"], one["name"]) for one in page["budgets"]]
        cursor = page["cursor"]
    return found


async def test_all_stored_budgets_are_listed_page_by_page(redis_url):
    async with open_gateway(redis_url) as (api, _), AsyncClient(redis_url) as client:
        names = {f"tenant-{number}" for number in range(600)}
        for name in names:
            await client.budgets("tenant", name).set([Budget(cost=1)])
        await client.budgets("tenant", None).set([Budget(cost=1), Budget(tokens=5, per="session")])
        await client.budgets("agent", "clerk").set([Budget(cost=1, per="turn")])
        await client.budgets("user", "ann").set([Budget(cost=1)])
        await client.budgets("session", "s").set([Budget(cost=1, per="session")])
        first = await api.get("/budgets")
        assert 0 < len(first["budgets"]) < 200
        assert first["cursor"].startswith("tenant:")
        found = await listed(api.get)
        assert {one for one in found if one[0] == "tenant"} == {
            ("tenant", None, name) for name in (*names, None)
        }
        assert found[-3:] == [("agent", None, "clerk"), ("user", None, "ann"), ("session", None, "s")]
        assert await listed(api.get, "scope=agent") == [("agent", None, "clerk")]
        (one,) = (await api.get("/budgets?scope=agent"))["budgets"]
        assert one["state"]["budget"] == {"cost": 1.0, "per": "turn"}


async def test_a_key_of_a_tenant_lists_its_budgets_and_those_of_its_users(redis_url):
    known, secrets = keys(
        acme={"tenant": "acme", "rights": EVERYTHING}, all={"tenant": "*", "rights": EVERYTHING},
        some={"tenant": "acme", "sessions": ["own-*"], "rights": EVERYTHING},
    )  # fmt: skip
    async with open_gateway(redis_url, access=Access(known)) as (api, _), AsyncClient(redis_url) as client:

        def asks(who, status=200):
            return lambda path: api.get(path, status, headers={"authorization": f"Bearer {secrets[who]}"})

        for tenant, users in {"acme": ("ann", "b*b"), "acm*": ("eve",), "*": ("eve",)}.items():
            await client.budgets("tenant", tenant).set([Budget(cost=1)])
            for user in users:
                await client.budgets("user", user, tenant=tenant).set([Budget(cost=1)])
        await client.budgets("user", "ann").set([Budget(cost=1)])
        await client.budgets("agent", "clerk").set([Budget(cost=1)])
        own = [("tenant", None, "acme"), ("user", "acme", "ann"), ("user", "acme", "b*b")]
        assert await listed(asks("acme")) == own
        assert await listed(asks("all"), "tenant=acme") == own
        assert await listed(asks("all"), "tenant=acm*") == [("tenant", None, "acm*"), ("user", "acm*", "eve")]
        assert len(await listed(asks("all"))) == 9
        await asks("acme", 403)("/budgets?tenant=acm*")
        await asks("acme", 403)("/budgets?scope=agent")
        await asks("some", 403)("/budgets")
        await asks("all", 400)("/budgets?cursor=tenant:x")
        await asks("all", 400)("/budgets?scope=everyone")
