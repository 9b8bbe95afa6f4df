"""One trace from a program through the gateway, the queue and the worker to model call and tool, over OTLP.

The receiver is an HTTP server that decodes what exporters send with the official protocol's own types, as a collector
does.
"""

import asyncio
from typing import Any

import pytest
from opentelemetry import propagate
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes, messaging_attributes
from opentelemetry.semconv.attributes import error_attributes, http_attributes, url_attributes
from support.eventually import wait_until_async
from support.gateway import Api
from support.processes import COMMAND
from support.receiver import Receiver
from support.stage import Stage

pytestmark = pytest.mark.one_server

SECRET = "geheimnis"
CONVENTIONS = {
    value
    for module in (gen_ai_attributes, messaging_attributes, error_attributes, http_attributes, url_attributes)
    for value in vars(module).values()
    if isinstance(value, str)
}
OPERATIONS = {one.value for one in gen_ai_attributes.GenAiOperationNameValues}


def spans_of(collector: Receiver) -> list[tuple[str, Span]]:
    """All spans that have come, each with the service that sent it."""
    found = []
    for one in collector.received:
        assert (one.path, one.headers["content-type"]) == ("/v1/traces", "application/x-protobuf")
        for resource in ExportTraceServiceRequest.FromString(one.body).resource_spans:
            service = attributes_of(resource.resource)["service.name"]
            found += [(service, span) for scope in resource.scope_spans for span in scope.spans]
    return found


def attributes_of(part: Any) -> dict[str, Any]:
    kinds = {one.key: one.value.WhichOneof("value") for one in part.attributes}
    return {one.key: getattr(one.value, kinds[one.key]) for one in part.attributes}


@pytest.fixture
def collector():
    with Receiver() as receiver:
        yield receiver


@pytest.mark.main_path
async def test_one_trace_leads_from_a_program_to_the_tool(redis_url, processes, tmp_path, collector):
    endpoint = f"http://127.0.0.1:{collector.port}"
    exporting = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    stage = Stage(tmp_path / "stage")
    worker = processes.worker(redis_url, "--traces", "true", env=stage.env | exporting)
    gateway = processes.start(
        COMMAND,
        "serve",
        "--redis-url",
        redis_url,
        "--port",
        "0",
        "--traces",
        "true",
        name="serve",
        env=exporting,
    )
    worker.wait_for_output("takes turns")
    url = gateway.wait_for_output("[serving]").split("[serving] ")[1].split()[0]
    provider = TracerProvider(resource=Resource.create({"service.name": "shop"}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{endpoint}/v1/traces")))
    api, headers = Api(url), {}
    async with api.http:
        with provider.get_tracer("shop").start_as_current_span("checkout") as root:
            propagate.inject(headers)
            body = {"input": f"tool:note {SECRET}", "agent": "stage"}
            turn = (await api.post("/sessions/t/turns", body, headers=headers))["turn_id"]
        await api.result(turn)
    trace = root.get_span_context().trace_id.to_bytes(16, "big")

    def ours() -> list[tuple[str, Span]]:
        return [(service, span) for service, span in spans_of(collector) if span.trace_id == trace]

    await wait_until_async(lambda: len(ours()) >= 7, 30, "all spans have come")
    await asyncio.to_thread(provider.shutdown)
    found = {span.name: (service, span) for service, span in ours()}
    assert {name: service for name, (service, _) in found.items()} == {
        "checkout": "shop",
        "POST /sessions/{session}/turns": "antiphon-gateway",
        "antiphon.queue": "antiphon-worker",
        "invoke_agent stage": "antiphon-worker",
        "chat stage-1": "antiphon-worker",
        "execute_tool note": "antiphon-worker",
    }
    parents = {
        "POST /sessions/{session}/turns": "checkout",
        "antiphon.queue": "POST /sessions/{session}/turns",
        "invoke_agent stage": "POST /sessions/{session}/turns",
        "chat stage-1": "invoke_agent stage",
        "execute_tool note": "invoke_agent stage",
    }
    for name, parent in parents.items():
        assert found[name][1].parent_span_id == found[parent][1].span_id, f"{name} is within {parent}"
    checked(ours())


def checked(spans: list[tuple[str, Span]]) -> None:
    """Names of attributes are those of the conventions or our own, and no span holds what a user wrote."""
    for service, span in spans:
        told = attributes_of(span)
        foreign = {name for name in told if not name.startswith("antiphon.")} - CONVENTIONS
        assert foreign == set(), f"{span.name} of {service}"
        assert SECRET.encode() not in span.SerializeToString()
        assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.status.code != Status.STATUS_CODE_ERROR
        if span.name.partition(" ")[0] in ("chat", "invoke_agent", "execute_tool"):
            assert told["gen_ai.operation.name"] == span.name.partition(" ")[0]
            assert told["gen_ai.operation.name"] in OPERATIONS
            assert told["gen_ai.conversation.id"] == "t"
        if span.name.startswith(("chat", "invoke_agent")):
            assert told["gen_ai.provider.name"] == "stage"
        if span.name.startswith("execute_tool"):
            assert (told["gen_ai.tool.name"], told["gen_ai.tool.type"]) == ("note", "function")
            assert told["gen_ai.tool.call.id"]
    kinds = {span.name: span.kind for _, span in spans}
    assert kinds["POST /sessions/{session}/turns"] == Span.SPAN_KIND_SERVER
    assert kinds["chat stage-1"] == Span.SPAN_KIND_CLIENT
    assert kinds["invoke_agent stage"] == Span.SPAN_KIND_INTERNAL


async def test_a_collector_that_is_away_harms_no_turn(redis_url, processes, tmp_path, collector):
    stage, away = Stage(tmp_path / "stage"), f"http://127.0.0.1:{collector.port}"
    collector.hold()
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": away, "OTEL_BSP_SCHEDULE_DELAY": "10"}
    worker = processes.worker(redis_url, "--traces", "true", env=stage.env | env)
    gateway = processes.start(
        COMMAND, "serve", "--redis-url", redis_url, "--port", "0", "--traces", "true", name="serve", env=env
    )
    worker.wait_for_output("takes turns")
    api = Api(gateway.wait_for_output("[serving]").split("[serving] ")[1].split()[0])
    async with api.http:
        for number in range(5):
            turn = await api.submit(f"s{number}", "Hello", agent="stage")
            assert (await api.result(turn))["response"]["text"]
    await wait_until_async(lambda: collector.received, 20, "the collector was asked, and has not answered")
    collector.release()
