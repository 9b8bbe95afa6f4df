"""A graph of LangGraph inside a turn: over HTTP against the model server, and with nodes that fail."""

import asyncio
import operator
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.runtime import Runtime
from langgraph.types import Command, interrupt
from redis import Redis
from support.docstrings import documented, type_in

from antiphon.errors import LimitReached, ProviderOverloaded, StepLimitReached, TurnFailed, UsageError
from antiphon.ext.langgraph import AntiphonSaver, GraphRunner
from antiphon.model import Retry
from antiphon.model.usage import Limits
from antiphon.tools import Context


def graph_of(**nodes: Any) -> StateGraph[Any]:
    """Nodes one after the other."""
    return StateGraph(MessagesState).add_sequence(list(nodes.items())).add_edge(START, next(iter(nodes)))


def asking(call_id: str, usage: int = 0) -> AIMessage:
    used: Any = {"input_tokens": usage, "output_tokens": 0, "total_tokens": usage}
    return AIMessage(
        "Let me look.", tool_calls=[{"id": call_id, "name": "look", "args": {}}], usage_metadata=used
    )


def says(*messages: Any) -> Any:
    return lambda state: {"messages": list(messages)}


@tool
def weather(city: str) -> str:
    """Say how the weather is."""
    return f"Sunny in {city}"


def test_a_graph_over_http_streams_and_keeps_what_it_says(runtime, use, models, redis_url):
    model = ChatOpenAI(model="gpt-4o", base_url=models.openai_url, api_key="any", stream_usage=True)

    async def ask(state: MessagesState, runtime: Runtime[Context]) -> Any:
        runtime.context.variables["asked"] = runtime.context.variables.get("asked", 0) + 1
        return {"messages": [await model.bind_tools([weather]).ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node("ask", ask).add_node("tools", ToolNode([weather]))
    graph.add_edge(START, "ask").add_conditional_edges("ask", tools_condition).add_edge("tools", "ask")
    use(GraphRunner(graph.compile(checkpointer=AntiphonSaver(redis_url))))
    session = runtime.agent().session("s")
    events = list(session.stream('call:weather {"city": "Paris"} length:5'))
    kinds = [event.type for event in events]
    assert [kind for kind in dict.fromkeys(kinds) if kind != "turn_queued"] == [
        "turn_started", "tool_call_delta", "step_finished", "tool_call", "tool_result", "text_delta",
        "variables_changed", "turn_finished",
    ]  # fmt: skip
    assert kinds.count("text_delta") >= 1
    assert "".join(event.arguments for event in events if event.type == "tool_call_delta").strip()
    response = events[-1].response
    assert response.tool_calls[0].result == "Sunny in Paris"
    assert response.text == "".join(event.text for event in events if event.type == "text_delta")
    assert response.usage.input_tokens > 0
    assert session.variables == {"asked": 2}
    assert session.run("And now? length:3").text
    assert [message.role for message in session.messages] == [
        "user", "assistant", "tool", "assistant", "user", "assistant",
    ]  # fmt: skip
    with pytest.raises(ProviderOverloaded):
        runtime.agent(retry=Retry(seconds=0)).session("t").run("fault:529")


class Busy(RuntimeError):
    status_code = 503


@pytest.mark.parametrize("dies_at", ["ask", "look", "end"])
def test_another_attempt_goes_on_from_the_checkpoint(runtime, use, redis_url, dies_at):
    ran = []

    def node(name, *messages):
        def run(state):
            ran.append(name)
            if name == dies_at and ran.count(name) == 1:
                raise Busy("busy")
            return {"messages": [*messages]}

        return run

    graph = graph_of(
        ask=node("ask", asking("c1", 7)),
        look=node("look", ToolMessage("seen", tool_call_id="c1")),
        end=node("end", ("assistant", "Done.")),
    )
    use(GraphRunner(graph.compile(checkpointer=AntiphonSaver(redis_url))))
    session = runtime.agent(retry=Retry(seconds=30, delay=0.01)).session("s")
    events = list(session.stream("Go"))
    assert ran == [name for name in ("ask", "look", "end") for _ in range(1 + (name == dies_at))]
    response = events[-1].response
    assert (response.text, response.usage.input_tokens) == ("Done.", 7)
    assert [one.result for one in response.tool_calls] == ["seen"]
    assert len([event for event in events if event.type == "tool_call"]) == 1
    assert [message.role for message in session.messages] == ["user", "assistant", "tool", "assistant"]
    assert [message.text for message in session.messages][::3] == ["Go", "Done."]


def test_a_turn_that_failed_leaves_nothing_to_the_next(runtime, use):
    seen = []

    def hear(state):
        seen.append([message.text for message in state["messages"]])
        if len(seen) == 2:
            raise KeyError("x")
        return {"messages": [("assistant", f"Answer {len(seen)}.")]}

    use(GraphRunner(graph_of(hear=hear).compile(checkpointer=InMemorySaver())))
    session = runtime.agent(system="Be brief.").session("s")
    assert session.run("one").text == "Answer 1."
    with pytest.raises(TurnFailed, match="KeyError"):
        session.run("two")
    assert session.run("three").text == "Answer 3."
    assert seen[2] == ["Be brief.", "one", "Answer 1.", "three"]


def test_a_call_id_that_comes_again_keeps_its_result(runtime, use):
    graph = graph_of(
        a=says(asking("c")),
        b=says(ToolMessage("first", tool_call_id="c")),
        c=says(asking("c")),
        d=says(ToolMessage("second", tool_call_id="c")),
        e=says(("assistant", "Done.")),
    )
    use(GraphRunner(graph.compile(checkpointer=InMemorySaver())))
    session = runtime.agent().session("s")
    assert [one.result for one in session.run("Go").tool_calls] == ["first", "second"]
    assert session.run("Again").text == "Done."


@pytest.mark.parametrize(
    ("details", "read", "written"),
    [
        ({"cache_read": 3, "cache_creation": 5}, 3, 5),
        (
            {
                "cache_read": 3,
                "cache_creation": 0,
                "ephemeral_5m_input_tokens": 4,
                "ephemeral_1h_input_tokens": 1,
            },
            3,
            5,
        ),
        ({"priority_cache_read": 3, "priority_cache_creation": 5, "priority": 9}, 3, 5),
        ({}, 0, 0),
    ],
)
def test_what_a_service_read_from_and_wrote_to_its_cache_is_counted(runtime, use, details, read, written):
    used: Any = {"input_tokens": 9, "output_tokens": 1, "total_tokens": 10, "input_token_details": details}
    graph = graph_of(a=says(AIMessage("Hello", usage_metadata=used)))
    use(GraphRunner(graph.compile(checkpointer=InMemorySaver())))
    usage = runtime.agent().session("s").run("Hi").usage
    assert (usage.cached_input_tokens, usage.cache_write_tokens) == (read, written)


def test_limits_hold(runtime, use):
    graph = StateGraph(MessagesState).add_node("ask", lambda state: {"messages": [asking("c", 100)]})
    graph.add_edge(START, "ask").add_edge("ask", "ask")
    use(GraphRunner(graph.compile(checkpointer=InMemorySaver())))
    with pytest.raises(StepLimitReached):
        runtime.agent(max_steps=3).session("s").run("Go")
    with pytest.raises(LimitReached, match="tokens"):
        runtime.agent(limits=Limits(tokens=150)).session("s").run("Go")


@pytest.mark.parametrize("saver", [lambda url: InMemorySaver(), AntiphonSaver], ids=["memory", "redis"])
def test_state_beside_the_messages_goes_from_turn_to_turn_and_back_with_the_history(
    runtime, use, redis_url, saver
):
    class State(MessagesState):
        seen: Annotated[list[str], operator.add]
        count: int

    def hear(state):
        text = state["messages"][-1].text
        if text == "fail":
            raise KeyError(text)
        count = state.get("count", 0) + 1
        answer = f"{count}: {', '.join([*state['seen'], text])} of {len(state['messages'])}"
        return {"messages": [("assistant", answer)], "seen": [text], "count": count}

    graph = StateGraph(State).add_node("hear", hear).add_edge(START, "hear")
    use(GraphRunner(graph.compile(checkpointer=saver(redis_url))))
    session = runtime.agent().session("s")
    assert session.run("a").text == "1: a of 1"
    assert session.run("b").text == "2: a, b of 3"
    with pytest.raises(TurnFailed):
        session.run("fail")
    assert session.run("c").text == "3: a, b, c of 5", "a failed turn leaves nothing"
    session.fork("other")
    session.rewind(session.messages[1].id)
    assert session.run("d").text == "2: a, d of 3", "the state is that of the history"
    assert runtime.agent().session("other").run("e").text == "4: a, b, c, e of 7"


def test_a_state_of_its_own_has_its_own_input_and_answer(runtime, use):
    class State(MessagesState):
        topic: str
        title: str

    graph = StateGraph(State).add_node("name", lambda state: {"title": state["topic"].title()})
    graph = graph.add_edge(START, "name").compile(checkpointer=InMemorySaver())
    use(
        GraphRunner(
            graph,
            make_input=lambda turn: {"topic": turn.input[-1].text},
            answer=lambda state: state["title"],
        )
    )
    assert runtime.agent().session("s").run("a long way").text == "A Long Way"


def test_what_a_turn_cannot_do_is_refused(runtime, use):
    with pytest.raises(UsageError, match="checkpointer"):
        GraphRunner(graph_of(a=says()).compile())
    waits = graph_of(a=lambda state: {"messages": [("assistant", interrupt("name?"))]})
    use(GraphRunner(waits.compile(checkpointer=InMemorySaver())))
    with pytest.raises(TurnFailed, match="stopped at an interrupt before a") as failed:
        runtime.agent().session("s").run("Go")
    assert failed.value.code == "turn_function"
    use(GraphRunner(graph_of(a=says()).compile(checkpointer=InMemorySaver())))
    with pytest.raises(TurnFailed, match="returned no answer"):
        runtime.agent().session("s").run("Go")


@pytest.mark.one_server
def test_its_example(redis_url):
    example = next(iter(documented("antiphon.ext.langgraph", ("GraphRunner",))))
    type_in(example, {"redis://localhost:6379/0": redis_url})


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
