"""A key or token with a user: all its turns are of this user, whatever interface it uses, and no other."""

import time

import jwt
import pytest
from redis import Redis
from support.gateway import keys, open_gateway
from support.openai_clients import calling

from antiphon import Agent, AsyncClient
from antiphon.errors import SettingsError
from antiphon.model import Budget
from antiphon_gateway import Access
from antiphon_gateway.access.caller import Key, Keys
from antiphon_gateway.access.tokens import JwtSettings

pytestmark = [pytest.mark.one_server, pytest.mark.lasting_keys("ant:schedule*", "ant:budgets:*")]

MODEL = "scripted/any"
AGENT = Agent(provider="scripted", model="any", name="clerk")
SAID = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "Hello"}]}
RUN = {
    "threadId": "t", "runId": "r", "state": {}, "tools": [], "context": [],
    "messages": [{"id": "m", "role": "user", "content": "Hello"}],
}  # fmt: skip
TURN = {"input": "Hello", "agent": "clerk"}
SECRET = "a secret that every replica has, 32 bytes"


def shop():
    known, secrets = keys(shop={"tenant": "acme", "rights": ["read", "write", "admin"], "user": "shop"})
    return {"access": Access(known), "key": secrets["shop"]}


def users(redis_url):
    with Redis.from_url(redis_url) as redis:
        return [redis.hget(key, "user") for key in redis.keys("ant:turn:*")]


async def ask(api, named):
    """Submit a turn by each interface, with these further fields."""
    found = [
        await api.http.post("/sessions/s/turns", json=TURN | named),
        await api.http.post("/sessions/s/regenerate", json={"agent": "clerk"} | named),
        await api.http.post("/chat", json={"id": "c", "agent": "clerk", "messages": [SAID]} | named),
        await api.http.post(
            "/chat", json={"id": "c", "agent": "clerk", "trigger": "regenerate-message"} | named
        ),
        await api.http.post("/ag-ui/clerk", json=RUN | ({"forwardedProps": named} if named else {})),
        await api.http.post("/v1/responses", json={"model": MODEL, "input": "Hello"} | named),
        await api.http.post(
            "/v1/chat/completions",
            json={"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]} | named,
        ),
        await api.http.put("/sessions/s/schedules/daily", json=TURN | {"every": 3600} | named),
    ]
    return [answer.status_code for answer in found]


@pytest.mark.parametrize("named", [{}, {"user": "shop"}])
async def test_all_turns_of_a_key_are_of_its_user(redis_url, named):
    async with (
        calling(redis_url, lambda _: "Hi", [AGENT], **shop()) as (api, _),
        AsyncClient(redis_url) as own,
    ):
        turn = (await api.post("/sessions/s/turns", TURN, 202))["turn_id"]
        await api.result(turn)
        assert await ask(api, named) == [202, 202, 200, 200, 200, 200, 200, 204]
        assert len(found := users(redis_url)) >= 8
        assert {*found} == {b"shop"}
        assert [one.user async for one in own.schedules()] == ["shop"]


async def test_a_key_with_a_user_may_name_no_other(redis_url):
    async with calling(redis_url, lambda _: "Hi", [AGENT], **shop()) as (api, _):
        assert {*await ask(api, {"user": "ann"})} == {403}
        assert users(redis_url) == []


async def test_the_budget_of_the_user_is_that_of_the_key(redis_url):
    async with AsyncClient(redis_url) as own:
        await own.budgets("user", "shop", tenant="acme").set([Budget(tokens=1, per="day")])
        async with calling(redis_url, lambda _: "Hi", [AGENT], **shop()) as (api, _):
            first = (await api.post("/sessions/s/turns", TURN, 202))["turn_id"]
            assert (await api.result(first))["status"] == "finished"
            second = (await api.post("/sessions/s/turns", TURN, 202))["turn_id"]
            assert (await api.result(second))["error"]["code"] == "budget_reached"


async def test_a_token_may_have_a_user(redis_url):
    def bearer(**claims):
        made = jwt.encode(
            {"tenant": "a", "exp": time.time() + 60, "rights": "write", **claims}, SECRET, "HS256"
        )
        return {"authorization": f"Bearer {made}"}

    access = Access(jwt=JwtSettings(secret=SECRET))
    async with open_gateway(redis_url, access=access) as (api, _):
        for claims, status in (({"user": "ann"}, 202), ({"user": ""}, 401), ({"user": 7}, 401)):
            await api.call("POST", "/sessions/s/turns", status, json=TURN, headers=bearer(**claims))
        assert users(redis_url) == [b"ann"]
        with Redis.from_url(redis_url) as redis:
            redis.flushdb()


def test_a_user_in_the_file_of_keys_must_be_one():
    with pytest.raises(SettingsError, match="shop"):
        Keys({"shop": Key(hash="0" * 64, tenant="acme", user="")})
