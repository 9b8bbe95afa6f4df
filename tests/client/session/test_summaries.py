"""Long histories summed up by the session's own model, the same in this process and on workers."""

from __future__ import annotations

import json
import logging
import textwrap
import threading

import pytest
from support.eventually import wait_until_async
from support.models import ModelProcess

from antiphon import Agent, Message, Session, tool
from antiphon.errors import AgentError, CorruptRecord, ProviderOverloaded, TurnCancelled
from antiphon.model import Usage
from antiphon.session.runtime import local_runtime
from antiphon.stores import SQLiteStore
from antiphon.testing import answer, script, tool_call
from antiphon.window import Summary
from antiphon_demo.modelserver import reply_to

HEADING = "A summary of our conversation so far:\n\n"


def wants_summary(request):
    return request.messages[-1].text.startswith("Write a summary")


class Model:
    """Sums up when it is asked to, and else repeats what was said. ``said`` is what it was shown for answers."""

    def __init__(self, *, tools=False, usage=None):
        self.summaries, self.answers = [], []
        self.tools, self.usage = tools, usage
        self.fails = False
        self.script = script(self._answer, repeat=True)

    def _answer(self, request):
        if wants_summary(request):
            self.summaries.append(request)
            if self.fails:
                raise ProviderOverloaded
            return answer(f"Summary {len(self.summaries)}.", usage=Usage(100, 10))
        self.answers.append(request)
        if self.tools and request.messages[-1].role != "tool":
            return tool_call("look", at=request.messages[-1].text)
        return answer(f"Answer to {request.messages[-1].text}", usage=self.usage)

    @property
    def shown(self):
        return [message.text for message in self.answers[-1].messages]


@pytest.fixture
def model(runtime):
    model = Model()
    runtime.use(model.script)
    return model


def talk(session, *numbers, **options):
    return [session.run(f"Q{number}", **options) for number in numbers]


def test_older_turns_are_summed_up_and_the_history_stays_whole(runtime, model):
    model.usage = Usage(5, 5)
    session = runtime.agent(window=Summary(turns=4), system="Be kind.").session()
    responses = talk(session, *range(6))
    assert model.shown == [f"{HEADING}Summary 1.", "Q3", "Answer to Q3", "Q4", "Answer to Q4", "Q5"]
    assert model.answers[-1].system == "Be kind."
    assert [message.text for message in session.messages[::2]] == [f"Q{n}" for n in range(6)]
    assert [response.usage for response in responses] == [Usage(5, 5)] * 5 + [Usage(105, 15)]
    (asked,) = model.summaries
    assert [message.text for message in asked.messages[:-1]] == [
        "Q0", "Answer to Q0", "Q1", "Answer to Q1", "Q2", "Answer to Q2",
    ]  # fmt: skip
    talk(session, 6, 7)
    assert model.shown[0] == f"{HEADING}Summary 1."
    talk(session, 8)
    assert model.shown[0] == f"{HEADING}Summary 2."
    assert [message.text for message in model.summaries[1].messages[:2]] == [f"{HEADING}Summary 1.", "Q3"]
    assert session.to_dict()["summary"] == {"messages": 12, "text": "Summary 2."}


def test_it_is_the_budget_of_tokens_that_is_kept(runtime, model):
    session = runtime.agent(window=Summary(tokens=60)).session()
    talk(session, *range(40))
    assert 2 < len(model.summaries) < 15
    assert session.to_dict()["summary"]["messages"] > 40
    assert all(sum(len(m.text) for m in request.messages) < 4 * 60 for request in model.answers)


def test_a_tool_call_stays_with_its_result(runtime):
    @tool
    def look(at: str) -> str:
        return f"{at} is there"

    model = Model(tools=True)
    runtime.use(model.script)
    session = runtime.agent(window=Summary(turns=2), tools=[look]).session()
    talk(session, *range(6))
    for request in [*model.summaries, *model.answers]:
        calls = [call.call_id for message in request.messages for call in message.tool_calls]
        results = [result.call_id for message in request.messages for result in message.tool_results]
        assert calls == results
    assert model.summaries
    assert not any("tool_choice" in request.params for request in model.summaries)
    assert [spec.name for spec in model.summaries[0].tools] == ["look"]


def test_a_model_that_calls_a_tool_instead_of_a_summary_is_asked_again_without_tools(runtime):
    @tool
    def look(at: str) -> str:
        return f"{at} is there"

    def reply(request):
        if not wants_summary(request):
            return "Fine."
        choices.append(request.params.get("tool_choice"))
        return "It began." if choices[-1] == "none" else tool_call("look", at="home")

    choices = []
    lines = script(reply, repeat=True)
    runtime.use(lines)
    session = runtime.agent(window=Summary(turns=4), tools=[look]).session()
    talk(session, *range(6))
    assert choices == [None, "none"]
    assert session.to_dict()["summary"]["text"] == "It began."


def test_a_fork_begins_with_the_summary_and_goes_its_own_way(runtime, model):
    session = runtime.agent(window=Summary(turns=2)).session()
    talk(session, *range(4))
    fork = session.fork()
    fork.run("other")
    assert model.shown[0] == f"{HEADING}Summary 1."
    assert fork.to_dict()["summary"] == session.to_dict()["summary"]
    talk(fork, *range(3))
    assert fork.to_dict()["summary"] != session.to_dict()["summary"]


def test_clear_drops_the_summary(runtime, model):
    session = runtime.agent(window=Summary(turns=2)).session()
    talk(session, *range(4))
    session.clear()
    assert "summary" not in session.to_dict()
    session.run("anew")
    assert model.shown == ["anew"]


def test_a_restored_session_goes_on_with_its_summary(runtime, model):
    agent = runtime.agent(window=Summary(turns=2))
    session = agent.session()
    talk(session, *range(4))
    data = json.loads(json.dumps(session.to_dict()))
    session.delete()
    restored = Session.from_dict(data, agent)
    assert restored.to_dict()["summary"] == data["summary"]
    restored.run("again")
    assert model.shown[0] == f"{HEADING}Summary 1."
    assert len(model.summaries) == 1


def test_what_an_older_release_saved_is_summed_up_anew(runtime, model):
    agent = runtime.agent(window=Summary(turns=2))
    session = agent.session()
    talk(session, *range(6))
    data = session.to_dict()
    del data["summary"]
    session.delete()
    Session.from_dict(data, agent).run("again")
    assert model.shown[1:] == ["Q4", "Answer to Q4", "Q5", "Answer to Q5", "again"]
    assert [message.text for message in model.summaries[-1].messages[:-1:2]] == ["Q0", "Q1", "Q2", "Q3"]


def test_a_saved_summary_of_more_than_there_is_is_not_restored(runtime, model):
    agent = runtime.agent(window=Summary(turns=2))
    session = agent.session()
    talk(session, *range(4))
    data = session.to_dict() | {"messages": session.to_dict()["messages"][:2]}
    assert "summary" not in Session.from_dict(data, agent, replace=True).to_dict()
    for broken in ({"text": "x"}, {"messages": 0, "text": "x"}, "x"):
        with pytest.raises(CorruptRecord, match="summary"):
            Session.from_dict(data | {"summary": broken}, agent)


def test_a_summary_that_fails_leaves_the_turn_and_is_caught_up_on(runtime, model, caplog):
    model.fails = True
    session = runtime.agent(window=Summary(turns=4)).session()
    with caplog.at_level(logging.WARNING, "antiphon.summary"):
        talk(session, *range(6))
    assert model.shown == ["Q3", "Answer to Q3", "Q4", "Answer to Q4", "Q5"]
    assert len(caplog.records) == 1
    assert "summary" not in session.to_dict()
    model.fails = False
    talk(session, 6, 7, 8)
    assert model.shown[0] == f"{HEADING}Summary 2."
    assert model.summaries[-1].messages[0].text == "Q0"


def test_a_failed_turn_keeps_no_summary(runtime, model):
    session = runtime.agent(window=Summary(turns=4)).session()
    talk(session, *range(5))
    broken = Model()
    broken.script.entries = [lambda request: "Lost." if wants_summary(request) else AgentError("no")]
    runtime.use(broken.script)
    with pytest.raises(AgentError):
        runtime_session(runtime, session).run("fails")
    assert "summary" not in session.to_dict()
    assert len(session.messages) == 10


def runtime_session(runtime, session):
    """The same session with the model that is in use now."""
    return runtime.agent(window=Summary(turns=4)).session(session.session_id)


def test_a_rolled_back_turn_leaves_the_summary_that_was_there(runtime, model):
    session = runtime.agent(window=Summary(turns=2)).session()
    talk(session, *range(4))
    before = session.to_dict()["summary"]
    for event in session.stream("left"):
        if event.type == "text_delta":
            break
    assert len(session.messages) == 8
    assert session.to_dict()["summary"] == before
    session.run("on")
    assert model.shown[0] == f"{HEADING}Summary 1."


def test_another_model_and_another_agent_go_on_from_it(runtime, model):
    agent = runtime.agent(window=Summary(turns=2))
    session = agent.session()
    talk(session, *range(4))
    session.run("over", model="another")
    session.run("to you", model="another")
    assert {request.model for request in model.summaries[1:]} == {"another"}
    whole = runtime.agent(name="whole")
    session.run("all", agent=whole)
    assert model.shown[::2] == ["Q0", "Q1", "Q2", "Q3", "over", "to you", "all"]
    session.run("and back")
    assert model.shown[0].startswith(HEADING)


def test_a_turn_is_cancelled_while_it_is_summed_up(runtime):
    reached = threading.Event()
    opened = threading.Event()

    async def wait():
        reached.set()
        await wait_until_async(opened.is_set, description="never")

    runtime.use(script("a", "b", ["begun ", wait]))
    session = runtime.agent(window=Summary(turns=1)).session()
    talk(session, 0, 1)
    turn = session.submit("over")
    assert reached.wait(10)
    turn.cancel()
    with pytest.raises(TurnCancelled):
        turn.result(60)
    assert len(session.messages) == 4


def test_a_store_keeps_the_summary(tmp_path):
    model = Model()
    store = SQLiteStore(tmp_path / "sessions.db")
    agent = Agent(model.script, "any", window=Summary(turns=2), store=store)
    talk(agent.session("s"), *range(4))
    local_runtime().forget()
    agent.session("s").run("again")
    assert model.shown[0] == f"{HEADING}Summary 1."
    assert len(model.summaries) == 1
    store.close()


TALK = """
    import json, sys
    from antiphon import Agent
    from antiphon.window import Summary

    provider, redis = sys.argv[1], sys.argv[2] or None
    agent = Agent(provider, "any", redis=redis, system="Be kind.", window=Summary(tokens=900))
    session = agent.session("s")
    said = [session.run(f"Question {n} length:60") for n in range(12)]
    print(json.dumps({
        "texts": [response.text for response in said],
        "input": [response.usage.input_tokens for response in said],
        "messages": [[message.role, message.text] for message in session.messages],
        "summary": session.to_dict()["summary"],
    }))
"""


def talk_over_http(provider, redis_url, models, processes):
    code = textwrap.dedent(TALK)
    process = processes.python("-c", code, provider, redis_url, env=models.environment)
    assert process.wait(60) == 0, process.output
    return json.loads(process.output.splitlines()[-1])


@pytest.mark.one_server
@pytest.mark.parametrize("provider", ["openai", "openai-chat", "anthropic"])
def test_over_http_both_runtimes_say_the_same(provider, redis_url, processes):
    models = ModelProcess(processes)
    worker = processes.worker(redis_url, "--processes", "1", env=models.environment)
    here = talk_over_http(provider, "", models, processes)
    worker.wait_for_output("takes turns")
    on_workers = talk_over_http(provider, redis_url, models, processes)
    assert here == on_workers
    assert len(here["messages"]) == 24
    covered = here["summary"]["messages"]
    assert 0 < covered < 22
    shown = [("user", HEADING + here["summary"]["text"]), *map(tuple, here["messages"][covered:-1])]
    if provider == "anthropic":  # one message of two blocks
        shown[:2] = [("user", shown[0][1] + shown[1][1])]
    assert here["texts"][-1] == reply_to(shown)
    assert max(here["input"]) > 900, "the turn that summed up has the usage of both calls"


def test_messages_for_the_beginning_are_summed_up_too(runtime, model):
    history = [Message.user(f"{n}") if n % 2 == 0 else Message.assistant(f"{n}") for n in range(20)]
    session = runtime.agent(window=Summary(turns=4)).session(messages=history)
    session.run("Hi")
    assert model.shown == [f"{HEADING}Summary 1.", *(str(n) for n in range(12, 20)), "Hi"]
    assert len(session.messages) == 22
