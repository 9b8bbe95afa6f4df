"""The official ``ai`` package against the gateway and real workers. ``make clients`` installs it."""

import pytest
from support.clients import running
from support.gateway import open_gateway, stand
from support.openai_clients import calling
from support.stage import FIRST_WORDS

from antiphon.model import Reasoning, ToolCall

pytestmark = pytest.mark.one_server


@pytest.mark.main_path
async def test_the_official_client_reads_a_whole_answer_and_resumes_it_at_another_gateway(
    redis_url, tmp_path
):
    async with (
        stand(redis_url, tmp_path) as (ensemble, api, _),
        open_gateway(redis_url) as (other, _),
        running("ai_sdk.mjs", api.url, "resume", other.url) as program,
    ):
        await ensemble.waits("g")
        program.go_on()
        assert await program.said() == "resumed"
        ensemble.stage.open("g")
        found = await program.said()
        assert found["sent"] == found["resumed"]
        assert found["sent"].startswith(FIRST_WORDS)
        assert found["idle"] is None


async def test_the_official_client_takes_back_what_a_failed_model_call_said(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (_, api, _), running("ai_sdk.mjs", api.url, "retry") as program:
        found = await program.said()
        assert "error" not in found
        last = (await api.get("/sessions/r/messages"))["messages"][-1]
        assert found["text"] == last["parts"][0]["text"]
        assert [part["type"] for part in found["parts"]] == ["step-start", "text"]


async def test_the_official_client_approves_and_denies(redis_url, tmp_path):
    async with (
        stand(redis_url, tmp_path) as (ensemble, api, _),
        running("ai_sdk.mjs", api.url, "approve") as program,
    ):
        found = await program.said()
        for name, state in (("yes", "output-available"), ("no", "output-denied")):
            asked, reloaded, done = (found[name][key] for key in ("asked", "reloaded", "done"))
            assert [part.get("state") for part in asked] == [None, "approval-requested"]
            assert reloaded == asked
            assert [part["type"] for part in done] == ["step-start", "dynamic-tool", "step-start", "text"]
            assert done[1]["state"] == state
            assert done[1]["approved"] is (name == "yes")
            assert found[name]["messages"] == 2
        assert len(ensemble.stage.notes("tool", tool="guarded")) == 1
        last = (await api.get("/sessions/no/messages"))["messages"][2]["parts"][0]
        assert "Too much." in last["content"]


async def test_the_official_client_runs_tools_of_the_page(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (_, api, _), running("ai_sdk.mjs", api.url, "tools") as program:
        found = await program.said()
        assert [part["type"] for part in found["done"]] == [
            "step-start",
            "dynamic-tool",
            "step-start",
            "text",
        ]
        assert (found["done"][1]["state"], found["messages"]) == ("output-available", 2)
        result = (await api.get("/sessions/t/messages"))["messages"][2]["parts"][0]
        assert "A tree" in result["content"]


async def test_the_openai_provider_names_earlier_items_by_references(redis_url, tmp_path):
    async with (
        stand(redis_url, tmp_path) as (_, api, _),
        running("ai_sdk_openai.mjs", api.url, "chat") as program,
    ):
        found = await program.said()
        assert found["references"] == 2
        shown = [text.partition("shown ")[2].partition(" ")[0] for text in found["texts"]]
        assert shown == ["1", "3", "5"], "the model is shown what the references name"


@pytest.mark.parametrize("what", ["tools", "stateless"])
async def test_the_openai_provider_runs_tools_and_the_model_is_shown_its_reasoning(redis_url, what):
    seen = []

    def answers(request):
        seen.append(request.messages)
        results = [one.text for message in request.messages for one in message.tool_results]
        thought = Reasoning("hm", {"type": "thinking", "signature": "s"})
        return f"I saw {results[0]}" if results else [thought, "Let me see.", ToolCall("call_1", "look", {})]

    async with (
        calling(redis_url, answers) as (api, _),
        running("ai_sdk_openai.mjs", api.url, what) as program,
    ):
        found = await program.said()
        assert (found["text"], found["steps"], found["bodies"]) == ("I saw a tree", 2, 2)
        assert found["references"] == (2 if what == "tools" else 0), "of the reasoning and the text"
        thought = [part for message in seen[-1] for part in message.parts if isinstance(part, Reasoning)]
        assert [one.text for one in thought] == ["hm"]
        assert [one.item and one.item["signature"] for one in thought] == ["s"]
        for one in (await api.get("/sessions"))["sessions"]:
            await api.call("DELETE", f"/sessions/{one['session_id']}", 204)


@pytest.mark.main_path
@pytest.mark.parametrize("what", ["tools", "stateless", "streamed"])
async def test_results_that_come_with_the_whole_conversation_go_to_the_turn_that_waits(redis_url, what):
    """The provider of the AI SDK names no response: it repeats the conversation, and a call without its item's id."""
    rounds = [
        [ToolCall("call_a", "look", {"n": 1.5, "of": "Bäume"}), ToolCall("call_b", "look", {})],
        ["One more.", ToolCall("call_c", "look", {})],
    ]

    def answers(request):
        results = [one.text for message in request.messages for one in message.tool_results]
        return rounds[len(results) // 2] if len(results) < 3 else "I saw all."

    async with (
        calling(redis_url, answers) as (api, _),
        running("ai_sdk_openai.mjs", api.url, what) as program,
    ):
        found = await program.said()
        assert (found["text"], found["steps"], found["bodies"]) == ("I saw all.", 3, 3)
        (session,) = (await api.get("/sessions"))["sessions"]
        turns = (await api.get(f"/sessions/{session['session_id']}/turns"))["turns"]
        assert [one["status"] for one in turns] == ["finished"], "no turn is left waiting"
        assert session["messages"] == 6
