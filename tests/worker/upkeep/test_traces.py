"""What backends of traces receive: OpenTelemetry's conventions for generative AI, and content on request."""

import inspect
import json
import warnings
from contextlib import asynccontextmanager

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from support.eventually import wait_until
from support.here import running_worker
from support.processes import COMMAND
from support.receiver import Receiver
from support.redaction import SECRET
from support.stage import Stage

from antiphon import Agent, Message, tool
from antiphon.client import AsyncClient, Client
from antiphon.errors import SettingsError
from antiphon.handoffs import Handoff
from antiphon.model import ToolCall, ToolResult, Usage
from antiphon.model.parts import File, Image, Item, Reasoning, Refusal, Text
from antiphon.testing import answer, script, tool_call
from antiphon_worker.app import App
from antiphon_worker.observing.content import Content, question
from antiphon_worker.observing.traces import Instruments, Traces

pytestmark = pytest.mark.one_server


REGISTERED = {value for value in vars(gen_ai_attributes).values() if isinstance(value, str)}


def registry_of_metrics():
    """The metrics of the conventions: their names, units and kinds, as the official package creates them."""
    provider = MeterProvider([InMemoryMetricReader()])
    meter, found = provider.get_meter("registry"), {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, create in inspect.getmembers(gen_ai_metrics, inspect.isfunction):
            if name.startswith("create_"):
                one = create(meter)
                found[one.name] = (one.unit, type(one).__name__)
    return found


@asynccontextmanager
async def traced(redis_url, monkeypatch, spans, *agents, **options):
    """A worker whose spans the exporter has, and a client."""
    app = App(agents=list(agents))
    observer = Traces(spans[0], app, **options)
    monkeypatch.setattr("antiphon_worker.process.worker.observer_of", lambda *_: observer)
    async with running_worker(redis_url, app), AsyncClient(redis_url) as client:
        yield client


def named(spans, name):
    """The only span of this name."""
    [found] = [one for one in spans[1].get_finished_spans() if one.name == name]
    return found


async def test_each_agent_of_a_hand_off_has_a_span_with_its_name_its_id_and_its_revision(
    redis_url, monkeypatch, spans
):
    billing = Agent(script("It is paid."), "b-1", name="billing")
    support = Agent(
        script(tool_call("transfer_to_billing", reason=SECRET)), "a-1", name="support",
        handoffs=[Handoff(billing)],
    )  # fmt: skip
    async with traced(redis_url, monkeypatch, spans, support) as client:
        await (await client.submit("s", "Is it paid?", agent="support")).result(30)
    first, second = (named(spans, f"invoke_agent {name}") for name in ("support", "billing"))
    assert len({one.context.trace_id for one in spans[1].get_finished_spans()}) == 1, "a turn is one trace"
    assert [one.attributes["antiphon.outcome"] for one in (first, second)] == ["handed_over", "finished"]
    for span, agent, model in ((first, support, "a-1"), (second, billing, "b-1")):
        assert span.attributes.items() >= {
            "gen_ai.agent.name": agent.name, "gen_ai.agent.id": agent.name, "gen_ai.request.model": model,
            "gen_ai.conversation.id": "s",
        }.items()  # fmt: skip
        call = named(spans, f"chat {model}")
        assert call.parent.span_id == span.context.span_id
        assert call.attributes["gen_ai.agent.name"] == agent.name
    assert second.attributes["gen_ai.agent.version"] == billing.revision
    assert named(spans, "execute_tool transfer_to_billing").parent.span_id == first.context.span_id
    assert first.end_time <= second.start_time
    assert SECRET not in "".join(one.to_json() for one in spans[1].get_finished_spans())


async def test_the_trace_of_a_child_begins_in_the_tool_that_asked_for_it(redis_url, monkeypatch, spans):
    research = Agent(script("In November."), "r-1", name="research")
    ask = tool_call("research", input="When?")
    writer = Agent(script(ask, "Go in November."), "w-1", name="writer", tools=[research.as_tool()])
    async with traced(redis_url, monkeypatch, spans, writer) as client:
        await (await client.submit("s", "Plan it.", agent="writer")).result(30)
    call, child = named(spans, "execute_tool research"), named(spans, "invoke_agent research")
    assert child.parent.span_id == call.context.span_id
    assert child.context.trace_id == call.context.trace_id
    assert child.attributes["gen_ai.conversation.id"] != "s"
    mine = [one for one in spans[1].get_finished_spans() if one.name == "invoke_agent writer"]
    assert [one.attributes["antiphon.outcome"] for one in mine] == ["suspended", "finished"]


async def test_what_a_tool_observes_and_submits_belongs_to_its_span(redis_url, monkeypatch, spans):
    @tool
    def in_a_thread() -> str:
        """Look."""
        with spans[0].start_as_current_span("in a thread"):
            return "seen"

    @tool
    async def in_the_loop() -> str:
        """Look."""
        with spans[0].start_as_current_span("in the loop"):
            return "seen"

    both = answer(ToolCall("c1", "in_a_thread"), ToolCall("c2", "in_the_loop"))
    agent = Agent(script(both, "Done."), "m", name="a", tools=[in_a_thread, in_the_loop])
    async with traced(redis_url, monkeypatch, spans, agent) as client:
        await (await client.submit("s", "Look.", agent="a")).result(30)
    for inner, outer in (("in a thread", "in_a_thread"), ("in the loop", "in_the_loop")):
        assert named(spans, inner).parent.span_id == named(spans, f"execute_tool {outer}").context.span_id
    assert not trace.get_current_span().get_span_context().is_valid, "nothing stays the current span"


async def conversation(redis_url, monkeypatch, spans, content):
    """A turn with a tool call, whose question, prompt, arguments, result and answer hold the secret."""

    @tool
    def note(text: str) -> str:
        """Note a text."""
        return f"noted {text}"

    agent = Agent(
        script(tool_call("note", text=SECRET), f"I noted {SECRET}."), "m", name="a", system=f"Keep {SECRET}.",
        tools=[note],
    )  # fmt: skip
    async with traced(redis_url, monkeypatch, spans, agent, content=content) as client:
        await (await client.submit("s", f"Note {SECRET}.", agent="a")).result(30)
    return spans[1].get_finished_spans()


async def test_spans_hold_messages_only_on_request(redis_url, monkeypatch, spans):
    made = await conversation(redis_url, monkeypatch, spans, None)
    assert SECRET not in "".join(span.to_json() for span in made)
    assert not [name for span in made for name in span.attributes if name.endswith((".messages", "result"))]


async def test_spans_show_messages_in_the_form_of_the_conventions(redis_url, monkeypatch, spans):
    made = await conversation(redis_url, monkeypatch, spans, Content())
    first, last = [span for span in made if span.name == "chat m"]
    asked = {"role": "user", "parts": [{"type": "text", "content": f"Note {SECRET}."}]}
    said = {"role": "assistant", "parts": [{"type": "text", "content": f"I noted {SECRET}."}]}
    assert json.loads(first.attributes["gen_ai.input.messages"]) == [asked]
    assert json.loads(first.attributes["gen_ai.system_instructions"]) == [
        {"type": "text", "content": f"Keep {SECRET}."}
    ]
    [definition] = json.loads(first.attributes["gen_ai.tool.definitions"])
    assert (definition["type"], definition["name"]) == ("function", "note")
    [call] = json.loads(first.attributes["gen_ai.output.messages"])[0]["parts"]
    assert (call["type"], call["name"], call["arguments"]) == ("tool_call", "note", {"text": SECRET})
    *_, result = json.loads(last.attributes["gen_ai.input.messages"])
    assert result["parts"] == [
        {"type": "tool_call_response", "id": call["id"], "response": f"noted {SECRET}"}
    ]
    assert json.loads(last.attributes["gen_ai.output.messages"]) == [said]
    ran = named(spans, "execute_tool note").attributes
    assert json.loads(ran["gen_ai.tool.call.arguments"]) == {"text": SECRET}
    assert ran["gen_ai.tool.call.result"] == f"noted {SECRET}"
    agent = named(spans, "invoke_agent a").attributes
    assert json.loads(agent["gen_ai.input.messages"]) == [asked]
    assert json.loads(agent["gen_ai.output.messages"]) == [said]


async def test_a_function_redacts_what_spans_show(redis_url, monkeypatch, spans):
    seen = []

    def redact(name, value):
        seen.append(name)
        return json.loads(json.dumps(value).replace(SECRET, "***")) if "output" not in name else None

    made = await conversation(redis_url, monkeypatch, spans, Content(redact))
    assert SECRET not in "".join(span.to_json() for span in made)
    first = next(span for span in made if span.name == "chat m")
    assert json.loads(first.attributes["gen_ai.input.messages"])[0]["parts"][0]["content"] == "Note ***."
    assert not [span for span in made if "gen_ai.output.messages" in span.attributes]
    assert {*seen} == {
        "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions", "gen_ai.tool.definitions",
        "gen_ai.tool.call.arguments", "gen_ai.tool.call.result",
    }  # fmt: skip


async def test_what_a_function_fails_to_redact_is_not_exported(redis_url, monkeypatch, spans, caplog):
    def broken(name, value):
        raise RuntimeError(SECRET)

    made = await conversation(redis_url, monkeypatch, spans, Content(broken))
    assert [span.name for span in made].count("chat m") == 2
    assert SECRET not in "".join(span.to_json() for span in made)
    lines = [one.getMessage() for one in caplog.records if getattr(one, "action", "") == "redaction_failed"]
    assert "RuntimeError" in lines[0]
    assert SECRET not in "".join(lines)


def test_every_part_of_a_message_has_the_form_of_the_conventions():
    parts = [
        Text("a"), Reasoning("b"), Refusal("c"), ToolCall("1", "t", {"x": 1}), ToolResult("1", "d"),
        Image(data=SECRET, media_type="image/png"), Image(url="https://a/b.png"), File(file_id="f"),
        Item("openai", {"type": "search", "query": SECRET}),
    ]  # fmt: skip
    [shown] = json.loads(Content().of(messages=[Message("user", parts)])["messages"])
    assert shown["parts"] == [
        {"type": "text", "content": "a"}, {"type": "reasoning", "content": "b"}, {"type": "text", "content": "c"},
        {"type": "tool_call", "id": "1", "name": "t", "arguments": {"x": 1}},
        {"type": "tool_call_response", "id": "1", "response": "d"},
        {"type": "image", "modality": "image", "mime_type": "image/png"},
        {"type": "uri", "uri": "https://a/b.png", "modality": "image"},
        {"type": "file", "file_id": "f", "modality": "document"}, {"type": "search", "provider": "openai"},
    ]  # fmt: skip
    history = [Message.user("1"), Message.assistant("2"), Message.user("3")]
    assert [one.text for one in question(history)] == ["3"]
    assert question([Message.assistant("2")]) == []


@pytest.mark.parametrize("setting", ["no", "json:nothing", "json.decoder:WHITESPACE", "nowhere:f", ":f"])
def test_a_setting_that_names_no_function_is_refused(setting):
    with pytest.raises(SettingsError, match="ANTIPHON_TRACE_CONTENT"):
        Content.of_setting(setting)
    assert Content.of_setting("") is None


async def test_metrics_of_model_calls_are_those_of_the_registry(redis_url, monkeypatch, spans):
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader]).get_meter("test")
    usage = Usage(input_tokens=30, output_tokens=7)
    agent = Agent(script(answer("Hello.", usage=usage)), "m-1", name="a")
    async with traced(redis_url, monkeypatch, spans, agent, instruments=Instruments(meter)) as client:
        await (await client.submit("s", "Hi.", agent="a")).result(30)
    registry, found = registry_of_metrics(), {}
    for metric in reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics:
        assert (metric.unit, "_Histogram") == registry[metric.name]
        found[metric.name] = metric.data.data_points
    span = named(spans, "chat m-1")
    labels = {
        "gen_ai.operation.name": "chat", "gen_ai.request.model": "m-1",
        "gen_ai.provider.name": span.attributes["gen_ai.provider.name"],
    }  # fmt: skip
    duration, first = (
        found["gen_ai.client.operation.duration"],
        found["gen_ai.client.operation.time_to_first_chunk"],
    )
    for [point] in (duration, first):
        assert (point.count, point.attributes.items() >= labels.items()) == (1, True)
    assert duration[0].sum == pytest.approx((span.end_time - span.start_time) / 1e9, abs=0.05)
    tokens = {one.attributes["gen_ai.token.type"]: one.sum for one in found["gen_ai.client.token.usage"]}
    assert tokens == {"input": 30, "output": 7}
    attributes = {name for points in found.values() for point in points for name in point.attributes}
    assert attributes <= REGISTERED | {"error.type"}


def test_a_call_that_failed_is_measured_with_its_error():
    reader = InMemoryMetricReader()
    instruments = Instruments(MeterProvider([reader]).get_meter("test"))
    instruments.call({"gen_ai.operation.name": "chat"}, 1.5, "provider_timeout")
    [metric] = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    [point] = metric.data.data_points
    assert (metric.name, point.attributes["error.type"]) == (
        "gen_ai.client.operation.duration",
        "provider_timeout",
    )


def test_a_collector_receives_spans_and_metrics_of_a_worker(redis_url, processes, tmp_path):
    stage = Stage(tmp_path / "stage")
    with Receiver() as collector:
        env = stage.env | {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.port}", "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_METRIC_EXPORT_INTERVAL": "200", "ANTIPHON_OTEL_METRICS": "true", "ANTIPHON_TRACES": "true",
            "ANTIPHON_TRACE_CONTENT": "support.redaction:redact",
        }  # fmt: skip
        processes.worker(redis_url, env=env).wait_for_output("takes turns")
        with Client(redis_url) as client:
            client.submit("s", f"tool:note {SECRET}", agent="stage").result(30)

        def of(path, kind):
            return [kind.FromString(one.body) for one in collector.received if one.path == path]

        def spans():
            return [
                span
                for request in of("/v1/traces", ExportTraceServiceRequest)
                for resource in request.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            ]

        def metrics():
            return {
                metric.name
                for request in of("/v1/metrics", ExportMetricsServiceRequest)
                for resource in request.resource_metrics
                for scope in resource.scope_metrics
                for metric in scope.metrics
            }

        wait_until(lambda: "invoke_agent stage" in [span.name for span in spans()], 20, "the spans have come")
        wait_until(lambda: metrics() >= {"gen_ai.client.token.usage"}, 20, "the metrics have come")
        assert metrics() <= registry_of_metrics().keys()
        everything = b"".join(one.body for one in collector.received)
        assert SECRET.encode() not in everything
        assert b"tool:note ***" in everything


def test_a_stock_worker_of_rq_exports_its_spans_before_its_process_ends(redis_url, processes, tmp_path):
    stage = Stage(tmp_path / "stage")
    with Receiver() as collector:
        env = stage.env | {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.port}", "ANTIPHON_TRACES": "true",
            "OTEL_BSP_SCHEDULE_DELAY": "600000",
        }  # fmt: skip
        with Client(redis_url) as client:
            turn = client.submit("s", "Hello", agent="stage")
            processes.start(
                COMMAND.with_name("rq"), "worker", "-u", redis_url, "--serializer", "json", "antiphon",
                name="rq", env=env,
            )  # fmt: skip
            assert turn.result(60).text
        wait_until(
            lambda: any(b"invoke_agent stage" in one.body for one in collector.received),
            20,
            "spans have come",
        )
