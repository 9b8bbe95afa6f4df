"""Gemini, Mistral, vLLM and Ollama through Chat Completions: their fields in both directions, and into the next turn.

The answers follow the services' published forms; no service was called.
"""

from __future__ import annotations

import pytest
from support.services.conversation import body, chat, serve
from support.services.wire_server import Reply, WireServer

from antiphon import Agent

SIGNED = {"google": {"thought_signature": "c2lnbmVk"}}
CALL = {
    "index": 0,
    "id": "function-call-1",
    "type": "function",
    "function": {"name": "look", "arguments": "{}"},
}
THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "Tea?"}]}
PARAMS = {
    "gemini": {"extra_body": {"extra_body": {"google": {
        "thinking_config": {"thinking_budget": 800, "include_thoughts": True},
        "safety_settings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
    }}}},
    "mistral": {"prompt_mode": "reasoning", "safe_prompt": True, "random_seed": 7},
    "vllm": {"top_k": 20, "chat_template_kwargs": {"enable_thinking": True}, "guided_choice": ["a", "b"]},
    "ollama": {"keep_alive": "5m", "options": {"num_ctx": 8192}, "think": True},
}  # fmt: skip
ANSWERS = {
    "mistral": chat({"content": [THOUGHT]}, {"content": [{"type": "text", "text": "Green."}]}),
    "vllm": chat({"reasoning_content": "Te"}, {"reasoning_content": "a?"}, {"content": "Green."}),
    "ollama": chat({"reasoning": "Tea?", "content": ""}, {"content": "Green."}),
}
RETURNED = {
    "mistral": {"content": [THOUGHT, {"type": "text", "text": "Green."}]},
    "vllm": {"reasoning_content": "Tea?", "content": "Green."},
    "ollama": {"reasoning": "Tea?", "content": "Green."},
}


def look() -> str:
    """Look."""
    return "Tea."


async def two_turns(*answers, tools=(), **params):
    async with WireServer(*[Reply([body("openai-chat", one)]) for one in answers]) as server:
        provider = serve("openai-chat", server.url)
        session = Agent(provider=provider, model="a-model", tools=tools).session_async()
        said = [(await session.run(text, **params)).text for text in ("Which tea?", "And now?")]
        await provider.aclose()
    return [one.body for one in server.seen], said


@pytest.mark.parametrize("service", sorted(RETURNED))
async def test_reasoning_returns_in_the_form_in_which_it_came(service):
    bodies, said = await two_turns(ANSWERS[service], chat({"content": "Still."}), **PARAMS[service])
    assert said == ["Green.", "Still."]
    assert bodies[1]["messages"][1] == {"role": "assistant", **RETURNED[service]}
    for sent in bodies:
        assert {name: sent[name] for name in PARAMS[service]} == PARAMS[service]


async def test_thought_signatures_of_gemini_return_with_their_calls_and_in_the_next_turn():
    called = chat({"tool_calls": [{**CALL, "extra_content": SIGNED}]}, finish="tool_calls")
    answers = called, chat({"content": "Tea."}), chat({"content": "Still."})
    bodies, said = await two_turns(*answers, tools=[look], **PARAMS["gemini"])
    assert said == ["Tea.", "Still."]
    for sent in bodies[1:]:
        [call] = sent["messages"][1]["tool_calls"]
        assert (call["id"], call["extra_content"]) == ("function-call-1", SIGNED)
    for sent in bodies:
        assert sent["extra_body"] == PARAMS["gemini"]["extra_body"]["extra_body"]
