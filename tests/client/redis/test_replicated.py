"""With ``durability=replicated``, a failover loses nothing that was accepted (G25)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest
from redis import Redis
from redis.exceptions import RedisError
from support.ensemble import Ensemble, open_ensemble
from support.eventually import wait_until, wait_until_async
from support.proxy import Proxy
from support.servers import Kind, RedisServer, Sentinel

from antiphon.client import AsyncClient
from antiphon.errors import NotReplicated, SettingsError, StoreError
from antiphon.redis.cells import open_cells
from antiphon.redis.turn import AsyncTurn
from antiphon.wire.cell import Cell
from antiphon.wire.connection.open import open_redis, redact
from antiphon.wire.connection.replicated import ReplicatedLine
from antiphon.wire.keys import Keys

AT_A_TIME = 20  # turns that are submitted side by side
AT_ONCE = {"repl-diskless-sync-delay": "0"}
REPLICATED = "?durability=replicated"
KEYS = Keys()


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """A replica that says nothing is noticed in 0.4 s, a server in one."""
    monkeypatch.setitem(open_redis.__kwdefaults__, "timeout_seconds", 1.0)


@pytest.fixture
def patient(impatient, monkeypatch):
    """A busy machine may take its time: nothing here is expected to time out."""
    monkeypatch.setitem(open_redis.__kwdefaults__, "timeout_seconds", 20.0)


class Pair:
    """A primary and its replica, which is connected through a proxy."""

    def __init__(self, primary: RedisServer, link: Proxy, replica: RedisServer) -> None:
        self.primary, self.link, self.replica = primary, link, replica

    def fail(self) -> None:
        """The primary is gone; what is on the way to the replica is lost."""
        self.primary.kill()
        self.link.refuse()


@contextlib.contextmanager
def pair(kind: Kind) -> Iterator[Pair]:
    with (
        RedisServer(kind, config=AT_ONCE) as primary,
        Proxy(primary.port) as link,
        RedisServer(kind, replica_of=link, config=AT_ONCE) as replica,
    ):
        wait_until(lambda: replicas_of(primary) == 1, 20, "the replica is connected")
        yield Pair(primary, link, replica)


@contextlib.contextmanager
def watched(kind: Kind) -> Iterator[tuple[Pair, Sentinel]]:
    """The same, and a Sentinel that knows both."""
    with pair(kind) as servers, Sentinel(servers.primary, down_after_ms=600) as sentinel:
        with Redis.from_url(f"redis://127.0.0.1:{sentinel.port}") as watch:
            known = lambda: len(watch.execute_command("SENTINEL", "replicas", sentinel.master_name)) == 1  # noqa: E731
            wait_until(known, 30, "the Sentinel knows the replica")
        yield servers, sentinel


def replicas_of(server: RedisServer) -> int:
    """How many replicas confirm a write."""
    with Redis.from_url(server.url) as redis:
        redis.set("probe", "", px=1)
        return redis.wait(1, 100)


def is_primary(server: RedisServer) -> bool:
    try:
        with Redis.from_url(server.url, socket_timeout=1) as redis:
            return redis.info("replication")["role"] == "master"
    except RedisError:
        return False


class Load:
    """Clients that submit one turn after the other, and what was answered."""

    def __init__(self, client: AsyncClient) -> None:
        self.accepted: list[str] = []
        self.refused: list[StoreError] = []
        self._client = client

    async def submit(self, caller: int) -> None:
        for number in count():
            try:
                turn = await self._client.submit(f"s{caller}-{number}", "Hi", agent="a")
            except StoreError as exc:
                self.refused.append(exc)
            else:
                self.accepted.append(turn.id)


@contextlib.asynccontextmanager
async def load(client: AsyncClient) -> AsyncIterator[Load]:
    found = Load(client)
    running = [asyncio.create_task(found.submit(number)) for number in range(AT_A_TIME)]
    try:
        await wait_until_async(lambda: len(found.accepted) >= 100, 20, "the load is there")
        yield found
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def missing(server: RedisServer, turns: list[str]) -> list[str]:
    with Redis.from_url(server.url) as redis:
        return [turn for turn in turns if not redis.exists(KEYS.turn(turn))]


async def promoted(servers: Pair) -> None:
    await wait_until_async(lambda: is_primary(servers.replica), 30, "the replica is the primary")


@pytest.mark.main_path
@pytest.mark.parametrize("link", ["slow", "cut off"])
async def test_a_failover_loses_no_accepted_turn(link, server_kind):
    with watched(server_kind) as (servers, sentinel):
        async with AsyncClient(sentinel.url + REPLICATED) as client:
            async with load(client) as found:
                if link == "slow":
                    servers.link.delay(0.03)
                    before = len(found.accepted)
                    await wait_until_async(lambda: len(found.accepted) > before + 40, 20, "it is slow")
                else:
                    servers.link.blackhole()
                    await wait_until_async(lambda: found.refused, 20, "a turn is refused")
                servers.fail()
                await promoted(servers)
            assert missing(servers.replica, found.accepted) == []
            with RedisServer(server_kind, replica_of=servers.replica, config=AT_ONCE) as next_one:
                wait_until(lambda: replicas_of(servers.replica) == 1, 20, "another replica is connected")
                again = await wait_until_async(
                    lambda: submitted(client, key="last"), 20, "a turn is accepted"
                )
                assert missing(next_one, [again.id]) == []


async def submitted(client: AsyncClient, key: str) -> AsyncTurn | None:
    """The turn with this key, if it is accepted now."""
    with contextlib.suppress(StoreError):
        return await client.submit("s0", "Hi", agent="a", key=key)
    return None


async def test_without_it_a_failover_loses_what_the_replica_does_not_have(server_kind):
    with watched(server_kind) as (servers, sentinel):
        async with AsyncClient(sentinel.url) as client, load(client) as found:
            servers.link.blackhole()
            before = len(found.accepted)
            await wait_until_async(  # the replica may have those that were on their way
                lambda: len(found.accepted) >= before + AT_A_TIME + 40, 20, "turns are accepted"
            )
            servers.fail()
            await promoted(servers)
        assert len(missing(servers.replica, found.accepted)) >= 40


@pytest.mark.main_path
async def test_a_failover_loses_no_finished_step(server_kind, tmp_path, monkeypatch):
    steps, ended = recorded(monkeypatch)
    with watched(server_kind) as (servers, sentinel):
        async with (
            open_ensemble(sentinel.url + REPLICATED, tmp_path / "stage") as ensemble,
            ensemble.worker(lease=2),
        ):
            sessions = [f"s{number}" for number in range(6)]
            over = asyncio.Event()
            talking = [asyncio.create_task(talk(ensemble, name, over)) for name in sessions]
            await wait_until_async(lambda: len(ended) >= 12, 60, "turns have ended")
            servers.link.delay(0.03)
            before = len(ended)
            await wait_until_async(lambda: len(ended) >= before + 6, 60, "it is slow")
            servers.fail()
            known, finished = dict(steps), list(ended)
            await promoted(servers)
            with Redis.from_url(servers.replica.url, decode_responses=True) as redis:
                assert {redis.hget(KEYS.turn(turn), "status") for turn in finished} == {"finished"}
                for turn, length in known.items():
                    assert redis.hget(KEYS.turn(turn), "status") == "finished" or (
                        redis.llen(KEYS.journal(turn)) >= length
                    )
            with RedisServer(server_kind, replica_of=servers.replica, config=AT_ONCE):
                before = len(ended)
                await wait_until_async(lambda: len(ended) >= before + 6, 60, "the workers continue")
                over.set()
                await asyncio.gather(*talking)
                await ensemble.whole(*sessions)


async def talk(ensemble: Ensemble, session: str, over: asyncio.Event) -> None:
    while not over.is_set():
        with contextlib.suppress(StoreError):
            turn = await ensemble.submit(session, "Hi tool:note words:3")
            await turn.result(60)


def recorded(monkeypatch) -> tuple[dict[str, int], list[str]]:
    """How many entries the journal of each turn has, and which turns have ended, as their worker was told."""
    steps: dict[str, int] = {}
    ended: list[str] = []
    append_step, finish = Cell.append_step, Cell.finish

    async def append(cell, turn, *, length, entries, **more):
        answer = await append_step(cell, turn, length=length, entries=entries, **more)
        steps[turn.turn_id] = length + len(entries)
        return answer

    async def end(cell, turn, status, **more):
        held = await finish(cell, turn, status, **more)
        if held:
            ended.append(turn.turn_id)
        return held

    monkeypatch.setattr(Cell, "append_step", append)
    monkeypatch.setattr(Cell, "finish", end)
    return steps, ended


async def test_without_a_replica_nothing_is_accepted_and_the_same_key_is_safe(server_kind):
    with pair(server_kind) as servers:
        url = servers.primary.url + REPLICATED
        async with AsyncClient(url) as client, AsyncClient(url) as other:
            servers.link.blackhole()
            with pytest.raises(NotReplicated) as refused:
                await client.submit("s", "Hi", agent="a", key="k")
            assert str(refused.value) == (
                "Redis has done this, but no replica has confirmed the write within 0.4 s: a failover may lose it. "
                "Check the replicas of this Redis and repeat the call, with the same key= if it submits a turn."
            )
            assert (refused.value.code, refused.value.retryable) == ("not_replicated", True)
            with pytest.raises(
                NotReplicated
            ):  # it wrote nothing itself: the turn is there, on the primary only
                await other.submit("s", "Hi", agent="a", key="k")
            assert await client.session("s").messages() == [], "readers do not wait"
            servers.link.heal()
            turn = await other.submit("s", "Hi", agent="a", key="k")
            assert missing(servers.replica, [turn.id]) == []
            assert [found.id async for found in client.turns("s")] == [turn.id]


async def test_turns_that_are_submitted_together_share_their_confirmation(server_kind, patient):
    with pair(server_kind) as servers:
        async with AsyncClient(servers.primary.url + REPLICATED) as client:
            await client.submit("s", "Hi", agent="a")
            before = waits(servers.primary)
            turns = [client.submit(f"s{number}", "Hi", agent="a") for number in range(100)]
            await asyncio.gather(*turns)
            assert waits(servers.primary) - before <= 5
            before = waits(servers.primary)
            await client.session("s").messages()
            assert waits(servers.primary) == before


def waits(server: RedisServer) -> int:
    with Redis.from_url(server.url) as redis:
        return redis.info("commandstats")["cmdstat_wait"]["calls"]


async def test_a_call_that_is_cancelled_leaves_the_others_alone(server_kind, patient):
    with pair(server_kind) as servers:
        async with AsyncClient(servers.primary.url + REPLICATED) as client:
            servers.link.delay(0.05)
            one, two = (asyncio.create_task(client.submit(name, "Hi", agent="a")) for name in ("a", "b"))
            await asyncio.sleep(0)
            one.cancel()
            assert (await two).id
            assert one.cancelled()


async def test_a_primary_that_becomes_a_replica_confirms_nothing(server_kind):
    """The call is sent again, as after every loss, and reaches whatever is the primary by then."""
    with pair(server_kind) as servers:
        async with AsyncClient(servers.primary.url + REPLICATED, retries=0) as client:
            servers.link.blackhole()
            submitting = asyncio.create_task(client.submit("s", "Hi", agent="a"))
            await wait_until_async(lambda: waiting(servers.primary), 5, "it waits for the replica")
            with Redis.from_url(servers.primary.url) as redis:
                redis.replicaof("127.0.0.1", servers.replica.port)
            with pytest.raises(StoreError) as refused:
                await submitting
            assert not isinstance(refused.value, NotReplicated)


def waiting(server: RedisServer) -> bool:
    with Redis.from_url(server.url) as redis:
        return redis.info("clients")["blocked_clients"] == 1


@pytest.mark.one_server
def test_without_it_there_is_no_further_connection():
    assert open_redis("redis://h:1").replicated is None
    assert isinstance(open_redis("redis://h:1?durability=replicated").replicated, ReplicatedLine)
    assert isinstance(open_redis("redis://h:1?db=2", durability="replicated").replicated, ReplicatedLine)
    [cell] = open_cells("redis+cluster://h:1?cells=4&durability=replicated&cell=0")
    assert isinstance(cell.redis.replicated, ReplicatedLine)


@pytest.mark.one_server
def test_only_a_known_durability_is_accepted():
    with pytest.raises(
        SettingsError, match=r"durability= of a client or of a Redis URL must be 'replicated', not 'x'"
    ):
        open_redis("redis://h:1?durability=x")
    with pytest.raises(SettingsError, match="must be 'replicated', not 'fsync'"):
        AsyncClient("redis://h:1", durability="fsync")
    assert redact("redis://h:1?durability=replicated") == "redis://h:1?durability=replicated"
