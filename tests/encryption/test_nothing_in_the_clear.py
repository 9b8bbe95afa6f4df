"""Turns of every kind with a marker in all that users, tools and models write: it never reaches Redis or an archive."""

from __future__ import annotations

from base64 import b64encode

import pytest
from redis import Redis
from support.archives import end_life, is_archived
from support.eventually import wait_until
from support.gates import Gate
from support.leaks import CORE, MARKER, holds
from support.receiver import Receiver

from antiphon import Agent, Client, Message, tool
from antiphon.errors import AgentError, ProviderRejected, ProviderUnreachable, TurnCancelled
from antiphon.model import File, Image, Item
from antiphon.stores import MemoryStore, PostgresStore, RedisStore, SQLiteStore
from antiphon.testing import answer, script, tool_call
from antiphon.tools import Context
from antiphon.window import Summary

pytestmark = pytest.mark.one_server

SAID = f"{MARKER} was said"


@tool
def look(at: str, context: Context) -> str:
    """Look."""
    context.progress(f"{MARKER} progress", 0.5)
    context.emit("seen", {"what": MARKER})
    context.variables["seen"] = MARKER
    return f"{MARKER} was seen at {at}"


@tool
def breaks() -> str:
    """Break."""
    raise ValueError(f"{MARKER} broke")


@tool
async def settle(context: Context) -> str:
    """Settle."""
    step = await context.step("note", lambda: f"{MARKER} step")
    paid = await context.wait_for_event("paid", timeout=60)
    return f"{step}, {paid['what']}"


@tool(approval=True)
def pay(to: str) -> str:
    """Pay."""
    return f"{MARKER} was paid to {to}"


def entries(*which):
    """A script in which each answer holds the marker."""
    return script(*which or (SAID,), repeat=True)


def ended(turn):
    wait_until(lambda: turn.status() in ("finished", "failed", "cancelled"), description="the turn has ended")
    return turn


def test_an_answer_with_tools(deployment):
    deployment.use(entries([SAID, tool_call("look", at=MARKER), tool_call("breaks")], SAID))
    session = deployment.agent(tools=[look, breaks], system=f"{MARKER} instructions").session(
        "s", system=MARKER, variables={"name": MARKER}, metadata={"title": MARKER}
    )
    turn = session.submit(SAID, metadata={"about": MARKER}, key=f"{MARKER} key")
    assert turn.result(20).text == SAID
    events = list(turn.stream())
    assert {"custom", "tool_progress", "tool_result", "text_delta", "variables_changed"} <= {
        one.type for one in events
    }
    assert "".join(one.text for one in events if one.type == "text_delta" and one.step == 2) == SAID
    info = turn.info()
    assert (info.input[0].text, info.key, info.metadata) == (SAID, f"{MARKER} key", {"about": MARKER})
    assert session.variables == {"name": MARKER, "seen": MARKER}
    assert (session.system, dict(session.metadata)) == (MARKER, {"title": MARKER})
    assert [message.role for message in session.messages] == ["user", "assistant", "tool", "assistant"]
    again = session.submit(SAID, metadata={"about": MARKER}, key=f"{MARKER} key")
    assert again.id == turn.id


def test_structured_output(deployment):
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    deployment.use(entries({"name": MARKER}))
    assert deployment.agent().session("s").json(SAID, schema=schema).output == {"name": MARKER}


def test_a_call_that_is_approved_with_other_arguments_and_one_that_is_rejected(deployment):
    deployment.use(script([tool_call("pay", to=MARKER), tool_call("pay", to=f"{MARKER} 2")], SAID))
    session = deployment.agent(tools=[pay]).session("s")
    turn = session.submit(SAID)
    wait_until(lambda: turn.status() == "suspended", description="it waits")
    with Client(deployment.url) as client:
        [waiting] = client.waiting()
    assert [call.arguments["to"] for call in waiting.calls] == [MARKER, f"{MARKER} 2"]
    first, second = turn.info().calls
    turn.approve(first.call_id, by=MARKER, arguments={"to": f"{MARKER} instead"})
    with pytest.raises(AgentError) as raised:
        turn.reject(first.call_id)
    assert raised.value.decision.arguments == {"to": f"{MARKER} instead"}
    turn.reject(second.call_id, reason=f"{MARKER} no")
    assert turn.result(20).text == SAID
    [resumed] = [one for one in turn.stream() if one.type == "turn_resumed"]
    assert [one.by for one in resumed.decisions] == [MARKER, None]
    assert [one.reason for one in session.messages[2].decisions] == [None, f"{MARKER} no"]


def test_a_tool_of_the_caller(deployment):
    deployment.use(script(tool_call("ask", question=MARKER), SAID))
    ask = {"name": "ask", "description": MARKER, "parameters": {"type": "object", "properties": {}}}
    turn = deployment.agent(caller_tools=[ask]).session("s").submit(SAID)
    wait_until(lambda: turn.status() == "suspended", description="it waits")
    turn.tool_result(turn.info().calls[0].call_id, f"{MARKER} result")
    assert turn.result(20).tool_calls[0].result == f"{MARKER} result"


def test_steering_interrupting_and_cancelling(deployment):
    gate, other, third = Gate(), Gate(), Gate()

    @tool
    async def wait() -> str:
        """Wait."""
        await gate()
        return MARKER

    deployment.use(script(tool_call("wait"), SAID, [SAID, other], SAID, [SAID, third]))
    session = deployment.agent(tools=[wait]).session("s")
    first = session.submit(SAID)
    gate.wait()
    steering = session.submit(f"{MARKER} also", if_busy="steer")
    gate.opened.set()
    assert first.result(20).text == SAID
    assert ended(steering).info().steered_into == first.id
    second = session.submit(SAID)
    other.wait()
    third_turn = session.submit(SAID, if_busy="interrupt")
    with pytest.raises(TurnCancelled):
        second.result(20)
    assert third_turn.result(20).text == SAID
    fourth = session.submit(SAID)
    third.wait()
    fourth.cancel(f"{MARKER} reason", keep="partial")
    with pytest.raises(TurnCancelled, match=MARKER):
        fourth.result(20)
    assert [one.reason for one in fourth.stream() if one.type == "turn_cancelled"] == [f"{MARKER} reason"]
    assert fourth.info().error == f"{MARKER} reason"


def test_rewinds_edits_forks_files_and_messages(deployment):
    deployment.use(entries())
    session = deployment.agent().session("s", variables={"v": MARKER})
    session.run(SAID)
    session.run(f"{MARKER} 2")
    question = session.messages[2]
    session.edit(question.id, f"{MARKER} instead").result(20)
    session.regenerate().result(20)
    fork = session.fork("fork", at=session.messages[1].id)
    assert [message.text for message in fork.messages] == [SAID, SAID]
    assert fork.variables == {"v": MARKER}
    assert fork.run(f"{MARKER} in the fork").text == SAID
    child = session.child(session_id="child", system=MARKER, variables={"c": MARKER})
    assert child.run(SAID).text == SAID
    session.add_message(Message.user(f"{MARKER} added"))
    session.add_file(File(name=f"{CORE}.txt", url=f"https://example.com/{CORE}"))
    session.set_variables({"w": MARKER})
    session.set_metadata({"m": MARKER})
    session.rewind(session.messages[1].id)
    assert len(session.messages) == 2
    assert deployment.agent().session("s").messages == session.messages
    with Client(deployment.url) as client:
        [listed] = [one for one in client.sessions() if one.session_id == "s"]
        assert listed.metadata == {"m": MARKER}
        assert client.snapshot("s").messages == session.messages
    session.clear()


def test_stored_files(deployment):
    content = SAID.encode() * 20_000
    picture = Image(data=b64encode(content + b"2").decode(), media_type="image/png")
    deployment.use(script([SAID, Item("scripted", {"drawn": b64encode(content + b"3").decode()})], SAID))
    session = deployment.agent().session("s")
    file = session.add_file(content, name=f"{CORE}.txt")
    session.run([SAID, file, picture])
    session.run(SAID)
    assert session.read_file(file).data == content
    assert session.fork("fork").read_file(file).data == content
    assert sorted(one.size for one in session.stored_files()) == [len(content) + n for n in (0, 1, 1)]


def test_summaries(deployment):
    def said(request):
        if request.messages[-1].text.startswith("Write a summary"):
            return answer(f"{MARKER} summary")
        return answer(SAID)

    deployment.use(script(said, repeat=True))
    session = deployment.agent(window=Summary(turns=2)).session("s")
    for _ in range(6):
        session.run(SAID)
    assert MARKER in session.to_dict()["summary"]["text"]


def test_titles(deployment):
    deployment.app.titles = lambda messages: f"{MARKER} title"
    deployment.app._note_turns()
    deployment.restart()
    deployment.use(script(SAID, repeat=True))
    session = deployment.agent().session("s")
    session.run(SAID)
    wait_until(lambda: session.metadata.get("title") == f"{MARKER} title", description="it has a title")
    assert session.to_dict()["titled"]["title"] == f"{MARKER} title"


def test_failures_and_what_comes_after_them(deployment):
    deployment.use(script(
        ProviderRejected(f"{MARKER} refused"), SAID, [SAID, ProviderUnreachable(f"{MARKER} gone")], SAID,
    ))  # fmt: skip
    session = deployment.agent().session("s")
    turn = session.submit(SAID)
    with pytest.raises(AgentError, match=MARKER):
        turn.result(20)
    assert turn.info().error == f"{MARKER} refused"
    with Client(deployment.url) as client:
        [failed] = client.failed()
        assert failed.error == f"{MARKER} refused"
    turn.requeue()
    assert turn.result(20).text == SAID
    assert [run.error for run in turn.runs()] == [f"{MARKER} refused", None]
    with pytest.raises(AgentError, match=MARKER):
        session.submit(SAID).result(20)


def test_delayed_turns_schedules_and_those_who_follow_all(deployment):
    deployment.use(entries())
    session = deployment.agent().session("s")
    session.submit(SAID, delay=0.1).result(20)
    agent = Agent("scripted", "any", system=MARKER)
    with Client(deployment.url) as client:
        schedules = client.schedules("s")
        schedules.set("often", SAID, every=1, agent=agent)
        wait_until(lambda: len(session.messages) >= 4, description="the schedule has submitted a turn")
        [one] = schedules
        assert (one.name, one.error) == ("often", None)
        schedules.delete("often")
        session.close()
        client.schedules("s").set("refused", SAID, every=1, agent=agent)
        wait_until(lambda: next(iter(client.schedules("s"))).error, description="its turn is refused")
        client.schedules("s").delete("refused")


def test_steps_and_sent_events(deployment):
    deployment.use(entries(tool_call("settle"), SAID))
    turn = deployment.agent(tools=[settle]).session("s").submit(SAID)
    wait_until(lambda: turn.status() == "suspended", description="it waits for the event")
    with Client(deployment.url) as client:
        assert client.send_event("paid", {"what": MARKER}, key=f"{MARKER} key") == 1
        assert turn.result(20).tool_calls[0].result == f"{MARKER} step, {MARKER}"
        schedules = client.schedules("t")
        schedules.set("paid", SAID, on="paid", agent=Agent("scripted", "any", system=MARKER))
        assert client.send_event("paid", {"what": MARKER}) == 1
        [one] = schedules
        started = client.turn(one.last_turn)
        assert started.result(20).text
        assert MARKER in started.info().input[1].text
        schedules.delete("paid")


def test_webhooks(deployment):
    deployment.use(entries())
    with Receiver() as receiver, Client(deployment.url) as client:
        receiver.answers = [500]
        hooks = client.webhooks()
        hooks.set("billing", f"{receiver.url}/{CORE}", types=["turn_finished"], private=True)
        assert [one.url for one in hooks] == [f"{receiver.url}/{CORE}"]
        deployment.agent().session("s").run(SAID)
        wait_until(lambda: len(receiver.received) >= 1, description="the event is sent")
        assert MARKER in receiver.received[0].body.decode()
        wait_until(lambda: next(iter(hooks)).error, description="the failure is noted")
        hooks.delete("billing")


@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis", "postgres"])
def test_archives(deployment, kind, tmp_path, request):
    store = {
        "memory": MemoryStore,
        "sqlite": lambda: SQLiteStore(tmp_path / "archive.db"),
        "redis": lambda: RedisStore(deployment.url),
        "postgres": lambda: PostgresStore(request.getfixturevalue("postgres").url, table="sealed"),
    }[kind]()
    store.delete("s")
    deployment.use(entries())
    deployment.app._store = store
    session = deployment.agent().session("s", ttl=600, metadata={"m": MARKER})
    deployment.restart()
    session.run(SAID)
    with Redis.from_url(deployment.url) as redis:
        wait_until(lambda: is_archived(redis, "s"), description="it is archived")
    assert holds(str(store.load("s")).encode()) is not deployment.sealed
    if kind == "sqlite":
        found = b"".join(path.read_bytes() for path in tmp_path.glob("archive.db*"))
        assert holds(found) is not deployment.sealed
    end_life(deployment.url, "s")
    assert session.run(f"{MARKER} 2").text == SAID
    assert [message.text for message in session.messages] == [SAID, SAID, f"{MARKER} 2", SAID]


def test_requests_that_are_kept(deployment):
    deployment.app.keep_requests = True
    deployment.use(entries())
    turn = deployment.agent(system=f"{MARKER} instructions").session("s").submit(SAID)
    assert turn.result(20).text == SAID
    [one] = turn.requests()
    assert one.body["system"] == f"{MARKER} instructions"
