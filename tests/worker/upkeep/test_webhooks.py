"""Webhooks: every end is told, signed, until it is acknowledged; then no more, whoever dies meanwhile."""

import asyncio
import json
import logging
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from redis.asyncio import Redis
from standardwebhooks import Webhook
from support.cells import START_MS, open_cell
from support.eventually import wait_until, wait_until_async
from support.here import running_worker
from support.proxy import Proxy
from support.receiver import Receiver

from antiphon.client import AsyncClient
from antiphon.input.request import AgentSpec
from antiphon.redis import webhooks
from antiphon.wire.lists.webhooks import release_webhook, settle, stored_webhooks, take_webhook
from antiphon_worker import webhooks as module
from antiphon_worker.deliveries import GIVEN_UP_SECONDS, seconds_until_next
from antiphon_worker.providers.http.addresses import is_public
from antiphon_worker.webhooks import Deliverer

AGENT = AgentSpec(provider="scripted", model="m")
pytestmark = pytest.mark.lasting_keys("ant:webhook*", "ant:deliveries:*", "ant:dispatched")


@pytest.fixture
def receiver():
    with Receiver() as one:
        yield one


@asynccontextmanager
async def delivering(cell):
    """A deliverer, and one round of it: all that is due is delivered."""
    one = Deliverer(cell)

    async def round_of_deliveries():
        await one._take_all()
        await asyncio.gather(*one._tasks)

    try:
        yield round_of_deliveries
    finally:
        one._stopping = True
        await one._leave()


async def ended(cell, *turns, status="finished", **options):
    for turn in turns:
        await cell.end(await cell.started(turn, f"s-{turn}", **options), status)


async def webhook(client, receiver, name="hook", **options):
    return await client.webhooks(tenant=options.pop("tenant", None)).set(
        name, receiver.url, private=True, **options
    )


async def shown(client, name="hook"):
    return next(one for one in [one async for one in client.webhooks()] if one.name == name)


async def test_a_receiver_is_told_of_the_end_of_a_turn_and_can_check_who_says_so(client, redis_url, receiver):
    async with running_worker(redis_url):
        secret = await webhook(client, receiver)
        turn = await client.submit("s", "Hello", agent=AGENT, tenant="acme")
        await turn.result(20)
        await wait_until_async(lambda: len(receiver.received) == 1, 10)
        (told,) = receiver.received
        payload = Webhook(secret).verify(told.body, told.headers)
        assert (payload["type"], payload["data"]["turn_id"]) == ("turn_finished", turn.id)
        assert payload["data"]["response"]["text"] == "You said: Hello"
        assert payload["data"]["tenant"] == "acme"
        assert payload["timestamp"].endswith("Z")
        assert told.headers["webhook-id"] == f"{turn.id}-{payload['data']['seq']}"
        await wait_until_async(lambda: _delivered(client, 1), 10)
        assert (await shown(client)).error is None


async def _delivered(client, count):
    one = await shown(client)
    return (one.delivered, one.waiting) == (count, 0)


async def test_while_one_secret_replaces_another_both_sign(cell, receiver, client):
    async with delivering(cell) as deliver:
        old = await webhook(client, receiver)
        assert await webhook(client, receiver) == old, "it keeps its own"
        new = await client.webhooks().set("other", receiver.url, private=True)
        await client.webhooks().delete("other")
        await webhook(client, receiver, secret=[new, old])
        await ended(cell, "t1")
        await deliver()
        (told,) = receiver.received
        for secret in (old, new):
            assert Webhook(secret).verify(told.body, told.headers)["data"]["turn_id"] == "t1"


async def test_what_is_not_acknowledged_is_tried_again_and_what_is_stays_so(cell, receiver, client):
    async with delivering(cell) as deliver:
        await cell.set_clock(START_MS)
        await webhook(client, receiver)
        receiver.answers = [500, 404]
        await ended(cell, "t1")
        await deliver()
        await deliver()
        assert (len(receiver.received), (await shown(client)).error) == (1, "answered 500")
        await cell.wait(6_000)
        await deliver()
        assert (len(receiver.received), (await shown(client)).error) == (2, "answered 404")
        for _ in range(5):
            await cell.wait(20_000)
            await deliver()
        first, second, third = receiver.received
        assert first.body == second.body == third.body
        assert len({*receiver.ids}) == 1, "the receiver knows it again"
        one = await shown(client)
        assert (one.waiting, one.delivered, one.dropped, one.error) == (0, 1, 0, None)


async def test_a_delivery_waits_longer_each_time_and_is_given_up_after_a_day(redis_url, receiver):
    times, age = [], 0.0
    while age < GIVEN_UP_SECONDS:
        times.append(age)
        age += seconds_until_next(age)
    assert times[1] < 6
    assert 25 < len(times) < 50
    assert max(b - a for a, b in pairwise(times)) < 3600 * 1.1 + 1
    async with open_cell(redis_url) as cell, AsyncClient(redis_url) as client, delivering(cell) as deliver:
        await cell.set_clock(START_MS)
        await webhook(client, receiver)
        receiver.answers = [500, 500, 410]
        await ended(cell, "t1")
        await deliver()
        await cell.wait(int(GIVEN_UP_SECONDS * 1000))
        await deliver()
        assert ((await shown(client)).waiting, (await shown(client)).dropped) == (0, 1)
        await ended(cell, "t2")
        await deliver()
        assert (await shown(client)).dropped == 2, "410: the receiver wants it no more"


async def test_a_receiver_says_when_to_come_again(cell, receiver, client):
    async with delivering(cell) as deliver:
        await cell.set_clock(START_MS)
        await webhook(client, receiver)
        receiver.answers, receiver.headers = [429], {"retry-after": "120"}
        await ended(cell, "t1")
        await deliver()
        await cell.wait(60_000)
        await deliver()
        assert len(receiver.received) == 1
        await cell.wait(60_000)
        await deliver()
        assert len(receiver.received) == 2


async def test_several_deliverers_tell_each_end_once(receiver, cell, client):
    async with delivering(cell) as one, delivering(cell) as other, delivering(cell) as third:
        for name in ("a", "b", "c"):
            await webhook(client, receiver, name)
        turns = [f"t{n}" for n in range(120)]
        for turn in turns:
            await ended(cell, turn)
        for _ in range(4):
            await asyncio.gather(one(), other(), third())
        assert len(receiver.received) == 3 * len(turns)
        assert len({*receiver.ids}) == len(turns)


async def test_a_deliverer_that_is_killed_loses_nothing_and_what_it_had_heard_counts(cell, receiver, client):
    """It is killed with an acknowledgement in its hand, or before it has sent a thing."""
    async with delivering(cell) as deliver:
        await cell.set_clock(START_MS)
        await webhook(client, receiver)
        await ended(cell, "t1", "t2")
        taken, _ = await take_webhook(cell, 30_000, 2_000)
        assert [one.notice.turn_id for one in taken.deliveries] == ["t1", "t2"]
        await cell.wait(29_000)
        await deliver()
        assert receiver.received == [], "the other one may still be at it"
        await cell.wait(1_000)
        await deliver()
        assert receiver.received == [], "it is left alone for a moment"
        assert not await settle(cell, taken, taken.deliveries[0], "delivered"), "superseded, but acknowledged"
        assert not await settle(cell, taken, taken.deliveries[1], "later", 3600_000)
        await cell.wait(2_000)
        await deliver()
        assert [json.loads(one.body)["data"]["turn_id"] for one in receiver.received] == ["t2"]
        assert await _delivered(client, 2)


async def test_who_held_a_webhook_that_was_removed_does_not_hold_the_one_that_has_its_name_now(
    cell, receiver, client
):
    await cell.set_clock(START_MS)
    await webhook(client, receiver)
    await ended(cell, "t1")
    before, _ = await take_webhook(cell, 30_000, 2_000)
    await client.webhooks().delete("hook")
    await webhook(client, receiver)
    await ended(cell, "t2")
    now, _ = await take_webhook(cell, 30_000, 2_000)
    assert not await settle(cell, before, now.deliveries[0], "later", 3600_000)
    await release_webhook(cell, before)
    assert (await take_webhook(cell, 30_000, 2_000))[0] is None, "it is held still"
    assert await settle(cell, now, now.deliveries[0], "delivered")


async def test_what_is_acknowledged_while_redis_is_away_is_not_sent_again(redis_server, redis_url, receiver):
    with Proxy(redis_server.port) as way:
        async with (
            open_cell(way.url) as cut,
            open_cell(redis_url) as cell,
            AsyncClient(redis_url) as client,
            delivering(cut) as deliver,
        ):
            await cell.set_clock(START_MS)
            await webhook(client, receiver)
            await ended(cell, "t1")
            receiver.hold()
            sending = asyncio.create_task(deliver())
            await wait_until_async(lambda: len(receiver.received) == 1, 10)
            way.refuse()
            way.cut()
            receiver.release()
            await cell.wait(60_000)
            way.heal()
            await sending
            await wait_until_async(lambda: _delivered(client, 1), 10)
            await cell.wait(60_000)
            await deliver()
            assert len(receiver.received) == 1


async def test_a_receiver_that_hangs_holds_up_nobody(redis_url, receiver, monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT_SECONDS", 5.0)
    with Receiver() as quick:
        async with AsyncClient(redis_url) as client, running_worker(redis_url):
            receiver.hold()
            await webhook(client, receiver, "slow")
            await webhook(client, quick, "quick")
            for number in range(3):
                turn = await client.submit(f"s{number}", "Hello", agent=AGENT)
                await turn.result(20)
                await wait_until_async(lambda n=number: len(quick.received) == n + 1, 10)
            assert (await shown(client, "slow")).waiting == 3
            await wait_until_async(lambda: _error(client, "slow", "no answer within 5 s"), 20)
            receiver.release()


async def _error(client, name, error):
    return (await shown(client, name)).error == error


@pytest.mark.parametrize("steps", range(5))
async def test_it_stops_also_at_the_moment_when_a_delivery_ends(cell, steps):
    deliverer = Deliverer(cell)
    looks = asyncio.Queue()
    take_all = deliverer._take_all

    async def look():
        await take_all()
        looks.put_nowait(None)

    deliverer._take_all = look
    running = asyncio.create_task(deliverer.run())
    await looks.get()
    await asyncio.sleep(0)
    deliverer._again.set()
    for _ in range(steps):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running], timeout=5)
    assert running.cancelled()


async def test_a_redirect_is_not_followed(redis_url, receiver):
    with Receiver() as elsewhere:
        async with (
            open_cell(redis_url) as cell,
            AsyncClient(redis_url) as client,
            delivering(cell) as deliver,
        ):
            await webhook(client, receiver)
            receiver.answers, receiver.headers = [307], {"location": elsewhere.url}
            await ended(cell, "t1")
            await deliver()
            assert (await shown(client)).error == "answered 307"
            assert elsewhere.received == []


async def test_only_a_private_webhook_reaches_a_private_address(cell, receiver, client, monkeypatch):
    monkeypatch.setattr(
        webhooks, "_is_private", lambda host: False
    )  # as of a name that is private once it is resolved
    async with delivering(cell) as deliver:
        await client.webhooks().set("hook", f"https://localhost:{receiver.port}/")
        await client.webhooks().set("private", f"https://localhost:{receiver.port}/", private=True)
        await ended(cell, "t1")
        await deliver()
        assert (await shown(client)).error == "no connection: the host has no public address"
        assert (await shown(client, "private")).error == "no connection: ConnectError", "it speaks no TLS"


@pytest.mark.parametrize(
    ("address", "public"),
    [("8.8.8.8", True), ("2606:4700::1111", True), ("64:ff9b::808:808", True), ("127.0.0.1", False),
     ("10.1.2.3", False), ("169.254.169.254", False), ("100.64.0.1", False), ("0.0.0.0", False), ("224.0.0.1", False),
     ("::1", False), ("fe80::1%eth0", False), ("fd00::1", False), ("::ffff:10.0.0.1", False),
     ("64:ff9b::a00:1", False), ("2002:a00:1::", False), ("2002:808:808::", False), ("::ffff:8.8.8.8", True),
     ("64:ff9b:1::808:808", False), ("64:ff9b:1::a00:1", False), ("::ffff:0:808:808", False), ("::ffff:0:a00:1", False),
     ("::808:808", False), ("::a00:1", False), ("::", False), ("fec0::1", False), ("192.88.99.1", False),
     ("192.0.0.192", False), ("198.18.0.1", False), ("203.0.113.7", False), ("240.0.0.1", False),
     ("255.255.255.255", False), ("192.31.196.1", False), ("100::1", False), ("100:0:0:1::1", False),
     ("2001::1", False),
     ("2001:db8::1", False), ("2001:10::1", False), ("2001:20::1", False), ("3fff::1", False), ("5f00::1", False),
     ("ff0e::1", False), ("4000::1", False), ("2620:4f:8000::1", False), ("2001:470::5efe:a00:1", False),
     ("2001:470::200:5efe:7f00:1", False), ("2001:470::5efe:808:808", True), ("2a00:1450::1", True),
     ("168.63.129.16", False), ("fd00:ec2::254", False), ("172.15.255.255", True), ("172.16.0.0", False)],
)  # fmt: skip
def test_which_addresses_are_public(address, public):
    assert is_public(address) is public


async def test_a_webhook_is_told_what_it_asked_for_from_now_on(cell, receiver, client):
    async with delivering(cell) as deliver:
        await webhook(client, receiver, "all")
        await ended(cell, "before")
        with Receiver() as late, Receiver() as acme, Receiver() as smith:
            await webhook(client, late, "late", types=["turn_failed"])
            await webhook(client, acme, "acme", tenant="acme")
            await webhook(client, smith, "smith", agent="smith")
            await ended(cell, "t1", tenant="acme")
            await ended(cell, "t2", agent=b'"smith"')
            await ended(cell, "t3", agent=b'{"name":"smith","provider":"p","model":"m"}', status="failed")
            await ended(cell, "t4", agent=b'{"name":null,"provider":"p","model":"m"}')
            await deliver()

            def turns(one):
                return sorted(json.loads(told.body)["data"]["turn_id"] for told in one.received)

            assert turns(receiver) == ["before", "t1", "t2", "t3", "t4"]
            assert [turns(one) for one in (late, acme, smith)] == [["t3"], ["t1"], ["t2", "t3"]]
            told = [json.loads(one.body)["data"] for one in receiver.received]
            tenants = {one["turn_id"]: one.get("tenant") for one in told}
            assert (tenants["t1"], tenants["t2"]) == ("acme", None), (
                "one that hears all is told whose turn it is"
            )


async def test_ends_that_are_no_longer_kept_are_missed_with_an_error_in_the_log(
    cell, receiver, caplog, client
):
    async with delivering(cell) as deliver:
        await webhook(client, receiver)
        await ended(cell, "t1", "t2", "t3")
        await cell.redis.xtrim("ant:notices", maxlen=2, approximate=False)
        with caplog.at_level(logging.ERROR):
            await deliver()
            await deliver()
        assert [one.action for one in caplog.records] == ["webhooks_missed"]
        assert len(receiver.received) == 2


async def test_the_end_of_a_turn_that_is_gone_is_dropped(cell, receiver, client):
    async with delivering(cell) as deliver:
        await webhook(client, receiver)
        await ended(cell, "t1", "t2")
        await cell.redis.delete("ant:turn:t1", "ant:events:s-t1")
        await cell.redis.delete("ant:events:s-t2")
        await deliver()
        assert [json.loads(one.body)["type"] for one in receiver.received] == ["turn_finished"]
        assert ((await shown(client)).dropped, (await shown(client)).waiting) == (1, 0)


async def test_of_a_receiver_that_is_down_so_many_deliveries_are_kept(cell, redis_url, receiver, client):
    await webhook(client, receiver)
    async with Redis.from_url(redis_url) as redis:
        await redis.zadd("ant:deliveries:hook", {f"{n}": 9e15 for n in range(100_000)})
    await ended(cell, "t1")
    assert (await take_webhook(cell, 30_000, 0))[0] is None
    assert ((await shown(client)).dropped, (await shown(client)).waiting) == (1, 100_000)


async def test_without_webhooks_nothing_is_written_and_a_look_is_one_command(cell, client):
    await ended(cell, "t1")
    await take_webhook(cell, 30_000, 0)
    before = sum(one["calls"] for one in (await cell.redis.info("commandstats")).values())
    assert await take_webhook(cell, 30_000, 0) == (None, ("", False, False))
    after = sum(one["calls"] for one in (await cell.redis.info("commandstats")).values())
    assert after - before == 3, "INFO, the script, and one command in it"
    assert not await cell.redis.exists("ant:notices")
    await client.webhooks().set("hook", "https://example.com/")
    await client.webhooks().delete("hook")
    assert await stored_webhooks(cell) == []
    assert await cell.redis.keys("ant:*hook*") + await cell.redis.keys("ant:dispatched") == []


async def test_secrets_and_urls_are_in_no_log(cell, receiver, caplog, client):
    async with delivering(cell) as deliver:
        secret = await client.webhooks().set("hook", f"{receiver.url}?token=t0ken", private=True)
        receiver.answers = [500]
        await ended(cell, "t1")
        with caplog.at_level(logging.DEBUG):
            await deliver()
        assert "answered 500" in caplog.text
        assert secret not in caplog.text
        assert "t0ken" not in caplog.text
        assert secret not in repr(await shown(client))


@pytest.mark.one_server
def test_workers_that_are_killed_tell_every_end(redis_url, processes, receiver):
    from antiphon.client import Client

    with Client(redis_url) as client:
        client.webhooks().set("hook", receiver.url, private=True)
        turns = []
        for _ in range(2):
            workers = [processes.worker(redis_url) for _ in range(2)]
            for worker in workers:
                worker.wait_for_output("takes turns", 60)
            turns += [client.submit(f"s{len(turns)}-{n}", "Hello", agent=AGENT) for n in range(20)]
            list(client.results(turns))
            for worker in workers:
                worker.kill()
        processes.worker(redis_url)
        wait_until(
            lambda: {one.partition("-")[0] for one in receiver.ids} >= {turn.id for turn in turns}, 120
        )
        wait_until(lambda: [one.waiting for one in client.webhooks()] == [0], 120)
