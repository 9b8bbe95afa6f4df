"""Keys that are missing, wrong or replaced, and sealed values that were changed or moved."""

import base64
import re

import pytest
from redis import Redis
from support.archives import OwnStore
from support.eventually import wait_until_async
from support.here import running_worker

from antiphon import Agent
from antiphon.client import AsyncClient
from antiphon.encryption import KEYS_VARIABLE, Key, Keyring, new_key, use_keys
from antiphon.encryption.keyring import PLAINTEXT_VARIABLE
from antiphon.encryption.records import Sealer
from antiphon.encryption.values import MARK
from antiphon.errors import KeyMissing, SealBroken, SettingsError
from antiphon.stores import SealedStore
from antiphon.wire.records import (
    CLAIMED,
    CLAIMED_LISTS,
    ClaimedTurn,
    ReceivedEvent,
    open_claimed,
    place_of_event,
)
from antiphon_worker import webhooks

pytestmark = pytest.mark.one_server

AGENT = Agent(provider="scripted", model="any")
OLD, NEW, OTHER = new_key("old"), new_key("new"), new_key("other")
SECRET = "whsec_" + "A" * 32


def ring(byte=1, key_id="k"):
    return Keyring([(key_id, bytes([byte]) * 32)])


async def said(client, text, session="s"):
    return (await (await client.submit(session, text, agent=AGENT)).result(timeout=20)).text


# Values.


def test_what_is_sealed_opens_in_its_place_alone():
    seal = Sealer(ring())
    value = seal.seal("s", "message", b'{"text":"hello"}')
    assert b"hello" not in value
    assert seal.open("s", "message", value) == b'{"text":"hello"}'
    with pytest.raises(SealBroken):
        seal.open("other", "message", value)
    with pytest.raises(SealBroken, match="copied from elsewhere"):
        seal.open("s", "input", value)
    with pytest.raises(SealBroken):
        seal.open("s", "input", value.replace(b"message", b"input"))


@pytest.mark.parametrize("name", [*CLAIMED, *CLAIMED_LISTS, "received"])
def test_a_worker_without_keys_notices_a_sealed_part_of_a_turn_wherever_it_is(name):
    if name == "received":
        event = "0:payment"
        value = [ReceivedEvent("w", 1, event, Sealer(ring()).seal(place_of_event(event), "sent", b"{}"))]
    else:
        sealed = Sealer(ring()).seal("s", (CLAIMED | CLAIMED_LISTS)[name], b'{"text":"hello","type":"x"}')
        value = sealed if name in CLAIMED else [sealed]
    plain = dict.fromkeys(ClaimedTurn.__struct_fields__, b"") | {"session_id": "s", "stop": ""}
    plain |= dict.fromkeys(CLAIMED_LISTS, ()) | {"received": ()}
    with pytest.raises(KeyMissing):
        open_claimed(Sealer(None), ClaimedTurn(**plain | {name: value}))
    turn = ClaimedTurn(**plain)
    assert open_claimed(Sealer(None), turn) is turn


def test_a_value_that_was_changed_or_cut_anywhere_does_not_open():
    seal = Sealer(ring())
    value = seal.seal("s", "message", b'{"text":"hello"}')
    body = value.rindex(b":") + 1
    for at in range(body, len(value) - 2):
        other = b"A" if value[at : at + 1] != b"A" else b"B"
        with pytest.raises(SealBroken):
            seal.open("s", "message", value[:at] + other + value[at + 1 :])
        with pytest.raises(SealBroken):
            seal.open("s", "message", value[:at] + b'"')


def test_a_wrong_key_of_the_same_id_is_missing_and_not_broken():
    value = Sealer(ring(1)).seal("s", "message", b"{}")
    for other in (ring(2), ring(1, "k2"), None):
        with pytest.raises(KeyMissing):
            Sealer(other).open("s", "message", value)


def test_a_form_of_a_newer_release_is_left_to_it():
    value = Sealer(ring()).seal("s", "message", b"{}").replace(b"u007f1:", b"u007f2:")
    with pytest.raises(KeyMissing, match="newer release"):
        Sealer(ring()).open("s", "message", value)


def test_nobody_writes_a_sealed_value_as_a_text():
    plain, keyed = Sealer(None), Sealer(ring())
    stolen = keyed.seal("s", "reason", b"secret")
    assert not plain.seal("s", "reason", stolen).startswith(b"\x7f")
    twice = keyed.seal("s", "reason", stolen)
    assert keyed.open("s", "reason", twice) == stolen


def test_members_go_and_come_back_behind_those_in_the_clear():
    seal = Sealer(ring())
    sealed = seal.seal("s", "event", b'{"type":"x","text":"a","run":1,"more":[1,{"b":2}]}')
    assert sealed.startswith(b'{"type":"x","run":1,"sealed":"')
    assert seal.open("s", "event", sealed) == b'{"type":"x","run":1,"text":"a","more":[1,{"b":2}]}'
    assert seal.seal("s", "event", b'{"type":"x"}') == b'{"type":"x"}'


def test_a_session_has_a_key_of_its_own():
    key = Key("k", b"\1" * 32)
    assert len({key.derived(f"place {name}") for name in ("", "s", "s2", "t")}) == 4


@pytest.mark.parametrize(
    "text", ["k1", "k1:", "k1:AAAA", "k 1:" + "A" * 43 + "=", ",", f"{OLD},{OLD}"], ids=range(6)
)
def test_keys_that_are_not_valid_are_refused(monkeypatch, text):
    monkeypatch.setenv(KEYS_VARIABLE, text)
    with pytest.raises(SettingsError, match=KEYS_VARIABLE):
        AsyncClient("redis://localhost:1/0")


@pytest.mark.parametrize("written", ["{0}", "{0}:", "k:{0}x", "k {0}", "k:{0}\n{0}"])
def test_no_part_of_a_key_is_told_of_a_list_that_is_not_valid(monkeypatch, written):
    secret = NEW.partition(":")[2]
    monkeypatch.setenv(KEYS_VARIABLE, written.format(secret))
    with pytest.raises(SettingsError, match=KEYS_VARIABLE) as refused:
        AsyncClient("redis://localhost:1/0")
    assert secret[:8] not in refused.value.message


def test_a_process_with_another_key_of_that_id_is_told_so():
    value = Sealer(ring(1)).seal("s", "message", b"{}")
    with pytest.raises(KeyMissing, match="another key with the id 'k'"):
        Sealer(ring(2)).open("s", "message", value)
    with pytest.raises(KeyMissing, match="does not have the key 'k'"):
        Sealer(ring(1, "k2")).open("s", "message", value)


def test_a_function_is_asked_again_for_a_key_that_is_new(monkeypatch):
    monkeypatch.setattr("antiphon.encryption.keyring.ASK_AGAIN_SECONDS", 0.0)
    known = [("k1", b"\1" * 32)]
    asked = Keyring(lambda: list(known))
    value = Sealer(ring(2, "k2")).seal("s", "message", b"{}")
    with pytest.raises(KeyMissing):
        Sealer(asked).open("s", "message", value)
    known.insert(0, ("k2", b"\2" * 32))
    assert Sealer(asked).open("s", "message", value) == b"{}"
    assert asked.sealing.name.startswith("k2.")


def test_a_process_may_take_its_keys_from_a_function():
    use_keys(lambda: [("k1", b"\1" * 32)])
    try:
        store = SealedStore(OwnStore())
        store.save("s", {"version": 1, "messages": ["secret"]})
        assert store.load("s") == {"version": 1, "messages": ["secret"]}
    finally:
        use_keys(None)
    with pytest.raises(KeyMissing):
        SealedStore(store._store).load("s")


# Turns.


async def test_keys_are_replaced_while_turns_run(redis_url, monkeypatch):
    """Add the new key behind the old one, put it first, remove the old one: each process at its own time."""
    monkeypatch.setenv(KEYS_VARIABLE, OLD)
    async with AsyncClient(redis_url) as before, running_worker(redis_url):
        assert await said(before, "one") == "You said: one"
        for keys in (f"{OLD},{NEW}", f"{NEW},{OLD}"):
            monkeypatch.setenv(KEYS_VARIABLE, f"{OLD},{NEW}")
            async with AsyncClient(redis_url) as first:
                monkeypatch.setenv(KEYS_VARIABLE, keys)
                async with AsyncClient(redis_url) as client, running_worker(redis_url):
                    if keys.startswith(OLD):
                        assert await said(before, "two") == "You said: two"
                    assert await said(first, "three", keys[:3]) == "You said: three"
    monkeypatch.setenv(KEYS_VARIABLE, f"{NEW},{OLD}")
    async with AsyncClient(redis_url) as client, running_worker(redis_url):
        assert await said(client, "last") == "You said: last"
        texts = [message.text for message in (await client.snapshot("s")).messages]
        assert texts[0] == "one"
        assert texts[-1] == "You said: last"
    with Redis.from_url(redis_url) as redis:
        history = redis.lrange("ant:history:s", 0, -1)
        assert b":old." in history[0]
        assert b":new." in history[-1]


async def test_the_hash_of_a_request_cannot_be_guessed(redis_url, monkeypatch):
    digests = []
    for keys in ("", OLD, NEW):
        monkeypatch.setenv(KEYS_VARIABLE, keys)
        async with AsyncClient(redis_url) as client:
            turn = await client.submit(f"s{keys[:3]}", "yes", agent=AGENT)
            await turn.cancel()
            digests.append(
                await client.connections.cell_of_session("s").redis.hget(f"ant:turn:{turn.id}", "digest")
            )
    assert len({*digests}) == 3


async def test_a_keyed_submission_is_known_again_after_a_new_key(redis_url, monkeypatch):
    monkeypatch.setenv(KEYS_VARIABLE, OLD)
    async with AsyncClient(redis_url) as client:
        first = await client.submit("s", "Hello", agent=AGENT, key="once")
    monkeypatch.setenv(KEYS_VARIABLE, f"{NEW},{OLD}")
    async with AsyncClient(redis_url) as client, running_worker(redis_url):
        again = await client.submit("s", "Hello", agent=AGENT, key="once")
        assert again.id == first.id
        assert (await again.result(timeout=20)).text == "You said: Hello"


@pytest.mark.parametrize(
    "keys",
    ["", OTHER, OLD.partition(":")[0] + ":" + OTHER.partition(":")[2]],
    ids=["no key", "another key", "a wrong key of that id"],
)
async def test_a_worker_without_the_key_gives_a_turn_back_and_another_one_runs_it(
    redis_url, monkeypatch, caplog, keys
):
    monkeypatch.setenv(KEYS_VARIABLE, OLD)
    async with AsyncClient(redis_url) as client:
        turn = await client.submit("s", "Hello", agent=AGENT)
        with Redis.from_url(redis_url) as redis:
            request = redis.hget(f"ant:turn:{turn.id}", "request")
            monkeypatch.setenv(KEYS_VARIABLE, keys)
            async with running_worker(redis_url), AsyncClient(redis_url) as blind:
                await wait_until_async(
                    lambda: redis.hget(f"ant:turn:{turn.id}", "status") == b"retrying",
                    description="it is given back",
                )
                assert redis.hget(f"ant:turn:{turn.id}", "request") == request
                assert redis.llen("ant:history:s") == 0
                with pytest.raises(KeyMissing):
                    await (await blind.turn(turn.id)).info()
                with pytest.raises(KeyMissing):
                    async for _ in blind.subscribe("s", after=0):
                        pass
                assert [one.session_id async for one in blind.sessions()] == ["s"]
            assert "This worker gives such turns back." in caplog.text
            monkeypatch.setenv(KEYS_VARIABLE, OLD)
            async with running_worker(redis_url):
                assert (await turn.result(timeout=40)).text == "You said: Hello"


@pytest.mark.parametrize("harm", ["changed", "cut", "of another session"])
async def test_a_value_that_was_harmed_fails_its_turn_and_harms_nothing_else(redis_url, monkeypatch, harm):
    monkeypatch.setenv(KEYS_VARIABLE, OLD)
    async with AsyncClient(redis_url) as client, running_worker(redis_url):
        for session in ("s", "other"):
            await said(client, "Hello", session)
        with Redis.from_url(redis_url) as redis:
            [first, *_] = history = redis.lrange("ant:history:s", 0, -1)
            harmed = {
                "changed": first[:-9] + (b"AAAAAAAA" if first[-9:-1] != b"AAAAAAAA" else b"BBBBBBBB") + b'"',
                "cut": first[:-20] + b'"',
                "of another session": redis.lindex("ant:history:other", 0),
            }[harm]
            redis.lset("ant:history:s", 0, harmed)
            with pytest.raises(SealBroken):
                await said(client, "And now?")
            with pytest.raises(SealBroken):
                await client.snapshot("s")
            assert redis.lrange("ant:history:s", 0, -1) == [harmed, *history[1:]]
        assert await said(client, "Still there?", "other") == "You said: Still there?"


async def test_what_was_written_before_there_was_a_key_is_read_while_that_is_allowed(redis_url, monkeypatch):
    monkeypatch.delenv(KEYS_VARIABLE, raising=False)
    monkeypatch.setenv(PLAINTEXT_VARIABLE, "yes")
    async with AsyncClient(redis_url) as client, running_worker(redis_url):
        assert await said(client, "before") == "You said: before"
    monkeypatch.setenv(KEYS_VARIABLE, OLD)
    async with AsyncClient(redis_url) as client, running_worker(redis_url):
        assert await said(client, "after") == "You said: after"
        texts = [message.text for message in (await client.snapshot("s")).messages]
    assert texts == ["before", "You said: before", "after", "You said: after"]
    with Redis.from_url(redis_url) as redis:
        assert [MARK in one for one in redis.lrange("ant:history:s", 0, -1)] == [False, False, True, True]


async def test_a_job_with_a_turn_in_the_clear_is_refused(redis_url, monkeypatch):
    from rq import Queue
    from rq.serializers import JSONSerializer

    monkeypatch.setenv(KEYS_VARIABLE, OLD)
    with Redis.from_url(redis_url) as redis:
        queue = Queue("antiphon", connection=redis, serializer=JSONSerializer)
        job = queue.enqueue("antiphon_worker.jobs.run_turn", "s", "Hello")
        async with running_worker(redis_url):
            await wait_until_async(lambda: job.get_status() == "failed", description="the job is refused")
        assert re.search("encrypted", redis.hget(f"rq:job:{job.id}", "exc_info").decode())
        redis.flushall()


# What a deployment does where something does not open.


async def test_a_webhook_that_cannot_be_opened_is_listed_and_replaced_and_deleted(redis_url, monkeypatch):
    monkeypatch.setenv(KEYS_VARIABLE, OLD)
    async with AsyncClient(redis_url) as client:
        for name in ("billing", "ops"):
            await client.webhooks().set(name, "https://example.com/hooks", types=["turn_finished"])
    monkeypatch.setenv(KEYS_VARIABLE, NEW)
    async with AsyncClient(redis_url) as client:
        webhooks = client.webhooks()
        await webhooks.set("new", "https://example.com/new")
        assert [(one.name, one.url) async for one in webhooks] == [
            ("billing", ""), ("new", "https://example.com/new"), ("ops", ""),
        ]  # fmt: skip
        with pytest.raises(KeyMissing, match="secret="):
            await webhooks.set("billing", "https://example.com/again")
        await webhooks.set("billing", "https://example.com/again", secret=SECRET)
        await webhooks.delete("ops")
        assert [(one.name, one.url) async for one in webhooks] == [
            ("billing", "https://example.com/again"), ("new", "https://example.com/new"),
        ]  # fmt: skip


async def test_a_worker_says_once_that_it_cannot_open_a_webhook(redis_url, monkeypatch, caplog):
    monkeypatch.setattr(webhooks, "LEASE_SECONDS", 0.0)
    monkeypatch.setattr(webhooks, "LOST_SECONDS", 0.0)
    monkeypatch.setattr(webhooks, "PAUSE_SECONDS", 0.01)
    monkeypatch.setenv(KEYS_VARIABLE, OLD)
    async with AsyncClient(redis_url) as client:
        await client.webhooks().set("billing", "https://example.com/hooks", types=["turn_finished"])
    monkeypatch.setenv(KEYS_VARIABLE, NEW)
    async with AsyncClient(redis_url) as client, running_worker(redis_url):
        await said(client, "Hello")
        with Redis.from_url(redis_url) as redis:
            first = int(redis.hget("ant:webhook:billing", "fence") or 0)
            await wait_until_async(
                lambda: int(redis.hget("ant:webhook:billing", "fence") or 0) > first + 4,
                description="it is taken again and again",
            )
    told = [one for one in caplog.records if getattr(one, "action", "") == "webhook_unreadable"]
    assert len(told) == 1
    assert "'old'" in told[0].getMessage()


async def test_a_worker_warns_once_of_turns_in_the_clear_that_it_may_run(redis_url, monkeypatch, caplog):
    monkeypatch.delenv(KEYS_VARIABLE, raising=False)
    monkeypatch.setenv(PLAINTEXT_VARIABLE, "yes")
    async with AsyncClient(redis_url) as client:
        turns = [await client.submit(session, "Hello", agent=AGENT) for session in ("s", "t")]
        monkeypatch.setenv(KEYS_VARIABLE, OLD)
        async with AsyncClient(redis_url) as keyed, running_worker(redis_url):
            for turn in turns:
                await (await keyed.turn(turn.id)).result(timeout=20)
            told = [one for one in caplog.records if getattr(one, "action", "") == "submitted_in_the_clear"]
            assert [one.levelname for one in told] == ["WARNING"]
            assert KEYS_VARIABLE in told[0].getMessage()
            caplog.clear()
            assert await said(keyed, "And now?") == "You said: And now?"
    assert not [one for one in caplog.records if getattr(one, "action", "") == "submitted_in_the_clear"]


async def test_a_worker_whose_source_of_keys_is_away_gives_turns_back(redis_url, monkeypatch, caplog):
    monkeypatch.setattr("antiphon.encryption.keyring.ASK_AGAIN_SECONDS", 0.0)
    monkeypatch.setenv(KEYS_VARIABLE, OLD)
    service = KeyService(NEW)
    async with AsyncClient(redis_url) as client:
        turn = await client.submit("s", "Hello", agent=AGENT)
        use_keys(service)
        try:
            service.away = True
            with Redis.from_url(redis_url) as redis:
                async with running_worker(redis_url):
                    await wait_until_async(
                        lambda: redis.hget(f"ant:turn:{turn.id}", "status") == b"retrying",
                        description="it is given back",
                    )
                    assert redis.hget(f"ant:turn:{turn.id}", "error_code") is None
                service.away, service.keys = False, [*service.keys, *KeyService(OLD).keys]
                async with running_worker(redis_url):
                    await wait_until_async(
                        lambda: redis.hget(f"ant:turn:{turn.id}", "status") == b"finished",
                        timeout=40,
                        description="it runs",
                    )
        finally:
            use_keys(None)
    assert "secret of the service" not in caplog.text


class KeyService:
    """Where a deployment keeps its keys."""

    def __init__(self, key):
        key_id, _, encoded = key.partition(":")
        self.keys = [(key_id, base64.b64decode(encoded))]
        self.away = False

    def __call__(self):
        if self.away:
            raise OSError("secret of the service")
        return self.keys


def test_keys_that_are_refused_leave_those_that_were_there(monkeypatch):
    monkeypatch.setattr("antiphon.encryption.keyring.ASK_AGAIN_SECONDS", 0.0)
    known = [("k1", b"\1" * 32)]
    asked = Keyring(lambda: list(known))
    value, other = (Sealer(ring(byte, f"k{byte}")).seal("s", "message", b"{}") for byte in (1, 2))
    for wrong in ([], [("k2", b"short")], [("k2", b"\2" * 32)] * 2):
        known[:] = wrong
        with pytest.raises(KeyMissing, match="'k2'"):
            Sealer(asked).open("s", "message", other)
        assert Sealer(asked).open("s", "message", value) == b"{}"
        assert asked.sealing.name.startswith("k1.")


STOLEN = "\x7f\x7f1:system:k.00000000:AAAA"


async def test_a_text_that_looks_sealed_is_read_as_text_where_there_are_no_keys(redis_url, monkeypatch):
    monkeypatch.delenv(KEYS_VARIABLE, raising=False)
    async with AsyncClient(redis_url) as client, running_worker(redis_url):
        session = client.session("s", agent=AGENT, system=STOLEN)
        turn = await session.submit("Hello")
        assert (await turn.result(timeout=20)).text == "You said: Hello"
        waiting = await client.submit("t", "Hello", agent=AGENT, delay=100, key=STOLEN)
        await waiting.cancel(STOLEN)
        assert (await waiting.info()).error == STOLEN.lstrip("\x7f")


@pytest.mark.parametrize(("name", "before"), [("system", b""), ("summary", b"3:")])
@pytest.mark.parametrize("keys", [None, ring()], ids=["without keys", "with keys"])
def test_no_field_of_a_session_is_written_so_that_it_looks_sealed(name, before, keys):
    seal = Sealer(keys)
    text = STOLEN if keys else STOLEN.lstrip("\x7f")
    stored = seal.seal("s", name, before + STOLEN.encode())
    assert seal.open("s", name, stored) == before + text.encode()
