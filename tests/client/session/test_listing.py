"""Lists of sessions: what they say, by whom they are filtered, and their pages. On both runtimes."""

import threading

import pytest
from support.eventually import wait_until, wait_until_async

from antiphon import AsyncClient, Client
from antiphon.errors import InvalidId, UsageError
from antiphon.session import listing
from antiphon.stores import MemoryStore
from antiphon.testing import script


def ids(sessions):
    return [one.session_id for one in sessions]


def many(agent, count):
    for number in range(count):
        agent.session(f"s{number}", metadata={"even": number % 2 == 0}).run(f"{number}")


def paged(sessions, **options):
    """The pages of a list, each as the ids in it, as a service that shows them would ask for them."""
    pages, cursor = [], None
    while True:
        page = sessions(cursor=cursor, **options)
        pages.append(ids(page))
        cursor = page.cursor
        if cursor is None:
            return pages


def flat(pages):
    return [one for page in pages for one in page]


def test_a_list_says_what_each_session_is(runtime):
    agent = runtime.agent(name="support")
    session = agent.session("s", tenant="acme", metadata={"plan": "free"}, queue="antiphon")
    session.run("1")
    session.run("2")
    (one,) = agent.sessions()
    assert (one.session_id, one.tenant, one.agent, one.queue) == ("s", "acme", "support", "antiphon")
    assert (one.status, one.messages, one.turns, one.metadata) == ("done", 4, 0, {"plan": "free"})
    assert 0 < one.created <= one.updated
    assert not one.closed


def test_a_list_says_what_runs_and_what_waits(runtime):
    reached, opened = threading.Event(), threading.Event()

    async def wait():
        reached.set()
        await wait_until_async(opened.is_set, description="the test opens the gate")

    runtime.use(script([wait, "one"], "two"))
    agent = runtime.agent()
    session = agent.session("s")
    turns = [session.submit("1"), session.submit("2")]
    assert reached.wait(10)
    (one,) = agent.sessions()
    assert (one.status, one.turns, one.messages) == ("running", 2, 0)
    opened.set()
    for turn in turns:
        turn.result(60)
    wait_until(lambda: [one.status for one in agent.sessions()] == ["done"], description="it is done")


def test_sessions_are_found_by_their_tenant_and_metadata_together(runtime):
    agent = runtime.agent()
    for tenant, plan in (("acme", "free"), ("acme", "paid"), ("other", "free")):
        agent.session(f"{tenant}-{plan}", tenant=tenant, metadata={"plan": plan}).run("1")
    agent.session("nobody's", metadata={"plan": "free"}).run("1")
    assert set(ids(agent.sessions(tenant="acme"))) == {"acme-free", "acme-paid"}
    assert ids(agent.sessions(tenant="acme", metadata={"plan": "free"})) == ["acme-free"]
    assert len(ids(agent.sessions(metadata={"plan": "free"}))) == 3
    assert ids(agent.sessions(tenant="nobody")) == []


def test_pages_bring_every_session_once_and_the_last_one_used_first(runtime):
    agent = runtime.agent()
    many(agent, 7)
    assert [len(page) for page in paged(agent.sessions, limit=3)] == [3, 3, 1]
    assert [len(page) for page in paged(agent.sessions, limit=7)] == [7]
    assert flat(paged(agent.sessions, limit=2)) == [f"s{number}" for number in reversed(range(7))]
    assert flat(paged(agent.sessions, limit=1, metadata={"even": True})) == ["s6", "s4", "s2", "s0"]
    assert flat(paged(agent.sessions)) == ids(agent.sessions())


def test_a_session_that_is_used_between_two_pages_does_not_come_twice(runtime):
    agent = runtime.agent()
    many(agent, 4)
    page = agent.sessions(limit=2)
    assert ids(page) == ["s3", "s2"]
    agent.session("s3").run("again")
    assert ids(agent.sessions(cursor=page.cursor)) == ["s1", "s0"]
    assert ids(agent.sessions(limit=1)) == ["s3"]


def test_a_page_ends_after_having_looked_at_enough_and_says_where_to_go_on(runtime, monkeypatch):
    monkeypatch.setattr(listing, "MOST_LOOKED_AT", 3)
    agent = runtime.agent()
    many(agent, 8)
    pages = paged(agent.sessions, limit=1, metadata={"even": "no such value"})
    assert pages == [[], [], []]
    assert paged(agent.sessions, metadata={"even": True}) == [["s6", "s4", "s2", "s0"]]


def test_leaving_a_list_early_says_where_it_has_come_to(runtime):
    agent = runtime.agent()
    many(agent, 3)
    some = agent.sessions()
    assert some.cursor is None
    assert next(iter(some)).session_id == "s2"
    assert ids(agent.sessions(cursor=some.cursor)) == ["s1", "s0"]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"limit": 0}, "limit="),
        ({"limit": "ten"}, "limit="),
        ({"limit": True}, "limit="),
        ({"cursor": "soon"}, "cursor="),
        ({"cursor": "x:s"}, "cursor="),
        ({"cursor": 7}, "cursor="),
        ({"metadata": 7}, "metadata="),
        ({"tenant": ""}, "tenant"),
        ({"tenant": 7}, "tenant"),
    ],
)
def test_what_no_list_can_be_asked_for_is_said_at_once(runtime, asked, says):
    with pytest.raises(UsageError, match=says):
        runtime.agent().sessions(**asked)


def test_the_sessions_of_a_store_come_in_pages_too():
    from antiphon import Agent

    agent = Agent("scripted", "any", store=MemoryStore())
    many(agent, 5)
    pages = paged(agent.sessions, limit=2)
    assert [len(page) for page in pages] == [2, 2, 1]
    assert sorted(flat(pages)) == [f"s{number}" for number in range(5)]


def test_a_session_keeps_its_tenant_and_refuses_another(runtime):
    agent = runtime.agent()
    agent.session("s", tenant="acme").run("1")
    with pytest.raises(UsageError, match="does not belong to the tenant 'other'"):
        agent.session("s", tenant="other").run("2")
    session = agent.session("s")
    assert (session.tenant, len(session.messages)) == ("acme", 2)
    assert session.fork().tenant == "acme"
    child = session.child()
    child.run("3")
    assert child.tenant == "acme"
    with pytest.raises(InvalidId, match="tenant"):
        agent.session("t", tenant="line\nbreak")


def test_a_tenant_is_saved_and_restored_and_not_overwritten(runtime):
    from antiphon import Session

    agent = runtime.agent()
    session = agent.session("s", tenant="acme")
    session.run("1")
    data = session.to_dict()
    assert data["tenant"] == "acme"
    copy = Session.from_dict({**data, "session_id": "copy"}, agent)
    assert copy.tenant == "acme"
    with pytest.raises(UsageError, match="'other'"):
        assert Session.from_dict({**data, "tenant": "other"}, agent, replace=True).messages
    without = {name: value for name, value in data.items() if name != "tenant"}
    assert Session.from_dict({**without, "messages": []}, agent, replace=True).tenant == "acme"


async def test_lists_are_iterated_without_await(runtime):
    agent = runtime.agent()
    await agent.session("s", metadata={"a": 1}).run_async("1")
    assert [one.session_id async for one in agent.sessions_async(metadata={"a": 1})] == ["s"]
    await runtime.aclose()


def test_a_client_lists_the_sessions_of_its_workers(workers_runtime):
    many(workers_runtime.agent(), 3)
    with Client(workers_runtime.url) as client:
        client.submit("t", "Hi", agent=workers_runtime.agent().spec(), tenant="acme").result(60)
        assert ids(client.sessions()) == ["t", "s2", "s1", "s0"]
        assert ids(client.sessions(tenant="acme")) == ["t"]
        page = client.sessions(metadata={"even": True}, limit=1)
        assert ids(page) == ["s2"]
        assert ids(client.sessions(metadata={"even": True}, cursor=page.cursor)) == ["s0"]


async def test_an_asynchronous_client_lists_them_too(workers_runtime):
    await workers_runtime.agent().session("s").run_async("1")
    await workers_runtime.aclose()
    async with AsyncClient(workers_runtime.url) as client:
        page = client.sessions(limit=1)
        assert [one.session_id async for one in page] == ["s"]
        assert page.cursor is None


def test_children_are_left_out_of_lists_unless_they_are_asked_for(runtime):
    agent = runtime.agent()
    session = agent.session("s")
    session.run("1")
    session.child(session_id="c").run("2")
    assert ids(agent.sessions()) == ["s"]
    assert sorted(ids(agent.sessions(children=True))) == ["c", "s"]
    (child,) = agent.sessions(parent="s")
    assert (child.session_id, child.parent) == ("c", "s")
    assert ids(agent.sessions(parent="other")) == []


def test_a_search_finds_ids_titles_agents_and_tenants_whatever_their_case(runtime):
    agent = runtime.agent(name="support")
    agent.session("order-17", metadata={"title": "Äpfel and pears"}, tenant="Acme").run("1")
    agent.session("order-18", metadata={"title": ["no text"]}).run("2")
    for text in ("17", "ÄPFEL AND", "acme", "order-17"):
        assert ids(agent.sessions(search=text)) == ["order-17"], text
    assert len(ids(agent.sessions(search="SUPPORT"))) == 2
    assert ids(agent.sessions(search="nothing")) == []
    assert len(ids(agent.sessions(search=""))) == 2


def test_a_search_goes_on_behind_the_sessions_that_one_call_looks_at(runtime, monkeypatch):
    monkeypatch.setattr(listing, "MOST_LOOKED_AT", 3)
    agent = runtime.agent()
    many(agent, 8)
    agent.session("last", metadata={"title": "needle"}).run("x")
    pages = paged(agent.sessions, search="s0", limit=1)
    assert flat(pages) == ["s0"]
    assert len(pages) >= 2


@pytest.mark.parametrize("wrong", [{"state": "busy"}, {"search": 5}, {"children": "yes"}, {"parent": 7}])
def test_a_wrong_filter_says_what_it_must_be(runtime, wrong):
    (name,) = wrong
    with pytest.raises(UsageError, match=f"{name}= must be"):
        runtime.agent().sessions(**wrong)
