"""What each service is sent: parameters by its names, tools, structured output, images and files."""

import base64
import sys

import msgspec
import pytest
from support.services.conversation import KINDS, hear, request, said, sent, serve
from support.services.wire_server import WireServer

from antiphon.errors import InvalidMessage
from antiphon.model import File, Image, Message, Text, ToolCall, ToolResult
from antiphon_worker.providers.base import OutputSchema, ToolSpec
from antiphon_worker.providers.openai_chat.provider import OpenAIChat
from antiphon_worker.providers.request import call_of, params_of

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = ToolSpec("weather", "Tells the weather", SCHEMA)
ANSWER = OutputSchema("an answer", SCHEMA)
MARK = {"cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_plain_question_is_sent_as_it_is(kind):
    body = await sent(kind, request(Message.user("Hello?"), system="Be brief."))
    plain = {
        "openai-chat": {
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}],
            "stream_options": {"include_usage": True},
        },
        "openai": {
            "instructions": "Be brief.",
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hello?"}]}],
            "store": False,
            "include": ["reasoning.encrypted_content"],
        },
        "anthropic": {
            "system": [{"type": "text", "text": "Be brief.", **MARK}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello?", **MARK}]}],
            "max_tokens": 8192,
        },
    }
    assert body == {"model": "a-model", "stream": True, **plain[kind]}


@pytest.mark.parametrize("kind", KINDS)
async def test_no_service_is_told_ids_and_times_of_messages(kind):
    messages = [
        Message.user("Hello?"),
        Message.assistant([Text("Let me see."), ToolCall("call_1", "weather", {"city": "Rome"})]),
        Message.tool([ToolResult("call_1", "sunny", "weather")]),
        Message.user("And now?"),
    ]
    stored = [
        msgspec.structs.replace(message, id=f"t1.{number}", turn_id="t1", created=1_795_218_951_767)
        for number, message in enumerate(messages)
    ]
    assert await sent(kind, request(*stored)) == await sent(kind, request(*messages))


PARAMS = [
    ({"temperature": 0.5, "top_p": 0.9}, {"temperature": 0.5, "top_p": 0.9}, None, None),
    ({"max_tokens": 9}, {"max_tokens": 9}, {"max_output_tokens": 9}, {"max_tokens": 9}),
    ({"max_tokens": None}, {}, {}, {}),
    ({"stop": "END"}, {"stop": "END"}, {}, {"stop_sequences": ["END"]}),
    ({"stop": ["A", "B"]}, {"stop": ["A", "B"]}, {}, {"stop_sequences": ["A", "B"]}),
    ({"seed": 7, "presence_penalty": 1}, {"seed": 7, "presence_penalty": 1}, {}, {}),
    (
        {"reasoning": "high"},
        {"reasoning_effort": "high"},
        {"reasoning": {"effort": "high"}},
        {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
    ),
    (
        {"effort": "low"},
        {"reasoning_effort": "low"},
        {"reasoning": {"effort": "low"}},
        {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}},
    ),
    (
        {"reasoning": {"effort": "low", "summary": "auto"}},
        {"reasoning": {"effort": "low", "summary": "auto"}},
        {"reasoning": {"effort": "low", "summary": "auto"}},
        {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}},
    ),
    ({"user": "u1"}, {"user": "u1"}, {"user": "u1"}, {"metadata": {"user_id": "u1"}}),
    (
        {"metadata": {"user_id": "u", "a": "b"}},
        {"metadata": {"user_id": "u", "a": "b"}},
        {"metadata": {"user_id": "u", "a": "b"}},
        {"metadata": {"user_id": "u"}},
    ),
    ({"tool_choice": "auto", "parallel_tool_calls": False}, {}, {}, {}),
    ({"top_k": 5, "something_new": {"x": 1}}, {"top_k": 5, "something_new": {"x": 1}}, None, None),
]


@pytest.mark.parametrize(("params", "chat", "responses", "anthropic"), PARAMS)
async def test_parameters_have_the_names_of_each_service(params, chat, responses, anthropic):
    expected = {"openai-chat": chat, "openai": responses, "anthropic": anthropic}
    for kind in KINDS:
        bare = await sent(kind, request())
        body = await sent(kind, request(params=params))
        wanted = expected[kind] if expected[kind] is not None else chat
        assert body == {**bare, **wanted}, kind


async def test_a_budget_for_thinking_is_added_to_the_default_limit():
    body = await sent("anthropic", request(params={"reasoning": 2000}))
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 2000}
    assert body["max_tokens"] == 10192
    body = await sent(
        "anthropic",
        request(params={"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 4000}),
    )
    assert body["max_tokens"] == 4000
    assert (await sent("anthropic", request(), max_tokens=77))["max_tokens"] == 77


CHOICES = [
    ("auto", "auto", "auto", {"type": "auto"}),
    ("none", "none", "none", {"type": "none"}),
    ("required", "required", "required", {"type": "any"}),
    ("any", "required", "required", {"type": "any"}),
    (
        "weather",
        {"type": "function", "function": {"name": "weather"}},
        {"type": "function", "name": "weather"},
        {"type": "tool", "name": "weather"},
    ),
    (
        {"name": "weather"},
        {"type": "function", "function": {"name": "weather"}},
        {"type": "function", "name": "weather"},
        {"type": "tool", "name": "weather"},
    ),
]


@pytest.mark.parametrize(("choice", "chat", "responses", "anthropic"), CHOICES, ids=repr)
async def test_the_choice_of_a_tool_is_said_in_each_language(choice, chat, responses, anthropic):
    asked = request(tools=[TOOL], params={"tool_choice": choice})
    assert (await sent("openai-chat", asked))["tool_choice"] == chat
    assert (await sent("openai", asked))["tool_choice"] == responses
    assert (await sent("anthropic", asked))["tool_choice"] == anthropic


async def test_one_tool_call_at_a_time_can_be_asked_for():
    asked = request(tools=[TOOL], params={"parallel_tool_calls": False})
    assert (await sent("openai-chat", asked))["parallel_tool_calls"] is False
    assert (await sent("openai", asked))["parallel_tool_calls"] is False
    assert (await sent("anthropic", asked))["tool_choice"] == {
        "type": "auto",
        "disable_parallel_tool_use": True,
    }


async def test_tools_are_offered_beside_the_service_s_own():
    search = {"type": "web_search"}
    asked = request(tools=[TOOL, ToolSpec("strict", "d", SCHEMA, strict=True)], params={"tools": [search]})
    function = {"name": "weather", "description": "Tells the weather", "parameters": SCHEMA}
    strict = {"name": "strict", "description": "d", "parameters": SCHEMA, "strict": True}
    assert (await sent("openai-chat", asked))["tools"] == [
        {"type": "function", "function": function},
        {"type": "function", "function": strict},
        search,
    ]
    assert (await sent("openai", asked))["tools"] == [
        {"type": "function", **function, "strict": False},
        {"type": "function", **strict},
        search,
    ]
    assert (await sent("anthropic", asked))["tools"] == [
        {"name": "weather", "description": "Tells the weather", "input_schema": SCHEMA},
        {"name": "strict", "description": "d", "input_schema": SCHEMA, "strict": True},
        {**search, **MARK},
    ]


async def test_tools_that_a_conversation_has_called_are_defined_for_the_messages_api():
    called = [
        Message.user("Hello?"),
        Message.assistant([ToolCall("call_1", "weather", {"city": "Rome"})]),
        Message.tool([ToolResult("call_1", "sunny", "weather")]),
    ]
    body = await sent("anthropic", request(*called))
    assert body["tools"] == [{"name": "weather", "input_schema": {"type": "object"}, **MARK}]
    assert body["tool_choice"] == {"type": "none"}
    assert "tools" not in await sent("openai", request(*called))
    offered = await sent("anthropic", request(*called, tools=[TOOL]))
    assert [one["description"] for one in offered["tools"]] == [TOOL.description]
    assert "tool_choice" not in offered


async def test_structured_output_is_asked_for_in_each_language():
    asked = request(output=ANSWER, params={"verbosity": "low", "effort": "low"})
    named = {"name": "an_answer", "schema": SCHEMA, "strict": True}
    chat = await sent("openai-chat", asked)
    assert chat["response_format"] == {"type": "json_schema", "json_schema": named}
    responses = await sent("openai", asked)
    assert responses["text"] == {"verbosity": "low", "format": {"type": "json_schema", **named}}
    anthropic = await sent("anthropic", request(output=ANSWER, params={"effort": "low"}))
    assert anthropic["output_config"] == {
        "effort": "low",
        "format": {"type": "json_schema", "schema": SCHEMA},
    }


async def test_the_limit_has_its_newer_name_for_openai_itself_alone():
    async with WireServer(said("openai-chat", "ok")) as proxy:
        for host in ("api.openai.com", "mine.openai.azure.com", "openai.example"):
            provider = OpenAIChat(base_url=f"http://{host}/v1", api_key="sk-test-of-a-key", proxy=proxy.url)
            await hear(provider, request(params={"max_tokens": 5}))
            await provider.aclose()
        names = [{name for name in seen.body if "max" in name} for seen in proxy.seen]
        assert names == [{"max_completion_tokens"}, {"max_completion_tokens"}, {"max_tokens"}]


async def test_servers_that_know_no_stream_options_are_not_sent_any():
    assert "stream_options" not in await sent("openai-chat", request(), include_usage=False)


MEDIA = Message.user(
    [
        Text("Look:"),
        Image(url="https://example.org/a.png", detail="low"),
        Image(data="AAAA", media_type="image/jpeg"),
        Image(url="data:image/gif;base64,R0lG"),
        File(data="JVBE", media_type="application/pdf", name="a.pdf"),
        File(url="https://example.org/b.pdf"),
        File(file_id="file-1"),
    ]
)


async def test_images_and_files_reach_chat_completions():
    (message,) = (await sent("openai-chat", request(MEDIA)))["messages"]
    assert message["content"] == [
        {"type": "text", "text": "Look:"},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": "data:image/gif;base64,R0lG"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBE"}},
        {"type": "text", "text": "[file: https://example.org/b.pdf]"},
        {"type": "file", "file": {"file_id": "file-1"}},
    ]


async def test_images_and_files_reach_the_responses_api():
    (message,) = (await sent("openai", request(MEDIA)))["input"]
    assert message["content"] == [
        {"type": "input_text", "text": "Look:"},
        {"type": "input_image", "image_url": "https://example.org/a.png", "detail": "low"},
        {"type": "input_image", "image_url": "data:image/jpeg;base64,AAAA", "detail": "auto"},
        {"type": "input_image", "image_url": "data:image/gif;base64,R0lG", "detail": "auto"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBE"},
        {"type": "input_file", "file_url": "https://example.org/b.pdf"},
        {"type": "input_file", "file_id": "file-1"},
    ]


async def test_images_and_files_reach_the_messages_api():
    (message,) = (await sent("anthropic", request(MEDIA, params={"cache_control": False})))["messages"]
    assert message["content"] == [
        {"type": "text", "text": "Look:"},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "AAAA"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": "R0lG"}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"},
            "title": "a.pdf",
        },
        {"type": "document", "source": {"type": "url", "url": "https://example.org/b.pdf"}},
        {"type": "document", "source": {"type": "file", "file_id": "file-1"}},
    ]


async def test_a_text_file_is_a_text_document():
    file = File(data=base64.b64encode("Grüße".encode()).decode(), media_type="text/plain")
    (message,) = (await sent("anthropic", request(Message.user([file]), params={"cache_control": False})))[
        "messages"
    ]
    assert message["content"][0]["source"] == {"type": "text", "media_type": "text/plain", "data": "Grüße"}
    with pytest.raises(InvalidMessage, match="base64"):
        await sent("anthropic", request(Message.user([File(data="%%%", media_type="text/plain")])))


RESULTS = [
    Message.user("Draw"),
    Message.assistant([ToolCall("call_1", "draw", {"of": "a cat"}), ToolCall("call_2", "fail")]),
    Message.tool(
        [
            ToolResult("call_1", [Text("Here:"), Image(data="AAAA", media_type="image/png")]),
            ToolResult("call_2", "It broke", is_error=True),
        ]
    ),
]


async def test_images_in_tool_results_follow_in_a_user_message_of_chat_completions():
    messages = (await sent("openai-chat", request(*RESULTS)))["messages"]
    assert messages[2:4] == [
        {"role": "tool", "tool_call_id": "call_1", "content": "Here:"},
        {"role": "tool", "tool_call_id": "call_2", "content": "It broke"},
    ]
    assert messages[4]["role"] == "user"
    assert messages[4]["content"][1] == {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64,AAAA"},
    }


async def test_images_in_tool_results_stay_there_for_the_others():
    items = (await sent("openai", request(*RESULTS)))["input"]
    assert items[3] == {
        "type": "function_call_output",
        "call_id": "call_1",
        "output": [
            {"type": "input_text", "text": "Here:"},
            {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"},
        ],
    }
    content = (await sent("anthropic", request(*RESULTS)))["messages"][2]["content"]
    assert content == [
        {
            "type": "tool_result",
            "tool_use_id": "call_1",
            "content": [
                {"type": "text", "text": "Here:"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
            ],
        },
        {"type": "tool_result", "tool_use_id": "call_2", "content": "It broke", "is_error": True, **MARK},
    ]


async def test_what_stays_the_same_is_marked_for_the_cache():
    history = [Message.user("One"), Message.assistant("Two"), Message.user("Three")]
    body = await sent("anthropic", request(*history, system="S", tools=[TOOL]))
    assert body["system"][-1]["cache_control"] == {"type": "ephemeral"}
    assert "cache_control" not in body["tools"][-1]
    assert [("cache_control" in m["content"][-1]) for m in body["messages"]] == [True, False, True]
    longer = {"type": "ephemeral", "ttl": "1h"}
    body = await sent("anthropic", request(*history, params={"cache_control": longer}, tools=[TOOL]))
    assert (
        body["tools"][-1]["cache_control"] == longer == body["messages"][-1]["content"][-1]["cache_control"]
    )
    for off in ({"cache_control": False}, {"prompt_cache": False}):
        body = await sent("anthropic", request(*history, system="S", params=off))
        assert "cache" not in str(body)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("params", [{"x": object()}, {"x": [1, {"y": print}]}])
async def test_parameters_that_cannot_be_json_are_the_caller_s_mistake(kind, params):
    with pytest.raises(InvalidMessage):
        await sent(kind, request(params=params))


@pytest.mark.parametrize("kind", KINDS)
async def test_text_that_cannot_be_encoded_is_the_caller_s_mistake(kind):
    with pytest.raises(InvalidMessage):
        await sent(kind, request(Message.user("half a character: \ud800")))


def test_the_caller_s_parameters_are_left_alone():
    params = {"temperature": 1, "extra_headers": {"a": "b"}, "timeout": 5, "none": None}
    asked = request(params=params)
    assert params_of(asked, {"temperature": "heat"}) == {"heat": 1}
    call = call_of(asked, "/path", {})
    assert (call.headers, call.timeout) == ({"a": "b"}, 5)
    assert len(params) == 4


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_keeps_a_request_while_its_answer_comes(kind):
    class Outlet:
        full = False

        def append(self, _increment):
            holders.append(sys.getrefcount(body))

        async def drain(self):
            """Nothing waits here."""

        def read_from(self, source):
            """Nothing waits for what is read."""

    holders: list[int] = []
    async with WireServer(said(kind, "Hello", " you")) as server:
        provider = serve(kind, server.url)
        stream = provider.stream(request(Message.user("Hello? " * 1_000)))
        body = stream.body
        await stream.into(Outlet())
        await provider.aclose()
    assert holders
    assert set(holders) == {2}, "the test itself and the call hold it"
