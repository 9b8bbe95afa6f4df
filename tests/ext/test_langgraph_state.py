"""The state of a graph goes from turn to turn through dead workers, with keys, and is forgotten with its session."""

import pytest
from redis import Redis
from support.eventually import wait_until
from support.leaks import MARKER, Recorder, dumped, holds

from antiphon import Client
from antiphon.encryption import KEYS_VARIABLE, new_key

APP = """
import operator
import os
from typing import Annotated

from langgraph.graph import START, MessagesState, StateGraph

from antiphon import Agent
from antiphon.ext.langgraph import AntiphonSaver, GraphRunner
from antiphon_worker import App


class State(MessagesState):
    seen: Annotated[list[str], operator.add]


def hear(state):
    return {"seen": [state["messages"][-1].text]}


def say(state):
    if state["seen"][-1] == "wait" and not os.path.exists(os.environ["HELD"]):
        open(os.environ["HELD"], "w").close()
        while True:
            pass
    return {"messages": [("assistant", " ".join(state["seen"]))]}


graph = StateGraph(State).add_sequence([("hear", hear), ("say", say)]).add_edge(START, "hear")
runner = GraphRunner(graph.compile(checkpointer=AntiphonSaver(os.environ["ANTIPHON_REDIS_URL"], ttl=600)))
app = App(agents=[Agent("graph", "any", name="parrot")], providers={"graph": runner})
"""


def threads(url):
    with Redis.from_url(url) as redis:
        return {*redis.keys("ant:graph:*")}


@pytest.mark.one_server
def test_state_survives_dead_workers_is_encrypted_and_is_forgotten_with_its_session(
    processes, redis_url, tmp_path, monkeypatch
):
    monkeypatch.setenv(KEYS_VARIABLE, new_key("k1"))
    (tmp_path / "app.py").write_text(APP)
    held = tmp_path / "held"
    env = {"PYTHONPATH": str(tmp_path), "HELD": str(held), "ANTIPHON_REDIS_URL": redis_url}
    flags = ("--app", "app:app", "--processes", "1", "--lease", "1")
    recorder = Recorder(redis_url)
    worker = processes.worker(redis_url, *flags, env=env)
    with Client(redis_url) as client:
        for tenant in ("a", "b"):
            turn = client.submit(f"s-{tenant}", f"{MARKER} {tenant}", agent="parrot", tenant=tenant)
            assert turn.result(60).text == f"{MARKER} {tenant}"
        turn = client.submit("s-a", "wait", agent="parrot", tenant="a")
        wait_until(held.exists, 60, "the second node runs")
        worker.kill()
        processes.worker(redis_url, *flags, env=env)
        assert turn.result(60).text == f"{MARKER} a wait", "the node that had finished has not run again"
        last = client.submit("s-a", "again", agent="parrot", tenant="a")
        assert last.result(60).text == f"{MARKER} a wait again"
        with Redis.from_url(redis_url) as redis:
            assert [key for key, data in dumped(redis).items() if holds(data)] == []
        assert [command[:200] for command in recorder.stop() if holds(command)] == []
        assert len(threads(redis_url)) == 2 * 4
        forgotten = client.forget(tenant="a")
        assert (forgotten.sessions, forgotten.left) == (["s-a"], [])
        assert {key.split(b":")[3] for key in threads(redis_url)} == {b"s-b"}
        assert client.submit("s-b", "on", agent="parrot", tenant="b").result(60).text == f"{MARKER} b on"
