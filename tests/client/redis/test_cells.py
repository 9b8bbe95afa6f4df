"""Sessions over two cells: what belongs together may live apart, and nobody notices."""

import pytest
from redis import Redis

from antiphon import Agent, Message
from antiphon.errors import SessionExists, UsageError
from antiphon.input.ids import new_turn_id
from antiphon.redis.cells import open_cells
from antiphon.session.runtime import Branch
from antiphon.wire.cell import Cell
from antiphon.wire.connection.open import open_redis
from antiphon.wire.keys import Keys

HISTORY = [Message.user("hi"), Message.assistant("hello")]
NAMES = [f"session-{number}" for number in range(12)]


@pytest.fixture
def cells(redis_url):
    return [redis_url, redis_url.removesuffix("/0") + "/1"]


def test_a_fork_on_another_cell_is_whole(cells):
    agent = Agent("scripted", "m", redis=cells)
    source = agent.session(
        "source", system="S", messages=HISTORY, variables={"x": 1}, metadata={"m": 1}, ttl=3600
    )
    for name in NAMES:
        fork = source.fork(name)
        assert [message.text for message in fork.messages] == ["hi", "hello"]
        assert (fork.system, dict(fork.variables), fork.metadata) == ("S", {"x": 1}, {"m": 1})
        fork.add_message(Message.user("more"))
        with pytest.raises(SessionExists):
            source.fork(name)
        assert len(fork.messages) == 3
    assert len(source.messages) == 2
    assert {branch.session_id for branch in source.branches()} == {*NAMES}
    assert {branch.at for branch in source.branches()} == {source.messages[-1].id}
    assert found_on(cells) == {0, 1}
    with pytest.raises(SessionExists):
        source.fork("source")


@pytest.mark.lasting_keys("ant:session:*", "ant:history:*", "ant:events:*")
@pytest.mark.parametrize(("ttl", "left"), [(3600, 3600), (None, -1)])
def test_a_fork_on_another_cell_lives_as_long_as_its_source(ttl, left, cells):
    agent = Agent("scripted", "m", redis=cells)
    agent.session("source", messages=HISTORY, ttl=ttl).status()
    source = agent.session("source")
    for name in NAMES:
        source.fork(name)
    for url in cells:
        with Redis.from_url(url) as redis:
            lives = [redis.ttl(key) for key in redis.scan_iter("ant:history:*")]
            assert lives
            assert all(left - 60 < life <= left for life in lives)
            redis.flushdb()


def test_a_fork_on_another_cell_has_the_history_up_to_a_message(cells):
    agent = Agent("scripted", "m", redis=cells)
    source = agent.session("source", messages=HISTORY)
    at = source.messages[0].id
    for name in NAMES:
        fork = source.fork(name, at=at)
        assert fork.messages == source.messages[:1]
        assert fork.branch == Branch(name, "source", at)
    source.close()
    assert found_on(cells) == {0, 1}
    assert len({source.fork().session_id for _ in NAMES}) == len(NAMES), "a closed session can be forked"


def test_the_summary_and_the_window_of_a_fork_on_another_cell_fit_its_history(cells):
    agent = Agent("scripted", "m", redis=cells)
    source = agent.session("source", messages=HISTORY)
    first = source.messages[0].id
    keys = Keys("ant")
    for url in cells:
        with Redis.from_url(url) as redis:
            if redis.exists(keys.session("source")):
                redis.hset(keys.session("source"), mapping={"window": "1:5", "summary": "2:They met."})
    for name in NAMES:
        source.fork(name)
        source.fork(f"{name}-short", at=first)
    fields = {name: of(cells, name) for name in (*NAMES, *(f"{name}-short" for name in NAMES))}
    assert {fields[name] for name in NAMES} == {(b"1:5", b"2:They met.")}
    assert {fields[f"{name}-short"] for name in NAMES} == {(None, None)}


def of(cells, name):
    """What a session keeps about its history."""
    for url in cells:
        with Redis.from_url(url) as redis:
            if redis.exists(Keys("ant").session(name)):
                return tuple(redis.hmget(Keys("ant").session(name), "window", "summary"))
    raise AssertionError(name)


def test_a_taken_id_on_another_cell_is_refused_though_it_has_no_history(cells):
    agent = Agent("scripted", "m", redis=cells)
    source = agent.session("source", messages=HISTORY)
    for name in NAMES:
        agent.session(name, metadata={"taken": True}).status()
        with pytest.raises(SessionExists):
            source.fork(name)


def test_children_on_other_cells_are_known_to_their_parent(cells):
    agent = Agent("scripted", "m", redis=cells)
    parent = agent.session("parent", messages=HISTORY)
    for name in NAMES:
        child = parent.child(session_id=name)
        child.add_message(Message.user("alone"), Message.assistant(f"done: {name}"))
        child.report()
    assert sorted(parent.children()) == sorted(NAMES)
    assert [message.text for message in parent.messages[2:]] == [f"done: {name}" for name in NAMES]
    assert found_on(cells) == {0, 1}


def found_on(cells):
    """The cells on which some of the named sessions live."""
    found = set()
    for number, url in enumerate(cells):
        with Redis.from_url(url) as redis:
            if any(redis.exists(Keys().session(name)) for name in NAMES):
                found.add(number)
    return found


def test_a_worker_whose_url_has_no_name_takes_the_jobs_of_its_cell_only():
    """As RQ's do, which cannot read names."""
    cells = open_cells(["redis://h:1?names=a", "redis://i:1?names=b"])
    places = {name: Cell(open_redis(url)) for name, url in (("a", "redis://h:1"), ("b", "redis://i:1"))}
    for session in NAMES:
        home = cells.of_session(session).name
        cells.check_place(places[home], session, new_turn_id(session))
        with pytest.raises(UsageError, match=f"lives on the cell {home}, not on"):
            cells.check_place(places["b" if home == "a" else "a"], session, new_turn_id(session))
