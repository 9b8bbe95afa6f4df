"""What operators see of gateways: metrics, health, JSON logs and traces; none of it holds what users wrote."""

import asyncio
import json
import logging
import re
import signal
import sys
import time
from contextlib import suppress

import pytest
from opentelemetry.trace import StatusCode
from support import forks
from support.calls import uncollected
from support.event_source import EventSource
from support.eventually import patience, wait_until, wait_until_async
from support.fresh_python import imported_by
from support.gateway import Api, follow, open_gateway
from support.here import running_worker
from support.network import free_port
from support.processes import COMMAND
from support.prometheus import get
from support.stage import Stage, make_app
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from antiphon.client import AsyncClient
from antiphon.errors import (
    ClientClosed,
    CorruptRecord,
    SettingsError,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from antiphon.input.request import decode_request
from antiphon.redis.subscription import Subscription
from antiphon.telemetry import FIELDS, SeldomOutages
from antiphon_gateway import Limits
from antiphon_gateway.http.streams import EventStream
from antiphon_gateway.observing.loop_lag import LoopLag
from antiphon_gateway.observing.metrics import GatewayMetrics
from antiphon_gateway.observing.traces import GatewayTraces
from antiphon_gateway.openai.errors import openai_error, turn_failure
from antiphon_gateway.problems import Refused, problem_response
from antiphon_gateway.settings import GatewaySettings

pytestmark = pytest.mark.one_server

SECRET = "geheimnis"
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = {"traceparent": f"00-{TRACE}-{SPAN}-01"}


def values(metrics: GatewayMetrics):
    """Each sample by its name with labels."""
    return {
        f"{one.name}{{{','.join(f'{k}={v}' for k, v in one.labels.items())}}}": one.value
        for family in metrics.registry.collect()
        for one in family.samples
    }


@pytest.fixture
def served(redis_url, processes):
    """Start a gateway with a status port: the process, its URL and the port."""

    def start(*flags):
        port = free_port()
        process = processes.start(
            COMMAND, "serve", "--redis-url", redis_url, "--port", "0", "--status-port", str(port), *flags,
            name="serve",
        )  # fmt: skip
        found = re.search(r"http://127\.0\.0\.1:\d+(?=\"|\n)", process.wait_for_output("/live"))
        return process, found[0], port

    return start


@pytest.mark.main_path
async def test_a_gateway_shows_what_it_does_and_nothing_that_users_wrote(served, redis_url, tmp_path):
    process, url, port = served("--log-format", "json")
    async with running_worker(redis_url, make_app(Stage(tmp_path))), Api(url).http as http:
        api = Api(url)
        turn = await api.submit("s", f"Hello {SECRET}")
        messages, _ = await follow(EventSource(f"{url}/turns/{turn}/events"))
        assert (await http.get(f"/turns/nothing-{SECRET}?x={SECRET}")).status_code in (400, 404)
        assert (await http.get(f"/{SECRET}/nothing")).status_code == 404
        assert (await http.request("PROPFIND", "/sessions")).status_code == 405
        assert (await http.post("/sessions/s/turns", json={"input": SECRET * 10**6})).status_code == 413
        await api.http.aclose()
    assert get(port, "/health") == get(port, "/ready") == (200, "ok\n")
    status, text = get(port, "/metrics")
    assert status == 200
    found = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[:1] not in ("#", ""))
    counted = "antiphon_gateway_requests_total"
    assert found[f'{counted}{{method="POST",route="/sessions/{{session}}/turns",status="202"}}'] == "1.0"
    assert found[f'{counted}{{method="GET",route="none",status="404"}}'] == "1.0"
    assert found[f'{counted}{{method="_OTHER",route="none",status="405"}}'] == "1.0"
    assert found['antiphon_gateway_refused_total{limit="body_bytes"}'] == "1.0"
    assert float(found["antiphon_gateway_messages_sent_total"]) >= len(messages) + 1
    assert found["antiphon_gateway_streams"] == "0.0"
    assert SECRET not in text
    records = [json.loads(line) for line in process.output.splitlines()]
    assert all([*record][: len(FIELDS)] == [*FIELDS] for record in records)
    requests = [one for one in records if one["action"] == "request"]
    (submitted,) = [
        one for one in requests if one["route"] == "/sessions/{session}/turns" and one["status"] == 202
    ]
    assert (submitted["session"], submitted["method"]) == ("s", "POST")
    assert [one["turn"] for one in requests if one["route"] == "/turns/{turn}/events"] == [turn]
    assert "Hello" not in process.output
    assert f"x={SECRET}" not in process.output


async def test_a_gateway_that_drains_is_alive_and_not_ready(served, redis_url):
    process, url, port = served()
    async with AsyncClient(redis_url) as client:
        turn = await client.submit("s", "Hello", agent="any", delay=60)
        async with Api(url).http as http:
            waiting = asyncio.create_task(http.get("/sessions/s/events"))
            await wait_until_async(lambda: "antiphon_gateway_streams 1.0" in get(port, "/metrics")[1], 20)
            process.send_signal(signal.SIGTERM)
            assert (await waiting).status_code == 200
        await asyncio.to_thread(process.wait)
        await turn.cancel()
    assert process.wait() == 0


async def test_drain_and_a_loop_that_stands_still_are_told_apart(redis_url):
    async with open_gateway(redis_url) as (_, app):
        assert not app.draining
        app.drain()
        assert app.draining
    lag = LoopLag()
    with lag.watched():
        assert lag.seconds == 0
        lag._due = time.monotonic() - 20
        assert lag.seconds >= 20


async def test_labels_are_those_of_a_list_however_requests_are_made(redis_url):
    metrics = GatewayMetrics()
    async with open_gateway(redis_url, metrics=metrics, limits=Limits(rate=5)) as (api, _):
        for number in range(40):
            await api.http.request(f"M{number}", f"/no/such/path/{number}/{SECRET}")
            await api.http.get(f"/sessions/{SECRET}-{number}")
    metrics.refused(SECRET)
    samples = [name for name in values(metrics) if "_requests_total" in name or "_refused_total" in name]
    assert len(samples) < 8, samples
    assert SECRET not in str(values(metrics))
    assert values(metrics)["antiphon_gateway_refused_total{limit=rate}"] > 0


async def test_only_events_that_come_while_it_streams_are_late(redis_url, tmp_path):
    metrics = GatewayMetrics()
    async with (
        running_worker(redis_url, make_app(Stage(tmp_path))),
        open_gateway(redis_url, metrics=metrics) as (api, app),
    ):
        metrics.read(lambda: app.streams, lambda: 0.0)
        await api.result(await api.submit("s", "Hello"))
        late = "antiphon_gateway_event_lag_seconds_count{}"
        told = time.time()
        await wait_until_async(lambda: time.time() > told + 0.01)  # the clock of events has milliseconds
        source = EventSource(f"{api.url}/sessions/s/events?after=0")
        reading = asyncio.create_task(follow(source, "turn_failed"))
        await wait_until_async(lambda: values(metrics)["antiphon_gateway_messages_sent_total{}"] >= 4)
        assert values(metrics)[late] == 0
        assert values(metrics)["antiphon_gateway_streams{}"] == 1
        await api.submit("s", "fail:rejected")
        await asyncio.wait_for(reading, patience(20))
        await wait_until_async(lambda: values(metrics)[late] >= 1)  # counted once it is written


def test_without_a_setting_nothing_counts_and_nothing_is_imported(redis_url):
    found = imported_by(
        "import antiphon_gateway.serve\n"
        "from antiphon.client import AsyncClient\n"
        "from antiphon_gateway import gateway\n"
        "app = gateway(AsyncClient('redis://localhost:1/0'))\n"
        "assert app._services.counting is None and app._traces is None"
    )
    assert "antiphon_gateway.serve" in found
    unasked = ("prometheus", "wsgiref", "opentelemetry.exporter")
    assert [name for name in found if name.startswith(unasked)] == []
    assert [name for name in found if name.endswith(("observing.metrics", "observing.traces"))] == []
    assert "counting" not in str(EventStream._write.__code__.co_names)


async def test_a_turn_belongs_to_the_trace_that_its_request_names(redis_url, spans):
    tracer, exporter = spans
    async with (
        AsyncClient(redis_url) as client,
        open_gateway(redis_url, traces=GatewayTraces(tracer)) as (api, _),
    ):
        body = {"input": SECRET, "agent": "any", "delay": 60}
        one = (await api.post("/sessions/s/turns", body, headers=PARENT))["turn_id"]
        await api.get(f"/turns/nothing{SECRET}", 404)
        cell = client.connections.cell_of_turn(one)
        request = decode_request((await cell.turn(one)).fields["request"])
        await (await client.turn(one)).cancel()
    made = {span.name: span for span in exporter.get_finished_spans()}
    posted = made["POST /sessions/{session}/turns"]
    assert f"{posted.context.trace_id:032x}" == TRACE
    assert f"{posted.parent.span_id:016x}" == SPAN
    assert request.trace.split("-")[1:3] == [TRACE, f"{posted.context.span_id:016x}"]
    assert posted.attributes["http.response.status_code"] == 202
    assert posted.attributes["http.route"] == "/sessions/{session}/turns"
    missing = made["GET /turns/{turn}"]
    assert f"{missing.context.trace_id:032x}" != TRACE
    assert SECRET not in "".join(span.to_json() for span in made.values())


def test_a_request_that_breaks_leaves_its_type_and_not_its_text(spans):
    tracer, exporter = spans
    scope = {"type": "http", "method": "GET", "scheme": "http", "headers": []}
    with pytest.raises(KeyError), GatewayTraces(tracer).span(scope):
        raise KeyError(SECRET)
    (span,) = exporter.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "KeyError"
    assert SECRET not in span.to_json()


async def test_websockets_are_counted_and_logged_as_requests(redis_url, caplog):
    caplog.set_level(logging.INFO, "antiphon.gateway")
    metrics = GatewayMetrics()

    def logged():
        records = map(vars, caplog.records)
        return {one["status"]: one for one in records if one.get("action") == "request"}

    async with open_gateway(redis_url, metrics=metrics) as (api, _):
        url = api.url.replace("http", "ws")
        async with connect(f"{url}/v1/responses?q={SECRET}", proxy=None) as peer:
            await peer.send("{}")
            await peer.recv()
        with pytest.raises(InvalidStatus):
            await connect(f"{url}/v1/nothing", proxy=None)
        await wait_until_async(lambda: len(logged()) == 2, description="both have ended")
    told, found = logged(), values(metrics)
    assert SECRET not in caplog.text
    for status, route in ((101, "/v1/responses"), (404, "none")):
        assert (told[status]["method"], told[status]["route"]) == ("GET", route)
        assert found[f"antiphon_gateway_requests_total{{method=GET,route={route},status={status}}}"] == 1
    answered = found["antiphon_gateway_request_seconds_sum{route=/v1/responses}"]
    assert answered < told[101]["seconds"], "from the request to the handshake, not to the connection's end"


async def test_a_websocket_that_is_refused_has_the_status_of_its_refusal(redis_url, spans):
    tracer, exporter = spans
    async with open_gateway(redis_url, traces=GatewayTraces(tracer)) as (api, _):
        for path, status in (("/v1/responses", 101), ("/v1/nothing", 404)):
            with suppress(InvalidStatus):
                async with connect(api.url.replace("http", "ws") + path, proxy=None):
                    pass
            await wait_until_async(exporter.get_finished_spans, description="its span has ended")
            (span,) = exporter.get_finished_spans()
            assert span.attributes["http.response.status_code"] == status
            exporter.clear()


FORGED = ["", "00-zz-zz-01", f"00-{'0' * 32}-{'0' * 16}-01", "x" * 60_000, '","a":"']


@pytest.mark.parametrize("header", FORGED, ids=["none", "no-hex", "zeros", "long", "quotes"])
async def test_a_forged_traceparent_begins_a_trace_of_its_own(redis_url, spans, header):
    tracer, exporter = spans
    async with open_gateway(redis_url, traces=GatewayTraces(tracer)) as (api, _):
        assert (await api.http.get("/health", headers={"traceparent": header})).status_code == 200
    (span,) = exporter.get_finished_spans()
    assert span.parent is None
    assert header == "" or header not in span.to_json()


async def test_without_the_setting_a_traceparent_is_ignored(client, redis_url):
    async with open_gateway(redis_url) as (api, _):
        body = {"input": "Hello", "agent": "any", "delay": 60}
        one = (await api.post("/sessions/s/turns", body, headers=PARENT))["turn_id"]
        cell = client.connections.cell_of_turn(one)
        assert decode_request((await cell.turn(one)).fields["request"]).trace == ""
        await (await client.turn(one)).cancel()


async def test_a_fault_is_logged_with_its_frames_and_without_its_text(redis_url, caplog, monkeypatch):
    async def broken(*args, **more):
        raise KeyError(SECRET)

    async with open_gateway(redis_url) as (api, app):
        monkeypatch.setattr(app._services.client, "turn", broken)
        with caplog.at_level(logging.INFO):
            await api.get("/turns/abc", 500)
    assert "KeyError" in caplog.text
    assert "in turn" in caplog.text
    assert SECRET not in caplog.text


LOGGED = {
    Refused(500, "answer_changed", SECRET): "request_failed",
    turn_failure("turn_broke", SECRET, "m"): "request_failed",
    StoreError(SECRET): "request_failed",
    CorruptRecord(SECRET): "request_failed",
    RuntimeError(SECRET): "request_failed",
    StoreUnavailable("away"): "outage",
}


@pytest.mark.parametrize("respond", [problem_response, openai_error])
@pytest.mark.parametrize("error", LOGGED, ids=lambda error: type(error).__name__)
def test_every_error_of_the_gateway_has_a_line_in_the_log(error, respond, caplog):
    assert respond(error).status_code >= 500
    (record,) = caplog.records
    assert record.action == LOGGED[error]


def test_a_refusal_that_is_the_callers_has_none(caplog):
    for error in (Refused(400, "bad", "x"), Refused(503, "draining", "x"), UsageError("x"), ClientClosed()):
        problem_response(error)
    assert caplog.records == []


@pytest.mark.parametrize(("part", "status"), [("__call__", 500), ("_send_all", 200), ("aclose", 200)])
async def test_a_stream_that_breaks_is_logged_without_its_text(redis_url, caplog, monkeypatch, part, status):
    async def broken(self, *args):
        raise RuntimeError(SECRET)

    caplog.set_level(logging.INFO)
    async with open_gateway(redis_url) as (api, app):
        turn = (await api.post("/sessions/s/turns", {"input": "Hello", "agent": "any", "delay": 60}))[
            "turn_id"
        ]
        monkeypatch.setattr(Subscription if part == "aclose" else EventStream, part, broken)
        app.drain()
        assert (await api.http.get("/sessions/s/events")).status_code == status
        monkeypatch.undo()
        told = [vars(one) for one in caplog.records]
        faults = {one["action"] for one in told if one["levelno"] >= logging.ERROR}
        assert faults == {"request_failed" if status == 500 else "stream_failed"}
        (request,) = [one for one in told if one.get("route") == "/sessions/{session}/events"]
        assert request["status"] == status
        await api.post(f"/turns/{turn}/cancel", {})
    assert SECRET not in caplog.text


async def test_a_redis_that_is_away_fills_no_log(caplog):
    """Each request has its own line, and the outage one, however many requests it fails."""
    handler, records = logging.StreamHandler(), []
    handler.addFilter(SeldomOutages())
    handler.emit = records.append
    logging.getLogger("antiphon").addHandler(handler)
    try:
        async with open_gateway(f"redis://127.0.0.1:{free_port()}/0") as (api, _):
            answers = [await api.http.get("/sessions/s") for _ in range(20)]
    finally:
        logging.getLogger("antiphon").removeHandler(handler)
    assert {one.status_code for one in answers} == {503}
    assert [one.action for one in records if one.levelno >= logging.WARNING] == ["outage"]


def test_settings_of_the_status_are_read():
    settings = GatewaySettings.load(environ={"ANTIPHON_GATEWAY_TRACES": "false"})
    assert settings.traces is False
    assert GatewaySettings.load({"traces": "true"}, {}).traces is True
    with pytest.raises(
        SettingsError,
        match=r"ANTIPHON_GATEWAY_TRACES \(--traces\) cannot be read: 'ture' is neither yes nor no",
    ):
        GatewaySettings.load(environ={"ANTIPHON_GATEWAY_TRACES": "ture"})
    with pytest.raises(SettingsError, match="text or json"):
        GatewaySettings.load({"log_format": "xml"}, {})


def test_a_port_that_is_taken_is_named(served, redis_url):
    _, _, port = served()
    done = forks.run([COMMAND, "serve", "--redis-url", redis_url, "--port", "0", "--status-port", str(port)])
    assert done.returncode == 2
    assert f"cannot be served on 127.0.0.1:{port}" in done.stderr
    wait_until(lambda: get(port, "/ready")[0] == 200)


def calls_of(action):
    """How many functions are called, of Python and of C."""
    found = []
    action()
    with uncollected():
        sys.setprofile(lambda frame, event, _: found.append(event) if event in ("call", "c_call") else None)
        action()
        sys.setprofile(None)
    return len(found) - 2  # the action itself, and the end of the profile


def test_what_a_request_and_a_chunk_cost_is_what_the_page_says(spans):
    metrics, traces = GatewayMetrics(), GatewayTraces(spans[0])
    chunk = b'id: 7\ndata: {"seq":7,"at":%d,"type":"text_delta"}\n\n' % (time.time() * 1000)
    headers = [(name.encode(), value.encode()) for name, value in PARENT.items()]
    scope = {"type": "http", "method": "GET", "scheme": "http", "headers": headers}

    def traced():
        with traces.span(scope) as span:
            traces.answered(span, "GET", "/sessions", 200)

    assert calls_of(lambda: metrics.answered("GET", "/sessions", 200, 0.01)) <= 35
    assert calls_of(lambda: metrics.sent(chunk, time.time() - 1)) <= 25
    assert calls_of(traced) <= 400
