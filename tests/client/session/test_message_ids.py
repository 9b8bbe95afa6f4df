"""Every message of a history has an id that stays, and the time when it was said, in this process and on workers."""

from __future__ import annotations

import threading

from redis import Redis
from support.eventually import wait_until, wait_until_async

from antiphon import Client, Message, Session, tool
from antiphon.input.values import now_ms
from antiphon.model import encode
from antiphon.testing import script, tool_call


def ids(session):
    return [message.id for message in session.messages]


@tool
def look() -> str:
    """Look."""
    return "seen"


def test_the_messages_of_a_turn_are_numbered_under_its_id(runtime):
    runtime.use(script([tool_call("look")], "done", "b"))
    session = runtime.agent(tools=[look]).session("s")
    first = session.run("1")
    second = session.submit("2")
    second.result(60)
    expected = [f"{first.turn_id}.{n}" for n in (1, 2, 3, 4)] + [f"{second.id}.1", f"{second.id}.2"]
    assert ids(session) == expected
    assert [message.id for message in first.messages] == expected[1:4]
    assert [message.id for message in session.history(-3, -1)] == expected[-3:-1]
    assert ids(runtime.agent().session("s")) == expected


def test_messages_that_no_turn_brought_have_ids_too(runtime):
    opening = [Message.user("1"), Message.assistant("2")]
    session = runtime.agent().session("s", messages=opening)
    mine = Message("user", [], id="mine", created=7)
    session.add_message(mine, {"role": "assistant", "content": "3"})
    session.add_message(mine)
    child = session.child()
    child.run("look it up")
    child.report()
    found = ids(session)
    assert len(set(found)) == len(found) == 6
    assert None not in found
    assert "mine" not in found
    assert [message.id for message in [*opening, mine]] == [None, None, "mine"], (
        "the caller's stay as they are"
    )
    assert [message.created for message in session.history(2, 3)] == [7]
    assert all((message.created or 0) > 7 for message in [*session.history(3, 4), *session.history(5)])
    assert ids(session) == found


def test_a_fork_and_a_saved_session_keep_the_ids(runtime):
    session = runtime.agent().session("s", messages=[Message.user("1")])
    session.run("2")
    assert ids(session.fork()) == ids(session)
    data = {**session.to_dict(), "session_id": "copy"}
    assert ids(Session.from_dict(data, runtime.agent())) == ids(session)


def test_an_imported_history_has_ids_that_stay(runtime):
    messages = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]
    data = {"version": 1, "session_id": "s", "messages": messages}
    session = Session.from_dict(data, runtime.agent())
    assert ids(session) == ["h0", "h1"]
    session.run("3")
    assert ids(session)[:2] == ["h0", "h1"]
    again = Session.from_dict({**data, "session_id": "t"}, runtime.agent())
    again.status()
    assert ids(Session.from_dict({**data, "session_id": "t"}, runtime.agent())) == ["h0", "h1"]


def test_a_history_of_an_older_release_has_ids_from_its_places(workers_runtime):
    old = [
        encode(Message("user", turn_id="t")),
        encode(Message("assistant", turn_id="t")),
        encode(Message("user")),
    ]
    with Redis.from_url(workers_runtime.url) as redis:
        redis.hset("ant:session:s", mapping={"created": 1, "ttl": 60_000, "seq": 0})
        redis.rpush("ant:history:s", *old)
    session = workers_runtime.agent().session("s")
    expected = ["t.h0", "t.h1", "h2"]
    assert ids(session) == expected
    assert [message.id for message in session.history(-2)] == expected[-2:]
    assert [message.id for message in session.history(1, 2)] == expected[1:2]
    with Client(workers_runtime.url) as client:
        assert [message.id for message in client.snapshot("s").messages] == expected
    turn = session.submit("next")
    turn.result(60)
    assert ids(session) == [*expected, f"{turn.id}.1", f"{turn.id}.2"]


def test_a_message_has_the_time_when_it_was_said(runtime):
    said: dict[str, int] = {}
    go = threading.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        said["called"] = now_ms()
        await wait_until_async(go.is_set, timeout=20, description="the test goes on")
        await wait_until_async(lambda: now_ms() > said["called"] + 20, description="a time has passed")
        said["came"] = now_ms()
        return "here"

    runtime.use(script("first", [tool_call("wait")], "done", "more"))
    session = runtime.agent(tools=[wait]).session("s")
    before = now_ms()
    turn = session.submit("1", delay=0.05)
    turn.result(60)
    assert before - 5 <= session.messages[0].created < session.messages[1].created - 20, (
        "said when it was submitted"
    )
    turn, later = session.submit("2"), session.submit("3")
    submitted = now_ms()
    wait_until(lambda: "called" in said, description="the tool runs")
    go.set()
    turn.result(60)
    later.result(60)
    asked, call, result, answer, waited, _ = session.messages[2:]
    assert asked.created <= submitted + 5
    assert call.created <= said["called"]
    assert said["came"] <= result.created <= answer.created
    assert waited.created <= submitted + 5, "it waited for the turn before it"


def test_a_repaired_answer_stands_behind_its_question_and_both_have_ids(runtime):
    runtime.use(script("no JSON", '{"name": "Alice"}'))
    session = runtime.agent().session("s")
    before = now_ms()
    response = session.json("Who?", schema={"type": "object", "required": ["name"]})
    question, answer = session.messages
    assert answer.id == response.messages[-1].id
    assert question.id not in (None, answer.id)
    assert before - 5 <= question.created <= answer.created
