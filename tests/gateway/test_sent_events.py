"""`POST /events/{name}`: programs send events to the waiting turns of their tenant."""

import pytest
from support.gateway import keys, open_gateway
from support.waiting import waiting_turn

from antiphon import AsyncClient
from antiphon_gateway import Access

pytestmark = [pytest.mark.one_server, pytest.mark.lasting_keys("ant:*")]


async def test_an_event_reaches_the_turns_that_wait_for_it_once(redis_url):
    async with AsyncClient(redis_url) as client, open_gateway(redis_url) as (api, _):
        turn = await waiting_turn(client, "s")
        assert await api.post("/events/paid", {"data": {"amount": 30}, "key": "evt_1"}) == {"turns": 1}
        assert (await api.get(f"/turns/{turn}"))["status"] == "queued"
        assert await api.post("/events/paid", {"data": {"amount": 30}, "key": "evt_1"}) == {"turns": 1}
        assert await api.post("/events/paid", {}) == {"turns": 0}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/events/two%20words", {}),
        ("/events/paid", {"key": ""}),
        ("/events/paid", {"key": 7}),
        ("/events/paid", {"date": 7}),
    ],
)
async def test_what_cannot_be_sent_is_refused(redis_url, path, body):
    async with open_gateway(redis_url) as (api, _):
        await api.post(path, body, 400)


async def test_too_much_data_is_refused(redis_url):
    async with open_gateway(redis_url) as (api, _):
        refusal = await api.post("/events/paid", {"data": "x" * 70_000}, 413)
        assert refusal["code"] == "limit_reached"


async def test_a_key_sends_events_to_its_tenant_alone_and_needs_the_right(redis_url):
    send = {"rights": ["send"]}
    known, secrets = keys(
        a={"tenant": "a", **send}, b={"tenant": "b", **send}, few={"tenant": "a"},
        part={"tenant": "a", "sessions": ["own-*"], **send}, root={"tenant": "*", **send},
    )  # fmt: skip
    async with AsyncClient(redis_url) as client, open_gateway(redis_url, access=Access(known)) as (api, _):

        async def post(who, status, **body):
            headers = {"authorization": f"Bearer {secrets[who]}"}
            return await api.call("POST", "/events/paid", status, json=body, headers=headers)

        for session, tenant in (("of-a", "a"), ("of-b", "b"), ("of-none", None)):
            await waiting_turn(client, session, tenant)
        await post("few", 403)
        await post("part", 403)
        await post("a", 403, tenant="b")
        assert await post("a", 200) == {"turns": 1}
        assert await post("a", 200, key="again") == {"turns": 0}
        assert await post("root", 200, tenant="b") == {"turns": 1}
        assert await post("root", 200) == {"turns": 1}
