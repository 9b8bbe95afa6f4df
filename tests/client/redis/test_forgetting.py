"""A session or a tenant is exported and forgotten: a search of all keys finds nothing of it, and others keep theirs."""

from __future__ import annotations

import json

import pytest
from redis import Redis
from support.leaks import MARKER, dumped, holds

from antiphon import Agent, Client
from antiphon.cli.main import main
from antiphon.errors import UsageError, WrongTenant

pytestmark = pytest.mark.one_server
AGENT = Agent("scripted", "any", system=MARKER)


@pytest.fixture
def client(redis_url):
    with Client(redis_url) as found:
        yield found


def leaks(url):
    with Redis.from_url(url) as redis:
        return {key for key, data in dumped(redis).items() if holds(data)}


def talk(client, session, tenant=None):
    turn = client.submit(session, MARKER, agent=AGENT, tenant=tenant, metadata={"about": MARKER})
    turn.cancel(MARKER)
    client.session(session, tenant=tenant).set_metadata({"title": MARKER})
    return turn


def expire(url, session):
    with Redis.from_url(url) as redis:
        redis.delete(*(f"ant:{kind}:{session}" for kind in ("session", "history", "events", "turns")))


def test_a_tenant_is_forgotten_with_all_that_it_has(client, redis_url):
    for number in range(3):
        talk(client, f"a-{number}", "a")
    talk(client, "a-expired", "a")
    expire(redis_url, "a-expired")
    client.schedules("a-new", tenant="a").set("daily", MARKER, every=3600, agent=AGENT)
    client.webhooks(tenant="a").set("hook", "https://example.com/Qz7Marker")
    client.memory(tenant="a").add(MARKER)
    client.schedules("a-paid", tenant="a").set("paid", MARKER, on="paid", agent=AGENT)
    for key in ("1", "2"):
        assert client.send_event("paid", {"what": MARKER}, key=key, tenant="a") == 1
    client.schedules("a-paid", tenant="a").delete("paid")
    assert client.send_event("other", MARKER, tenant="a") == 0
    assert leaks(redis_url)
    found = client.forget(tenant="a")
    assert (len(found.sessions), found.turns, found.webhooks, found.facts) == (4, 1, 1, 1)
    assert (found.schedules, found.events) == (1, 3)
    assert found.searched > 5
    assert (found.left, found.pending) == ([], [])
    assert leaks(redis_url) == set()


def test_others_keep_what_they_have(client, redis_url):
    talk(client, "mine", "a")
    kept = talk(client, "theirs", "b"), talk(client, "nobodys")
    for tenant in ("a", "b", None):
        client.send_event("paid", MARKER, tenant=tenant)
    assert client.forget(tenant="a").events == 1
    assert leaks(redis_url) >= {b"ant:event_data:paid", b"ant:event_data:paid b"}
    assert [turn.info().input[0].text for turn in kept] == [MARKER] * 2
    with pytest.raises(WrongTenant):
        client.forget(session="theirs", tenant="a")
    assert client.session("theirs", tenant="b").metadata == {"title": MARKER}


def test_an_expired_session_is_forgotten_by_its_id(client, redis_url):
    talk(client, "s")
    expire(redis_url, "s")
    assert client.forget(session="s").turns == 1
    assert leaks(redis_url) == set()


@pytest.mark.parametrize("key", ["ant:history:s", "ant:journal:{}", "rq:results:{}"])
def test_the_search_finds_what_is_left(client, redis_url, key):
    turn = talk(client, "s")
    client.forget(session="s")
    with Redis.from_url(redis_url) as redis:
        name = key.format(turn.id)
        redis.rpush(name, MARKER)
        found = client.forget(session="s")
        redis.delete(name)
    assert found.left == ([] if key == "ant:history:s" else [name])


def test_something_must_be_named(client):
    for act in (client.forget, lambda: list(client.export())):
        with pytest.raises(UsageError, match="Pass session=, tenant= or user="):
            act()


def test_a_tenant_is_exported_before_by_the_command_line(client, redis_url, capsys):
    turn = talk(client, "s", "a")
    talk(client, "other", "b")
    client.send_event("paid", {"cents": 5}, tenant="a")
    client.send_event("paid", {"cents": 6}, tenant="b")
    assert main(["export", "--tenant", "a", "--redis-url", redis_url]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["type"] for line in lines] == ["session", "turn", "event"]
    assert (lines[2]["name"], lines[2]["data"]) == ("paid", {"cents": 5})
    assert (lines[0]["metadata"], lines[1]["turn_id"]) == ({"title": MARKER}, turn.id)
    assert lines[1]["input"][0]["parts"][0]["text"] == MARKER
    assert main(["forget", "--tenant", "a", "--redis-url", redis_url]) == 0
    assert "none has any content of them" in capsys.readouterr().out
    assert main(["export", "--tenant", "a", "--redis-url", redis_url]) == 0
    assert capsys.readouterr().out == ""
