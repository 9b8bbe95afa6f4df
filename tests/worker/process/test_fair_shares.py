"""What a tenant submits delays another tenant's turn by at most its fair share (G14), with real workers."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from redis.asyncio import Redis
from simulation.direct import DirectRedis
from support.here import running_worker
from support.processes import COMMAND

from antiphon.client import AsyncClient
from antiphon.input.ids import SessionId, new_turn_id
from antiphon.input.request import AgentSpec, TurnRequest, encode_request
from antiphon.model import Message
from antiphon.wire.cell import Cell
from antiphon.wire.records import NewTurn
from antiphon.wire.scripts import load_script

AGENT = AgentSpec(provider="scripted", model="any")
RQ = COMMAND.with_name("rq")
FLOOD = 10_000
AT_ONCE = 200


class Recorder:
    """In the place of a connection: keeps the calls of a cell, to send many at once."""

    connection_pool = SimpleNamespace(connection_kwargs={"db": 0})

    def __init__(self) -> None:
        self.commands: list[tuple[Any, ...]] = []

    async def execute_command(self, *arguments: Any, promises: bool = False) -> list[bytes]:
        self.commands.append(arguments)
        return [b"ACCEPTED", b"0"]


async def flood(url: str, tenant: str, number: int) -> None:
    """So many turns of a tenant, each of a session of its own."""
    recorder, request = Recorder(), encode_request(TurnRequest([Message.user("Hello")], agent=AGENT))
    cell = Cell(recorder)  # type: ignore[arg-type]
    for session in (SessionId(f"{tenant}-{n}") for n in range(number)):
        await cell.submit(NewTurn(session, new_turn_id(session), request, digest="", tenant=tenant))
    redis = DirectRedis(url, 20)
    redis.call("SCRIPT", "LOAD", load_script("submit").source)
    for start in range(0, number, AT_ONCE):
        redis.calls(recorder.commands[start : start + AT_ONCE])
    redis.close()


async def claimed_before(redis: Redis, turn) -> int:
    """How many turns were claimed before this one: fences are counted."""
    return int((await redis.hget(f"ant:turn:{turn.id}", "execution")).split(b"-")[0]) - 1


@pytest.mark.one_server
async def test_ten_thousand_turns_of_a_tenant_delay_a_turn_of_another_by_one(redis_url):
    async with Redis.from_url(redis_url) as redis, AsyncClient(redis_url) as client:
        await flood(redis_url, "many", FLOOD)
        first = await client.submit("first", "Hello", agent=AGENT, tenant="few")
        async with running_worker(redis_url, concurrency=2):
            await first.result(20)
            assert await claimed_before(redis, first) <= 1
            for number in range(3):
                turn = await client.submit(f"while-it-works-{number}", "Hello", agent=AGENT, tenant="few")
                claimed = int(await redis.get("ant:fence"))
                await turn.result(20)
                assert await claimed_before(redis, turn) - claimed <= 1
        assert await redis.zcard("ant:line:antiphon:@many") > FLOOD / 2, "they have waited"
        await redis.flushdb()


async def test_every_tenant_has_its_turn_and_none_is_forgotten(redis_url):
    number, tenants = 6, ["a", "b", "c"]
    async with Redis.from_url(redis_url) as redis, AsyncClient(redis_url) as client:
        await client.set_tenant_limits("c", in_flight=1)
        for tenant in tenants:
            await flood(redis_url, tenant, number)
        async with running_worker(redis_url, concurrency=4), running_worker(redis_url, concurrency=4):
            for tenant in tenants:
                for n in range(number):
                    async for turn in client.turns(f"{tenant}-{n}"):
                        await turn.result(20)
        assert not await redis.keys("ant:line:*") + await redis.keys("ant:share:*")


@pytest.mark.one_server
async def test_a_stock_worker_lets_the_turns_in_line_in(redis_url, processes):
    async with Redis.from_url(redis_url) as redis, AsyncClient(redis_url) as client:
        await client.set_tenant_limits(None, in_flight=1)
        await flood(redis_url, "a", 2)
        assert await redis.llen("rq:queue:antiphon") == 1
        worker = processes.start(RQ, "worker", "-u", redis_url, "--serializer", "json", "--burst", "antiphon")
        await asyncio.to_thread(worker.wait, 60)
        for session in ("a-0", "a-1"):
            assert [await turn.status() async for turn in client.turns(session)] == ["finished"]
