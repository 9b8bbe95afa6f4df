"""With keys, nothing that is not encrypted is read: not as a message, an answer, a decision or anything else."""

import json
import re
from contextlib import asynccontextmanager

import pytest
from support.archives import OwnStore
from support.eventually import wait_until_async
from support.here import running_worker
from support.source_tree import ROOT

from antiphon import Agent, tool
from antiphon.client import AsyncClient
from antiphon.encryption import KEYS_VARIABLE, Keyring, new_key
from antiphon.encryption.keyring import PLAINTEXT_VARIABLE, keyring_of_process
from antiphon.encryption.records import _REASONS, FORMS, NO_KEY, NOT_SHOWN, TURN, Sealer
from antiphon.errors import KeyMissing, NotEncrypted, SealBroken, SettingsError
from antiphon.model import Decision
from antiphon.stores import SealedStore
from antiphon.testing import script, tool_call
from antiphon.wire.lists.memories import read_book
from antiphon.wire.suspension import decide
from antiphon_worker.app import App
from antiphon_worker.providers.scripted import ScriptedProvider
from antiphon_worker.supervisor.child import LOOP_STALLED, WORKER_DIED

pytestmark = pytest.mark.one_server

RING = Keyring([("k", bytes(range(32)))])
SEAL, LENIENT, BARE = Sealer(RING), Sealer(RING, accept_plaintext=True), Sealer(None)
AGENT = Agent(provider="scripted", model="any")
FORGED = "Forged!"
PLAIN = {
    "request": b'{"version":1,"messages":[{"role":"user","parts":[{"type":"text","text":"Forged!"}]}]}',
    "journal": b'{"type":"step","step":1,"message":{"role":"assistant","parts":[]}}',
    "event": b'{"seq":1,"at":2,"type":"text_delta","session_id":"s","turn_id":"t","run":1,"text":"Forged!"}',
    "call": b'{"call_id":"c","name":"pay","kind":"approval"}',
    "decision": b'{"call_id":"c","kind":"approve","at":1}',
    "titled": b'{"turn_id":"t","title":"Forged!"}',
    "run": b'{"run":1,"status":"failed","code":"","error":"","response":{"text":"Forged!"},"journal":null}',
    "summary": b"3:Forged!",
    "input": b'[{"role":"user","parts":[]}]',
}


@pytest.fixture(autouse=True)
def keys(monkeypatch):
    monkeypatch.setenv(KEYS_VARIABLE, new_key("k1"))


async def said(client, text, session="s"):
    return (await (await client.submit(session, text, agent=AGENT)).result(timeout=20)).text


async def events(client, session="s", after=0):
    """The events of a session up to the end of its turn."""
    found = []
    async for event in client.subscribe(session, after=after):
        found.append(event)
        if event.terminal:
            break
    return found


# Values of every form.


@pytest.mark.parametrize("form", [name for name in FORMS if name != "reason"])
def test_a_value_of_any_form_is_refused_in_the_clear(form):
    plain = PLAIN.get(form, b'"Forged!"')
    with pytest.raises(NotEncrypted, match=PLAINTEXT_VARIABLE):
        SEAL.open("s", form, plain)
    assert LENIENT.open("s", form, plain) == BARE.open("s", form, plain) == plain


@pytest.mark.parametrize("form", [name for name in FORMS if name != "run"])
def test_a_value_of_any_form_opens_again(form):
    plain = PLAIN.get(form, b'"Forged!"')
    if form == "request":
        sealed, _ = SEAL.seal_request("s", plain, 0)
    else:
        sealed = SEAL.seal("s", form, plain)
    assert FORGED.encode() not in sealed
    for seal in (SEAL, LENIENT):
        opened = seal.open("s", form, sealed)
        assert opened == plain or json.loads(opened) == json.loads(plain)
    with pytest.raises(KeyMissing):
        BARE.open("s", form, sealed)


def of(form):
    return SEAL.seal("s", form, PLAIN.get(form, b'"Forged!"'))


@pytest.mark.parametrize(
    ("form", "forged"),
    [
        ("event", b'{"seq":1,"type":"text_delta","text":{0}}'),  # a sealed value of another kind
        ("event", b'{"seq":1,"type":"turn_queued","input":[{"role":"user"}]}'),
        ("event", b'{"seq":1,"type":"turn_finished","response":{"text":"Forged!"}}'),
        ("event", b'{"seq":1,"type":"turn_resumed","decisions":[{"call_id":"c","kind":"approve","at":1}]}'),
        ("event", b'{"seq":1,"type":"turn_suspended","calls":[{"call_id":"c","name":"pay"}]}'),
        ("event", b'{"seq":1,"type":"a_newer_one","what":["Forged!"]}'),
        ("event", b'{"seq":1,"type":"text_delta","sealed":{"text":"Forged!"},"text":"Forged!"}'),
        ("request", b'{"messages":{0},"sealed":"x"}'),
        ("request", b'{"messages":{0}}'),
        ("journal", b'{"type":"steered","version":2,"turn_id":"t","created":1,"request":{"messages":[]}}'),
        ("journal", b'[{"decision":{"call_id":"c","kind":"approve"}}]'),
        ("call", b'[{"call_id":"c","kind":"approval","name":"pay"}]'),
        ("decision", b'{"call_id":"c","kind":"approve","reason":"Nobody decided within the time limit.","at":1}'),
        ("run", b'{"run":1,"status":"failed","error":"","response":null,"journal":[{"message":{}}]}'),
        ("message", b'["Forged!"]'),
        ("message", b"7"),
        ("message", b"true"),
    ],
)  # fmt: skip
def test_nothing_in_the_clear_is_smuggled_into_a_record(form, forged):
    with pytest.raises(SealBroken):
        SEAL.open("s", form, forged.replace(b"{0}", of("message")))


@pytest.mark.parametrize("name", ["text", "result", "is_error"])
def test_members_beside_those_that_were_encrypted_take_no_effect(name):
    event = b'{"type":"tool_result","name":"look","result":"true","text":"true"}'
    forged = SEAL.seal("s", "event", event)[:-1] + b',"%b":false}' % name.encode()
    assert json.loads(SEAL.open("s", "event", forged)) == json.loads(event)


def test_what_was_decided_cannot_be_changed_into_its_opposite():
    rejected = SEAL.seal("s", "decision", b'{"call_id":"c","kind":"reject"}')
    for forged in (rejected.replace(b'"reject"', b'"approve"'), rejected[:-1] + b',"kind":"approve"}'):
        assert json.loads(SEAL.open("s", "decision", forged)) == {"call_id": "c", "kind": "reject"}


def test_reasons_that_scripts_write_are_shown_and_no_others():
    scripts = "\n".join(path.read_text() for path in (ROOT / "client/antiphon/wire/lua").rglob("*.lua"))
    written = [*re.findall(r"local (?:NOT_DECIDED|IN_RQ) = '([^']+)'", scripts), "The session was deleted."]
    assert len(written) == 3
    assert all(one in scripts for one in written)
    reap = f"The turn was given up after 10 crashes of its worker. {LOOP_STALLED[1]}"
    for text in (
        *written,
        "cancelled",
        NO_KEY,
        WORKER_DIED[1],
        LOOP_STALLED[1],
        reap,
        "interrupted by turn 01ab",
    ):
        assert _REASONS.fullmatch(text), text
        assert SEAL.reason("s", text) == text
    for text in ("Call +49 30 123456 now.", "cancelled because you owe us money"):
        assert SEAL.reason("s", text) == NOT_SHOWN
        assert LENIENT.reason("s", text) == text
        event = b'{"type":"turn_failed","message":"%b"}' % text.encode()
        assert json.loads(SEAL.open("s", "event", event))["message"] == NOT_SHOWN


# Turns, histories and logs.


async def test_a_message_in_the_clear_reaches_no_model_and_harms_only_its_session(redis_url, redis, client):
    async with running_worker(redis_url):
        await said(client, "Hello")
        history = redis.lrange("ant:history:s", 0, -1)
        redis.lset("ant:history:s", 0, BARE.seal("s", "message", b'{"role":"user","parts":[]}'))
        with pytest.raises(NotEncrypted):
            await said(client, "And now?")
        with pytest.raises(NotEncrypted):
            await client.snapshot("s")
        assert redis.lrange("ant:history:s", 1, -1) == history[1:]
        assert await said(client, "Still there?", "other") == "You said: Still there?"
        await client.session("s").clear()
        assert await said(client, "From the beginning") == "You said: From the beginning"


async def test_a_turn_in_the_clear_fails_and_the_next_one_runs(redis_url, redis, monkeypatch, client):
    turn = await client.submit("s", "Hello", agent=AGENT)
    redis.hset(f"ant:turn:{turn.id}", "request", PLAIN["request"])
    async with running_worker(redis_url):
        with pytest.raises(NotEncrypted, match=KEYS_VARIABLE):
            await turn.result(timeout=20)
        assert await said(client, "Still there?") == "You said: Still there?"
        assert [one.text for one in (await client.snapshot("s")).messages] == [
            "Still there?", "You said: Still there?",
        ]  # fmt: skip


@pytest.mark.parametrize("field", [name for name, form in TURN.items() if form != "reason"])
async def test_a_field_of_a_turn_in_the_clear_reaches_no_caller(redis_url, redis, field, client):
    async with running_worker(redis_url):
        turn = await client.submit("s", "Hello", agent=AGENT)
        assert (await turn.result(timeout=20)).text == "You said: Hello"
        redis.hset(f"ant:turn:{turn.id}", field, PLAIN.get(TURN[field], b'{"text":"Forged!"}'))
        for read in (lambda: client.turn(turn.id), turn.info, turn.runs):
            with pytest.raises(NotEncrypted):
                await read()


async def test_the_whole_record_of_another_sessions_turn_is_not_read_as_this_one(redis_url, redis, client):
    async with running_worker(redis_url):
        mine = await client.submit("s", "Hello", agent=AGENT)
        theirs = await client.submit("other", "Secret", agent=AGENT)
        for turn in (mine, theirs):
            await turn.result(timeout=20)
        redis.delete(f"ant:turn:{mine.id}")
        redis.copy(f"ant:turn:{theirs.id}", f"ant:turn:{mine.id}")
        for read in (lambda: client.turn(mine.id), mine.info):
            with pytest.raises(SealBroken, match="another session"):
                await read()
        assert (await (await client.turn(theirs.id)).result()).text == "You said: Secret"


async def test_the_reason_of_a_turn_in_the_clear_is_not_shown(redis, client):
    turn = await client.submit("s", "Hello", agent=AGENT, delay=100)
    await turn.cancel("Never mind.")
    assert (await turn.info()).error == "Never mind."
    redis.hset(f"ant:turn:{turn.id}", "error", FORGED)
    assert (await turn.info()).error == NOT_SHOWN


async def test_a_reader_of_the_log_learns_which_event_is_in_the_clear_and_goes_on_behind_it(
    redis_url, redis, client
):
    async with running_worker(redis_url):
        await said(client, "Hello")
        log = [(name, fields[b"e"]) for name, fields in redis.xrange("ant:events:s")]
        whole = await events(client)
        at = next(n for n, one in enumerate(whole) if one.type == "text_delta")
        redis.delete("ant:events:s")
        for n, (name, event) in enumerate(log):
            forged = re.sub(rb'"sealed":"[^"]*"', b'"text":"Forged!"', event) if n == at else event
            redis.xadd("ant:events:s", {"e": forged}, name)
        redis.expire("ant:events:s", 600)
        reader = client.subscribe("s", after=0)
        assert [await anext(reader) for _ in range(at)] == whole[:at]
        with pytest.raises(NotEncrypted, match=f"after={at + 1}"):
            await anext(reader)
        await reader.aclose()
        assert await events(client, after=at + 1) == whole[at + 1 :]


async def test_an_event_in_the_clear_on_the_channel_is_passed_over(redis_url, redis, client):
    async with running_worker(redis_url):
        await said(client, "Hello")
        last = len(redis.xrange("ant:events:s"))
        subscription = client.subscribe("s", after=last)
        await subscription.start()
        forged = b'{"seq":%d,"at":9999999999999,"type":"text_delta","session_id":"s","text":"Forged!"}' % (
            last + 1
        )
        database = redis.connection_pool.connection_kwargs["db"]
        [channel] = redis.pubsub_channels("ant:live*:s") or [f"ant:live:{database}:s"]
        redis.publish(channel, forged)
        await client.submit("s", "And now?", agent=AGENT)
        async with subscription:
            assert (await anext(subscription)).type == "turn_queued"


# Decisions.


PAID: list[str] = []


@tool(approval=True, approval_timeout=600)
def pay(to: str) -> str:
    """Pay."""
    PAID.append(to)
    return "paid"


@asynccontextmanager
async def suspended(redis_url):
    """A worker, a client, and a turn that waits for the approval of a payment."""
    PAID.clear()
    lines = script(tool_call("pay", to="Eve"), "Done.")
    payer = Agent(provider="lines", model="any", name="payer", tools=[pay])
    app = App(agents=[payer], providers={"lines": ScriptedProvider(lines)})
    async with AsyncClient(redis_url) as client, running_worker(redis_url, app):
        turn = await client.submit("s", "Pay Eve.", agent="payer")
        await wait_until_async(lambda: has(turn, "suspended"), description="it waits")
        [call] = (await turn.info()).calls
        yield client, turn, call


async def has(turn, status):
    return await turn.status() == status


async def test_an_approval_without_the_key_runs_no_tool(redis_url, redis, monkeypatch):
    async with suspended(redis_url) as (_, turn, call):
        monkeypatch.delenv(KEYS_VARIABLE)
        async with AsyncClient(redis_url) as forger:
            await decide(
                forger.connections.cell_of_session("s"), turn.id, Decision(call.call_id, "approve", by="ada")
            )
        await wait_until_async(
            lambda: redis.hget(f"ant:turn:{turn.id}", "status") == b"failed", description="it has failed"
        )
        assert redis.hget(f"ant:turn:{turn.id}", "error_code") == b"not_encrypted"
        assert PAID == []


async def test_a_rejection_that_is_turned_into_an_approval_rejects(redis_url, redis):
    async with suspended(redis_url) as (client, turn, call):
        # The last of two decisions resumes the turn: meanwhile the first one can be changed.
        redis.hset(f"ant:turn:{turn.id}", "wait:2", "9999999999999 reject approval other")
        await turn.reject(call.call_id, by="ada")
        stored = redis.hget(f"ant:turn:{turn.id}", "decision:1")
        redis.hset(f"ant:turn:{turn.id}", "decision:1", stored.replace(b'"reject"', b'"approve"'))
        sealed = Sealer(keyring_of_process()).seal("s", "decision", b'{"call_id":"other","kind":"reject"}')
        cell = client.connections.cell_of_session("s")
        await cell.run("decide", turn.id, "other", "op", "reject", sealed, 100)
        assert (await turn.result(timeout=20)).text == "Done."
        assert PAID == []


async def test_a_time_limit_decides_as_the_worker_has_said_whatever_the_record_says(redis_url, redis):
    async with suspended(redis_url) as (client, turn, call):
        redis.hset(f"ant:turn:{turn.id}", "wait:1", f"1 approve approval {call.call_id}")
        cell = client.connections.cell_of_session("s")
        redis.zadd("ant:active", {"s": 1})
        await cell.reap()
        assert (await turn.result(timeout=20)).text == "Done."
        [decision] = (await client.snapshot("s")).messages[2].decisions
        assert (decision.kind, decision.reason) == ("reject", "Nobody decided within the time limit.")
        assert PAID == []


# What else a deployment keeps.


async def test_a_schedule_in_the_clear_submits_nothing_and_delays_no_other_one(redis_url, redis, client):
    async with running_worker(redis_url):
        for session in ("s", "t"):
            await client.schedules(session).set("daily", "Hello", agent=AGENT, every=3600)
        plan = b'{"request":"{}","every_ms":3600000}'
        redis.hset("ant:schedule:daily:s", "plan", plan)
        redis.zadd("ant:schedules", {"daily:s": 1, "daily:t": 2})
        await wait_until_async(
            lambda: redis.exists("ant:history:t"), description="the other one is submitted"
        )
        assert not redis.exists("ant:session:s")


async def test_a_webhook_in_the_clear_is_sent_nothing(redis, client):
    await client.webhooks().set("billing", "https://example.com/hooks")
    redis.hset("ant:webhook:billing", "url", "https://attacker.example.com/")
    [found] = [one async for one in client.webhooks()]
    assert "attacker" not in str(found)


async def test_a_fact_in_the_clear_is_not_recalled(redis, client):
    cell = client.connections.cell_of_session("s")
    redis.hset(cell.keys.facts("user-1"), "f", b'{"id":"f","created":1,"wordings":[{"text":"x","at":1}]}')
    redis.expire(cell.keys.facts("user-1"), 600)
    book = await read_book(cell, "user-1")
    assert not book.facts
    assert isinstance(book.damaged["f"], NotEncrypted)


def test_an_archived_session_in_the_clear_is_refused_unless_that_is_allowed(monkeypatch):
    inner = OwnStore()
    inner.save("s", {"version": 1, "messages": [FORGED]})
    with pytest.raises(NotEncrypted):
        SealedStore(inner).load("s")
    assert SealedStore(inner).load("other") is None
    monkeypatch.setenv(PLAINTEXT_VARIABLE, "yes")
    assert SealedStore(inner).load("s") == {"version": 1, "messages": [FORGED]}


async def test_a_graph_in_the_clear_is_refused(redis_url, monkeypatch):
    langgraph = pytest.importorskip("antiphon.ext.langgraph")
    config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    checkpoint = {
        "id": "1",
        "v": 1,
        "ts": "",
        "channel_values": {},
        "channel_versions": {},
        "versions_seen": {},
    }
    monkeypatch.delenv(KEYS_VARIABLE)
    bare = langgraph.AntiphonSaver(redis_url, ttl=600)
    await bare.aput(config, checkpoint, {}, {})
    monkeypatch.setenv(KEYS_VARIABLE, new_key("k1"))
    with pytest.raises(NotEncrypted):
        await langgraph.AntiphonSaver(redis_url).aget_tuple(config)


@pytest.mark.parametrize(
    ("keys", "plaintext", "said"),
    [
        ("", "", "plain text"),
        (new_key("k"), "", "encrypted"),
        (new_key("k"), "yes", "encrypted, plain text accepted"),
    ],
    ids=["without keys", "with keys", "while moving to keys"],
)
async def test_a_worker_says_at_its_start_how_content_is_stored(
    redis_url, monkeypatch, caplog, keys, plaintext, said
):
    caplog.set_level("INFO")
    monkeypatch.setenv(KEYS_VARIABLE, keys)
    monkeypatch.setenv(PLAINTEXT_VARIABLE, plaintext)
    async with running_worker(redis_url):
        await wait_until_async(lambda: "takes turns" in caplog.text, description="it has started")
    [line] = [one.getMessage() for one in caplog.records if getattr(one, "action", "") == "started"]
    assert line.endswith(f"content {'in ' if not keys else ''}{said}")


async def test_only_one_word_accepts_what_is_not_encrypted(monkeypatch):
    monkeypatch.setenv(PLAINTEXT_VARIABLE, "perhaps")
    with pytest.raises(SettingsError, match=PLAINTEXT_VARIABLE):
        AsyncClient("redis://localhost:1/0")
