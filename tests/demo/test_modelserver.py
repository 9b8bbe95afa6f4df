"""The model server of our own, through the real openai and anthropic clients over HTTP."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager

import anthropic
import httpx2
import openai
import pytest
from support.eventually import wait_until, wait_until_async

from antiphon.model import Message, ToolResult
from antiphon_demo.modelserver import Behaviour, ModelServer, reply_to
from antiphon_demo.modelserver.directives import read_calls
from antiphon_worker.providers.anthropic.provider import Anthropic
from antiphon_worker.providers.base import ModelRequest, ToolSpec
from antiphon_worker.providers.openai_chat.provider import OpenAIChat
from antiphon_worker.providers.openai_responses.provider import OpenAIResponses

SERVICES = ["chat", "responses", "messages"]
ERRORS = {
    "chat": openai.APIStatusError,
    "responses": openai.APIStatusError,
    "messages": anthropic.APIStatusError,
}
TOOLS = {"weather": {"type": "object", "properties": {"city": {"type": "string"}}}}
WEATHER = ToolSpec("weather", "The weather of a city.", TOOLS["weather"])


class Service:
    """One wire format: the same questions, asked and answered through its SDK."""

    def __init__(self, kind, server, key="any"):
        self.kind = kind
        if kind == "messages":
            self.sdk = anthropic.AsyncAnthropic(base_url=server.base_url, api_key=key, max_retries=0)
        else:
            self.sdk = openai.AsyncOpenAI(base_url=server.openai_url, api_key=key, max_retries=0)

    async def create(self, said, *, model="test-model", tools=(), max_tokens=None, **options):
        messages = [{"role": role, "content": text} for role, text in said]
        if self.kind == "chat":
            offered = [{"type": "function", "function": {"name": n, "parameters": TOOLS[n]}} for n in tools]
            if tools:
                options["tools"] = offered
            if max_tokens:
                options["max_completion_tokens"] = max_tokens
            return await self.sdk.chat.completions.create(model=model, messages=messages, **options)
        if self.kind == "responses":
            if tools:
                options["tools"] = [
                    {"type": "function", "name": n, "parameters": TOOLS[n], "strict": False} for n in tools
                ]
            if max_tokens:
                options["max_output_tokens"] = max_tokens
            return await self.sdk.responses.create(model=model, input=messages, **options)
        if tools:
            options["tools"] = [{"name": n, "input_schema": TOOLS[n]} for n in tools]
        return await self.sdk.messages.create(
            model=model, messages=messages, max_tokens=max_tokens or 4096, **options
        )

    async def stream(self, said, **options):
        """The text pieces and tool calls of a streamed answer, as they arrive."""
        if self.kind == "chat":
            options["stream_options"] = {"include_usage": True}
        async with await self.create(said, stream=True, **options) as stream:
            async for event in stream:
                yield event

    async def pieces(self, said, **options):
        async for event in self.stream(said, **options):
            if self.kind == "chat":
                text = event.choices[0].delta.content if event.choices else None
            elif self.kind == "responses":
                text = event.delta if event.type == "response.output_text.delta" else None
            else:
                is_text = event.type == "content_block_delta" and event.delta.type == "text_delta"
                text = event.delta.text if is_text else None
            if text:
                yield text

    def summary(self, answer):
        """Text, tool calls, stop reason, input and output tokens of a whole answer."""
        if self.kind == "chat":
            choice = answer.choices[0]
            calls = [(c.function.name, c.function.arguments) for c in choice.message.tool_calls or []]
            usage = answer.usage.prompt_tokens, answer.usage.completion_tokens
            return choice.message.content or "", calls, choice.finish_reason, *usage
        usage = answer.usage.input_tokens, answer.usage.output_tokens
        if self.kind == "responses":
            calls = [(i.name, i.arguments) for i in answer.output if i.type == "function_call"]
            return answer.output_text, calls, answer.status, *usage
        text = "".join(block.text for block in answer.content if block.type == "text")
        calls = [(b.name, json.dumps(b.input)) for b in answer.content if b.type == "tool_use"]
        return text, calls, answer.stop_reason, *usage


@asynccontextmanager
async def serving(kind, *, key="any", **behaviour):
    async with ModelServer(Behaviour(**behaviour)) as server:
        service = Service(kind, server, key)
        async with service.sdk:
            yield server, service


CONVERSATION = [
    ("user", "What is the capital of France?"),
    ("assistant", "Paris, of course."),
    ("user", "And of Österreich?"),
]


@pytest.mark.parametrize("kind", SERVICES)
async def test_the_answer_proves_which_conversation_the_model_was_shown(kind):
    async with serving(kind) as (_, service):
        text, calls, stop, input_tokens, output_tokens = service.summary(await service.create(CONVERSATION))
    assert text == reply_to(CONVERSATION)
    assert text.startswith("[turn 2, before ")
    assert "And of Österreich?" in text
    assert not calls
    assert stop in ("stop", "completed", "end_turn")
    assert input_tokens > 0
    assert output_tokens == 40
    assert reply_to(CONVERSATION[2:]) != text != reply_to([("user", "Another"), *CONVERSATION[1:]])


@pytest.mark.parametrize("kind", SERVICES)
async def test_a_stream_brings_the_same_answer_piece_by_piece(kind):
    async with serving(kind, length=25) as (server, service):
        pieces = [piece async for piece in service.pieces(CONVERSATION)]
        await wait_until_async(lambda: server.statistics.live_streams == 0)
    assert "".join(pieces) == reply_to(CONVERSATION, length=25)
    assert len(pieces) == 25
    assert server.statistics.streams == 1
    assert server.statistics.abandoned == 0


async def test_streams_report_usage_and_stop_reason_where_each_format_has_them():
    said = [("user", "Hello there")]
    async with serving("chat", length=9) as (_, service):
        events = [event async for event in service.stream(said)]
    assert events[-1].usage.completion_tokens == 9
    assert [e.choices[0].finish_reason for e in events if e.choices][-1] == "stop"
    async with serving("responses", length=9) as (_, service):
        events = [event async for event in service.stream(said)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].response.usage.output_tokens == 9
    assert events[-1].response.output_text == reply_to(said, length=9)
    async with serving("messages", length=9) as (_, service):
        events = [event async for event in service.stream(said)]
    delta = next(event for event in events if event.type == "message_delta")
    assert (delta.usage.output_tokens, delta.delta.stop_reason) == (9, "end_turn")


@pytest.mark.parametrize("kind", SERVICES)
async def test_an_answer_longer_than_allowed_is_cut_and_says_so(kind):
    async with serving(kind) as (_, service):
        text, _, stop, _, output_tokens = service.summary(await service.create(CONVERSATION, max_tokens=16))
    assert reply_to(CONVERSATION).startswith(text)
    assert output_tokens == 16
    assert stop in ("length", "incomplete", "max_tokens")


@pytest.mark.parametrize("kind", SERVICES)
async def test_tools_are_called_in_parallel_when_the_user_asks_for_them(kind):
    said = [
        ("user", 'Please call:weather {"city": "Köln"} and call:weather {"city": "Bonn"} and call:unknown {}')
    ]
    async with serving(kind) as (_, service):
        whole = await service.create(said, tools=["weather"])
        _, calls, stop, _, _ = service.summary(whole)
        without_tools, *_ = service.summary(await service.create(said))
    assert [(name, json.loads(arguments)) for name, arguments in calls] == [
        ("weather", {"city": "Köln"}),
        ("weather", {"city": "Bonn"}),
    ]
    assert stop in ("tool_calls", "completed", "tool_use")
    assert without_tools == reply_to(said)


async def test_streamed_tool_calls_assemble_to_what_was_asked():
    said = [("user", 'call:weather {"city": "Aachen"} call:weather {"city": "Bad Münstereifel"}')]
    wanted = ['{"city": "Aachen"}', '{"city": "Bad Münstereifel"}']
    async with serving("chat") as (_, service):
        assembled = ["", ""]
        async for event in service.stream(said, tools=["weather"]):
            for call in (event.choices[0].delta.tool_calls or []) if event.choices else []:
                assembled[call.index] += call.function.arguments
    assert assembled == wanted
    async with serving("responses") as (_, service):
        events = [event async for event in service.stream(said, tools=["weather"])]
    assembled = ["", ""]
    for event in events:
        if event.type == "response.function_call_arguments.delta":
            assembled[event.output_index] += event.delta
    assert assembled == wanted == [item.arguments for item in events[-1].response.output]
    async with (
        serving("messages") as (_, service),
        service.sdk.messages.stream(
            model="m",
            max_tokens=500,
            messages=[{"role": "user", "content": said[0][1]}],
            tools=[{"name": "weather", "input_schema": TOOLS["weather"]}],
        ) as stream,
    ):
        final = await stream.get_final_message()
    assert [block.input for block in final.content] == [json.loads(text) for text in wanted]


async def test_results_of_tools_are_told_and_calls_after_then_come_one_step_later():
    question = 'call:weather {"city": "Rome"} then call:weather {"city": "Oslo"}'
    messages = [{"role": "user", "content": question}]
    tools = [{"name": "weather", "input_schema": TOOLS["weather"]}]
    cities = []
    async with serving("messages") as (_, service):
        for result in ("sunny", "rainy"):
            answer = await service.sdk.messages.create(
                model="m", max_tokens=99, messages=messages, tools=tools
            )
            (call,) = answer.content
            cities.append(call.input["city"])
            messages.append({"role": "assistant", "content": [call.model_dump()]})
            told = {"type": "tool_result", "tool_use_id": call.id, "content": result}
            messages.append({"role": "user", "content": [told]})
        answer = await service.sdk.messages.create(model="m", max_tokens=99, messages=messages, tools=tools)
    assert cities == ["Rome", "Oslo"]
    assert answer.content[0].text == reply_to([("user", question)], results=["sunny", "rainy"])
    assert "The tools said: sunny rainy" in answer.content[0].text


async def test_tool_results_reach_the_answer_through_the_openai_formats_too():
    question = 'call:weather {"city": "Rome"}'
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    history = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": question}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
    ]
    function = {"name": "weather", "parameters": TOOLS["weather"]}
    async with serving("chat") as (_, service):
        chat = await service.sdk.chat.completions.create(
            model="m", messages=history, tools=[{"type": "function", "function": function}]
        )
        responses = await service.sdk.responses.create(
            model="m", input=items, tools=[{"type": "function", "strict": False, **function}]
        )
    expected = reply_to([("user", question)], results=["sunny"])
    assert chat.choices[0].message.content == responses.output_text == expected


def test_broken_arguments_stay_as_they_were_written():
    steps = read_calls('call:a {"x": {"y": [1]}} call:b {broken\ncall:c then call:d {}')
    assert [[(call.name, call.arguments) for call in step] for step in steps] == [
        [("a", '{"x": {"y": [1]}}'), ("b", "{broken"), ("c", "{}")],
        [("d", "{}")],
    ]


@pytest.mark.parametrize("kind", SERVICES)
@pytest.mark.parametrize(("status", "stream"), [(429, False), (500, True), (529, False)])
async def test_a_status_asked_for_arrives_as_the_error_of_the_sdk(kind, status, stream):
    async with serving(kind) as (_, service):
        with pytest.raises(ERRORS[kind]) as failure:
            await service.create([("user", f"fault:{status}=7 please")], stream=stream)
    assert failure.value.status_code == status
    assert failure.value.response.headers["retry-after"] == "7"
    assert failure.value.request_id.startswith("req_")


@pytest.mark.parametrize("kind", SERVICES)
async def test_a_fault_with_a_number_of_times_is_over_after_them(kind):
    said = [("user", "fault:500*2")]
    async with serving(kind) as (server, service):
        for _ in range(2):
            with pytest.raises(ERRORS[kind]):
                await service.create(said)
        text, *_ = service.summary(await service.create(said))
    assert text == reply_to(said)
    assert server.statistics.faults == 2


@pytest.mark.parametrize("kind", SERVICES)
async def test_a_wrong_key_and_an_unknown_model_are_refused(kind):
    async with serving(kind, key="wrong") as (_, service):
        with pytest.raises((openai.AuthenticationError, anthropic.AuthenticationError), match="key"):
            await service.create(CONVERSATION)
    async with serving(kind) as (_, service):
        with pytest.raises((openai.NotFoundError, anthropic.NotFoundError), match="no-such-model"):
            await service.create(CONVERSATION, model="no-such-model", stream=True)


@pytest.mark.parametrize("kind", SERVICES)
async def test_a_cut_stream_breaks_after_the_pieces_it_was_allowed(kind):
    async with serving(kind) as (_, service):
        stream = service.pieces([("user", "fault:cut=5")])
        for _ in range(5):
            await anext(stream)
        with pytest.raises((openai.APIConnectionError, httpx2.RemoteProtocolError)):
            await anext(stream)


@pytest.mark.parametrize("kind", ["chat", "messages"])
async def test_an_error_inside_a_stream_is_an_error_of_the_sdk(kind):
    async with serving(kind) as (_, service):
        stream = service.pieces([("user", "fault:error=3")])
        for _ in range(3):
            await anext(stream)
        with pytest.raises((openai.APIError, anthropic.APIError)):
            await anext(stream)


async def test_an_error_inside_a_stream_of_responses_is_its_last_event():
    async with serving("responses") as (_, service):
        events = [event async for event in service.stream([("user", "fault:error=3")])]
    assert [event.type for event in events[-4:]] == ["response.output_text.delta"] * 3 + ["error"]
    assert events[-1].code == "server_error"


async def test_a_dropped_connection_is_a_connection_error():
    async with serving("chat") as (_, service):
        with pytest.raises(openai.APIConnectionError):
            await service.create([("user", "fault:drop")])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_hanging_service_says_nothing_until_the_client_gives_up(stream):
    async with serving("chat") as (_, service):
        with pytest.raises(openai.APITimeoutError):
            await service.create([("user", "fault:hang")], stream=stream, timeout=0.2)


async def test_a_stream_that_falls_silent_keeps_its_connection():
    async with serving("messages") as (server, service):
        stream = service.pieces([("user", "fault:hang=2")])
        assert [await anext(stream), await anext(stream)] == ["[turn", " 1,"]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.2)
        await stream.aclose()
        await wait_until_async(lambda: server.statistics.live_streams == 0)
    assert server.statistics.abandoned == 1


async def test_faults_at_a_rate_are_the_same_for_the_same_seed():
    async def failures(seed):
        failed = []
        async with serving("chat", fault_rate=0.4, faults=("500", "429"), seed=seed) as (_, service):
            for number in range(20):
                try:
                    await service.create([("user", f"question {number}")])
                except openai.APIStatusError as exc:
                    failed.append((number, exc.status_code))
        return failed

    first = await failures(3)
    assert first == await failures(3) != await failures(4)
    assert 0 < len(first) < 20


async def test_pieces_come_at_their_pace():
    async with serving("chat", pace=100, first_piece_seconds=0.1, length=21) as (_, service):
        began = time.monotonic()
        arrived = [time.monotonic() - began async for _ in service.pieces(CONVERSATION)]
    assert arrived[0] >= 0.1
    assert arrived[-1] >= 0.1 + 20 / 100 - 0.005


async def test_a_paced_answer_as_a_whole_takes_as_long_as_its_stream():
    async with serving("messages") as (_, service):
        began = time.monotonic()
        await service.create([("user", "length:10 pace:50 first:0.1")])
    assert time.monotonic() - began >= 0.3


async def test_a_client_that_leaves_ends_its_stream():
    async with serving("responses", pace=20, length=10_000) as (server, service):
        stream = service.pieces(CONVERSATION)
        await anext(stream)
        assert server.statistics.live_streams == 1
        await stream.aclose()
        await wait_until_async(lambda: server.statistics.live_streams == 0)
    assert server.statistics.abandoned == 1


async def test_a_client_that_does_not_read_is_not_written_to_without_end():
    body = json.dumps(
        {"model": "m", "stream": True, "messages": [{"role": "user", "content": "length:200000"}]}
    )
    async with ModelServer() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=2**12)
        writer.write(_raw_request(body))
        await reader.readline()
        seen = -1

        async def stopped_growing():
            nonlocal seen
            before, seen = seen, server.statistics.chunks
            return before == seen > 0

        await wait_until_async(stopped_growing, interval=0.1)
        assert seen < 100_000
        tail = b""
        while not tail.endswith(b"0\r\n\r\n"):
            tail = (tail + await reader.read(2**20))[-16:]
        assert server.statistics.chunks == 200_002
        writer.close()
        await writer.wait_closed()


async def test_requests_sent_before_their_turn_are_answered_in_order():
    bodies = [
        json.dumps({"model": "m", "messages": [{"role": "user", "content": f"number {n}"}]}) for n in range(3)
    ]
    async with ModelServer() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        everything = b"".join(map(_raw_request, bodies))
        for start in range(0, len(everything), 7):
            writer.write(everything[start : start + 7])
            await writer.drain()
        for number in range(3):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(re.search(rb"content-length: (\d+)", head)[1])
            assert f"number {number}".encode() in await reader.readexactly(length)
        writer.close()
        await writer.wait_closed()
    assert server.statistics.connections == 1


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"POST /v1/messages HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", 411),
        (b"GET /nowhere HTTP/1.1\r\nconnection: close\r\n\r\n", 404),
        (b"POST /v1/messages HTTP/1.1\r\nx-api-key: k\r\ncontent-length: 3\r\n\r\n[1]", 400),
        (b"POST /v1/messages HTTP/1.1\r\nx-api-key: k\r\ncontent-length: 3\r\n\r\n{\xff}", 400),
        (b"POST /v1/responses HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}", 401),
        (b"x" * 70_000, 431),
    ],
)
async def test_what_is_no_proper_request_is_answered_with_its_status(request_bytes, status):
    async with ModelServer() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request_bytes)
        assert int((await reader.readline()).split()[1]) == status
        writer.close()
        await writer.wait_closed()


async def test_structured_output_fits_its_schema():
    schema = {
        "type": "object",
        "properties": {
            "city": {"$ref": "#/$defs/City"},
            "sizes": {"type": "array", "items": {"type": "integer"}},
            "mood": {"enum": ["calm", "loud"]},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "$defs": {"City": {"type": "object", "properties": {"name": {"type": "string"}}}},
    }
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    async with serving("chat") as (_, service):
        answer = await service.create([("user", "Which town?")], response_format=form)
    assert json.loads(answer.choices[0].message.content) == {
        "city": {"name": "Which town?"},
        "sizes": [2],
        "mood": "calm",
        "note": "Which town?",
    }


async def test_stamps_say_when_each_piece_was_sent():
    async with serving("messages", stamp=True, length=6) as (_, service):
        before = time.monotonic_ns()
        pieces = [piece async for piece in service.pieces(CONVERSATION)]
        after = time.monotonic_ns()
    stamps = [int(piece.rpartition("@")[2]) for piece in pieces]
    assert before < stamps[0] <= stamps[-1] < after
    assert stamps == sorted(stamps)


async def test_requests_are_kept_for_tests_that_want_to_see_them():
    async with serving("chat", record=2) as (server, service):
        for number in range(3):
            await service.create([("user", f"number {number}")], temperature=0.5)
    assert [request.body["messages"][0]["content"] for request in server.requests] == ["number 1", "number 2"]
    assert server.requests[0].body["temperature"] == 0.5
    assert server.requests[0].headers["authorization"] == "Bearer any"


async def test_texts_of_one_role_in_a_row_count_as_one_however_they_are_split():
    together = [("user", "one\ntwo"), ("assistant", "yes"), ("user", "three")]
    apart = [("user", "one"), ("user", "two"), ("assistant", "yes"), ("user", "three")]
    assert reply_to(together) == reply_to(apart)
    assert reply_to(together).startswith("[turn 2, ")


@pytest.mark.parametrize("provider_type", [OpenAIResponses, OpenAIChat, Anthropic])
async def test_our_own_providers_carry_a_whole_history_in_every_format(provider_type):
    history = []
    async with ModelServer() as server:
        url = server.base_url if provider_type is Anthropic else server.openai_url
        provider = provider_type(base_url=url, api_key="any")
        for text in ("Good morning", 'call:weather {"city": "Köln"}', "And now?"):
            history.append(Message.user(text))
            while True:
                request = ModelRequest("m", history, system="Be kind.", tools=[WEATHER])
                message = [increment async for increment in provider.stream(request)][-1].message
                said = [(entry.role, entry.text) for entry in history]
                history.append(message)
                if not message.tool_calls:
                    break
                results = [ToolResult(call.call_id, "sunny", call.name) for call in message.tool_calls]
                history.append(Message.tool(results))
            assert message.text == reply_to(said, results=["sunny"] if "call:" in text else [])
        await provider.aclose()
    assert [entry.role for entry in history].count("tool") == 1
    assert history[-1].text.startswith("[turn 3, ")


@pytest.mark.main_path
def test_a_server_in_a_process_of_its_own_prints_its_urls_and_ends_when_told(processes):
    process = processes.python("-m", "antiphon_demo.modelserver", "--pace", "50")
    urls = json.loads(process.wait_for_output("}\n"))
    with openai.OpenAI(base_url=urls["openai_url"], api_key="any", max_retries=0) as sdk:
        answer = sdk.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "length:8 pace:0"}]
        )
    assert answer.choices[0].message.content == reply_to([("user", "length:8 pace:0")])
    process.send_signal(signal.SIGTERM)
    assert process.wait(5) == 0


def test_a_server_with_a_parent_ends_when_the_parent_is_gone():
    command = [sys.executable, "-m", "antiphon_demo.modelserver", "--with-parent"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert json.loads(process.stdout.readline())["pid"] == process.pid
        process.stdin.close()
        assert process.wait(5) == 0


def test_a_port_that_is_taken_is_named(processes):
    first = processes.python("-m", "antiphon_demo.modelserver")
    port = json.loads(first.wait_for_output("}\n"))["base_url"].rpartition(":")[2]
    second = processes.python("-m", "antiphon_demo.modelserver", "--port", port)
    assert second.wait(10) == 1
    wait_until(lambda: f"cannot listen on 127.0.0.1:{port}" in second.output, 5)


def _raw_request(body):
    data = body.encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nauthorization: Bearer k\r\ncontent-length: %d\r\n\r\n"
    return head % len(data) + data
