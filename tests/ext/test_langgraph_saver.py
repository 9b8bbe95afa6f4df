"""The checkpointer passes LangGraph's own conformance suite, on every server, and works in graphs."""

import asyncio
from typing import Annotated, Any

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from redis import Redis
from support.docstrings import documented, type_in

from antiphon.ext.langgraph import AntiphonSaver


async def test_the_conformance_suite_of_langgraph(redis_url):
    @checkpointer_test(name="AntiphonSaver")
    async def saver():
        made = AntiphonSaver(redis_url)
        yield made
        await made.aclose()

    report = await validate(saver)
    found = report.to_dict()
    failures = {name: one.failures for name, one in report.results.items() if one.tests_failed}
    assert failures == {}
    assert {name for name, one in report.results.items() if one.passed} >= {
        "put", "put_writes", "get_tuple", "list", "delete_thread", "copy_thread",
    }, found  # fmt: skip
    assert sum(one.tests_passed for one in report.results.values()) > 50


def add(left, right):
    return left + right


class State(MessagesState):
    seen: Annotated[int, add]


def counting(saver) -> Any:
    def ask(state):
        return {"messages": [("assistant", f"Hello, {interrupt('name?')}")], "seen": 1}

    return StateGraph(State).add_node("ask", ask).add_edge(START, "ask").compile(checkpointer=saver)


@pytest.mark.one_server
def test_a_graph_waits_and_goes_on_elsewhere(redis_url):
    thread = {"configurable": {"thread_id": "t"}}
    counting(AntiphonSaver(redis_url)).invoke({"messages": [("user", "Hi")], "seen": 0}, thread)
    other = counting(AntiphonSaver(redis_url))
    assert other.get_state(thread).next == ("ask",)
    state = other.invoke(Command(resume="Alice"), thread)
    assert (state["messages"][-1].content, state["seen"]) == ("Hello, Alice", 1)
    history = list(other.get_state_history(thread))
    assert [one.metadata["step"] for one in history] == sorted(
        (one.metadata["step"] for one in history), reverse=True
    )
    assert len(list(AntiphonSaver(redis_url).list(None, limit=2))) == 2
    with Redis.from_url(redis_url) as redis:
        keys = redis.keys("ant:graph:*")
        assert len(keys) == 2
        assert all(29 * 86400 < redis.ttl(key) <= 30 * 86400 for key in keys)
    AntiphonSaver(redis_url).delete_thread("t")
    assert other.get_state(thread).values == {}


@pytest.mark.one_server
async def test_names_that_resemble_each_other_stay_apart(redis_url):
    saver = AntiphonSaver(redis_url, ttl=60)
    graphs = [counting(saver)]
    for thread in ("a", "a:b", "index:a", "a\x00b"):
        await graphs[0].ainvoke(
            {"messages": [("user", thread)], "seen": 0}, {"configurable": {"thread_id": thread}}
        )
    await saver.adelete_thread("a")
    kept = [
        await graphs[0].aget_state({"configurable": {"thread_id": one}})
        for one in ("a:b", "index:a", "a\x00b")
    ]
    assert [one.values["messages"][0].content for one in kept] == ["a:b", "index:a", "a\x00b"]
    await saver.aclose()


@pytest.mark.one_server
async def test_writes_side_by_side_are_all_kept(redis_url):
    saver = AntiphonSaver(redis_url)
    config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    from langgraph.checkpoint.base import empty_checkpoint

    where = await saver.aput(config, empty_checkpoint(), {}, {})
    await asyncio.gather(*(saver.aput_writes(where, [("c", n)], f"task-{n:02}") for n in range(20)))
    await saver.aput_writes(where, [("c", "again")], "task-00")
    found = await saver.aget_tuple(where)
    assert [value for _, _, value in found.pending_writes] == list(range(20))
    await saver.aclose()


@pytest.mark.one_server
def test_the_example_of_its_docstring(redis_url):
    example = next(iter(documented("antiphon.ext.langgraph", ("AntiphonSaver",))))
    type_in(example, {"redis://localhost:6379/0": redis_url})
