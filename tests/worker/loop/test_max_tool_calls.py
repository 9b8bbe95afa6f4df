"""The limit of tool calls: across steps, attempts and approvals, in sessions of this process and in functions."""

import pytest

from antiphon import Agent, tool
from antiphon.errors import UsageError
from antiphon.input.request import KNOWN, NewerRecord, decode_request
from antiphon.model import ToolCall
from antiphon.session.work import work_of_client
from antiphon.testing import script

ran = []


@tool
def look(at: int) -> str:
    """Look at something."""
    ran.append(at)
    return f"a tree {at}"


@tool(approval=True)
def pay(at: int) -> str:
    """Pay for something."""
    ran.append(at)
    return f"paid {at}"


def calls(name, *numbers):
    return [ToolCall(f"call_{one}", name, {"at": one}) for one in numbers]


def results(response):
    return [(one.arguments["at"], one.is_error) for one in response.tool_calls]


@pytest.fixture(autouse=True)
def nothing_ran():
    ran.clear()


def test_the_first_calls_run_across_steps_and_the_model_answers():
    agent = Agent(
        script(calls("look", 1), calls("look", 2, 3), calls("look", 4), "Done."), "any", tools=[look]
    )
    response = agent.session().run("Look", max_tool_calls=2)
    assert (response.text, ran) == ("Done.", [1, 2])
    assert results(response) == [(1, False), (2, False), (3, True), (4, True)]
    assert (
        response.tool_calls[2].result
        == "This tool was not run: the turn may make 2 tool calls (max_tool_calls)."
    )


def test_a_call_that_would_wait_for_an_approval_is_refused_without_waiting():
    agent = Agent(script(calls("pay", 1, 2), "Done."), "any", tools=[pay])
    asked = []

    def approve(call):
        asked.append(call.arguments["at"])
        return True

    response = agent.session().run("Pay", max_tool_calls=1, on_approval=approve)
    assert (response.text, ran, asked) == ("Done.", [1], [1])
    assert results(response) == [(1, False), (2, True)]


def test_without_a_limit_all_calls_run():
    agent = Agent(script(calls("look", 1, 2), "Done."), "any", tools=[look])
    agent.session().run("Look")
    assert sorted(ran) == [1, 2]


def test_instructions_are_the_system_prompt_of_one_turn():
    seen = []

    def answer(request):
        seen.append(request.system)
        return "Hi"

    session = Agent(script(answer, repeat=True), "any", system="You are kind.").session(
        variables={"who": "Bo"}
    )
    session.run("Hello", instructions="Be brief, {who}.")
    session.run("Hello")
    assert seen == ["Be brief, Bo.", "You are kind."]


@pytest.mark.parametrize("wrong", [{"max_tool_calls": 0}, {"max_tool_calls": True}, {"max_tool_calls": "3"},
                                   {"max_tool_calls": 1.0}, {"instructions": ""}, {"instructions": 7}])  # fmt: skip
def test_wrong_values_are_refused_with_a_sentence(wrong):
    with pytest.raises(UsageError, match=f"{next(iter(wrong))}= must be"):
        work_of_client("Hello", wrong)


@pytest.mark.parametrize("option", [{"max_tool_calls": 1}, {"instructions": "Be brief."}])
def test_a_worker_that_does_not_know_them_leaves_the_turn_to_others(option, monkeypatch):
    request = work_of_client("Hello", option).request("support").to_json()
    assert decode_request(request).version == "4"
    monkeypatch.setitem(KNOWN, "request", 3)
    with pytest.raises(NewerRecord):
        decode_request(request)
    assert work_of_client("Hello", {}).request("support").version == 1
    with pytest.raises(UsageError, match="steer"):
        work_of_client("Hello", {**option, "if_busy": "steer"})
