"""Sessions over two cells: what belongs together may live apart, and nobody notices."""

import pytest
from redis import Redis

from antiphon import Agent, Message
from antiphon.errors import SessionExists
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
    assert found_on(cells) == {0, 1}
    with pytest.raises(SessionExists):
        source.fork("source")


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
