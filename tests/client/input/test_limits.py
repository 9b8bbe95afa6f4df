"""Every limit answers with its name; what is within it goes through. The worker holds turns to them again."""

import hashlib
import re
from pathlib import Path

import pytest
from redis.asyncio import Redis
from support.here import running_worker

from antiphon import Agent
from antiphon.client import AsyncClient
from antiphon.errors import LimitReached, TurnFailed
from antiphon.input.limits import LIMITS, check_depth, check_size, table
from antiphon.input.messages import to_input
from antiphon.input.request import AgentSpec, OutputSpec, TurnRequest, check_request, encode_request
from antiphon.model import Item, Message
from antiphon.session.opening import opening_of
from antiphon.tools import Context
from antiphon.wire.records import NewTurn
from antiphon_worker.loop.steps import plain_variables

ROOT = Path(__file__).parent.parent.parent.parent
AGENT = AgentSpec(provider="scripted", model="any")


def deep(levels):
    value = 1
    for _ in range(levels):
        value = {"a": value} if levels % 2 else [value]
    return value


OVER = {
    "request_bytes": lambda n: encode_request(TurnRequest(to_input("x" * n))),
    "system_bytes": lambda n: encode_request(TurnRequest(to_input("x"), AgentSpec("p", "m", system="x" * n))),
    "params_bytes": lambda n: encode_request(TurnRequest(to_input("x"), params={"a": "x" * n})),
    "metadata_bytes": lambda n: encode_request(TurnRequest(to_input("x"), metadata={"a": "x" * n})),
    "variables_bytes": lambda n: opening_of(variables={"a": "x" * n}),
    "opening_messages": lambda n: opening_of(messages=[Message.user("x")] * n),
    "opening_bytes": lambda n: opening_of(messages=[Message.user("x" * n)]),
    "max_steps": lambda n: encode_request(TurnRequest(to_input("x"), AgentSpec("p", "m", max_steps=n))),
    "custom_bytes": lambda n: Context().emit("mine", "x" * n),
    "json_depth": lambda n: encode_request(TurnRequest(to_input("x"), params={"a": deep(n)})),
}


@pytest.mark.parametrize("name", OVER)
def test_what_is_over_a_limit_is_refused_with_its_name(name):
    with pytest.raises(LimitReached, match=str(getattr(LIMITS, name))) as refused:
        OVER[name](getattr(LIMITS, name) + 1)
    assert refused.value.limit == name
    assert name in str(refused.value)


@pytest.mark.parametrize("name", OVER)
def test_what_is_within_a_limit_goes_through(name):
    OVER[name](getattr(LIMITS, name) // 2)


@pytest.mark.parametrize(
    "request_",
    [
        TurnRequest(to_input("x"), metadata={"a": deep(400)}),
        TurnRequest(to_input("x"), AgentSpec("p", "m", params={"a": deep(400)})),
        TurnRequest(to_input("x"), output=OutputSpec("o", {"a": deep(400)})),
        TurnRequest([Message("user", [Item("p", {"a": deep(400)})])]),
    ],
    ids=["metadata", "agent", "output", "item"],
)  # fmt: skip
def test_depth_is_limited_wherever_json_comes_in(request_):
    with pytest.raises(LimitReached):
        check_request(request_, 1)


def test_sessions_and_tools_are_held_to_the_same_limits():
    session = Agent("scripted", "any").session()
    for call in (
        lambda: session.run("x", metadata={"a": "x" * LIMITS.metadata_bytes}),
        lambda: Agent("scripted", "any", script=["x" * LIMITS.params_bytes]),
        lambda: Agent("scripted", "any").session(system="x" * (LIMITS.system_bytes + 1)),
        lambda: plain_variables({"a": "x" * LIMITS.variables_bytes}),
    ):
        with pytest.raises(LimitReached):
            call()


def test_depth_is_counted_without_recursion():
    value = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(LimitReached):
        check_depth(value, "It")
    check_depth({"a": [1, {"b": 2}]}, "It")
    check_size("max_steps", LIMITS.max_steps, "It")


@pytest.mark.parametrize(
    ("request_", "code", "limit"),
    [
        (
            TurnRequest(to_input("x"), AgentSpec("scripted", "any", params={"script": ["a"] * 1001})),
            "limit_reached", "script_answers",
        ),
        (
            TurnRequest(to_input("x"), AgentSpec("scripted", "any", params={"delay": 61})),
            "limit_reached", "script_delay",
        ),
        (TurnRequest(to_input("x"), AgentSpec("scripted", "any", max_steps=10**9)), "limit_reached", "max_steps"),
        (
            TurnRequest(to_input("x"), AgentSpec("scripted", "any", system="x" * 300_000)),
            "limit_reached", "system_bytes",
        ),
        (TurnRequest(to_input("x"), AGENT, params={"delay": 50}, timeout=1e6), "turn_timed_out", None),
    ],
    ids=["script", "delay", "steps", "system", "timeout"],
)  # fmt: skip
@pytest.mark.one_server
async def test_a_worker_holds_turns_to_the_limits_that_came_around_the_client(
    request_, code, limit, redis_url
):
    payload = request_.to_json()
    async with AsyncClient(redis_url) as client, running_worker(redis_url, turn_timeout=0.5):
        digest = hashlib.sha256(payload).hexdigest()
        await client.connections.cell_of_session("s").submit(NewTurn("s", "raw", payload, digest=digest))
        with pytest.raises((LimitReached, TurnFailed)) as failed:
            await (await client.turn("raw")).result(60)
        assert (failed.value.code, getattr(failed.value, "limit", None)) == (code, limit)
        assert (await (await client.submit("s", "after", agent=AGENT)).result(60)).text


def test_the_message_of_a_limit_holds_its_name_and_gives_it_back():
    for error in (
        LimitReached("Too much of it.", limit="of_an_app"),
        LimitReached("It: 3 is over the limit of_an_app, which is 2. Do less.", limit="of_an_app"),
    ):
        assert LimitReached(error.message).limit == error.limit == "of_an_app"
        assert error.message.count("of_an_app") == 1
    assert LimitReached("The time limit has passed.").limit == ""
    assert LimitReached().message == LimitReached(limit="").message


@pytest.mark.one_server
async def test_one_redis_holds_so_many_delayed_turns(redis_url):
    async with Redis.from_url(redis_url) as redis, AsyncClient(redis_url) as client:
        await redis.zadd("ant:due", {str(n): 4e12 for n in range(LIMITS.delayed_turns)})
        with pytest.raises(LimitReached) as refused:
            await client.submit("s", "later", agent=AGENT, delay=60)
        assert refused.value.limit == "delayed_turns"
        assert not await redis.exists("ant:session:s")
        await client.submit("s", "now", agent=AGENT)
        await redis.flushdb()


@pytest.mark.one_server
async def test_a_large_message_costs_redis_less_than_three_times_its_size(redis_url):
    """The turn and the history hold it; the job, the inbox and the events name it."""
    size = 2 * 1024 * 1024
    async with Redis.from_url(redis_url) as redis, AsyncClient(redis_url) as client:
        before = (await redis.info("memory"))["used_memory_dataset"]
        agent = AgentSpec(provider="scripted", model="any", params={"script": ["short"]})
        async with running_worker(redis_url):
            turn = await client.submit("s", "x" * size, agent=agent)
            await turn.result(60)
        keys = [key async for key in redis.scan_iter()]
        held = sum([await redis.memory_usage(key, samples=0) or 0 for key in keys])
        assert 1 < held / size < 2.5, f"{held / size:.1f}, dataset before {before}"


def test_the_table_of_the_documents_is_that_of_the_code():
    page = (ROOT / "docs/security.md").read_text()
    found = re.findall(r"^\| `(\w+)` \| ([\d,]+) \| (.+) \|$", page, re.MULTILINE)
    assert found == [(name, f"{value:,}", doc) for name, value, doc in table()]
