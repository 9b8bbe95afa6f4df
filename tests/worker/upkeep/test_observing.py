"""What operators see of workers: metrics, health, JSON logs and traces; none of it holds what users wrote."""

import json
import logging
import os
import re
import signal
from importlib.metadata import version

import pytest
from support.eventually import wait_until
from support.fresh_python import imported_by
from support.here import running_worker
from support.network import free_port
from support.prometheus import get
from support.stage import Stage, make_app

from antiphon import Agent
from antiphon.client import AsyncClient, Client
from antiphon.encryption import KEYS_VARIABLE, new_key
from antiphon.errors import AgentError, BudgetReached
from antiphon.events import ModelChanged, StepFinished, TextDelta, ToolCallEvent, ToolResultEvent
from antiphon.input.request import AgentSpec, decode_request
from antiphon.model import Budget, Usage
from antiphon.model.revisions import Revision
from antiphon.status import serving_status
from antiphon.telemetry import FIELDS, JSONFormatter, SeldomOutages, TextFormatter, tracer_of_environment
from antiphon.wire.records import ClaimedTurn
from antiphon_worker.app import App
from antiphon_worker.observing import metrics
from antiphon_worker.observing import observer as observing
from antiphon_worker.observing.traces import Traces
from antiphon_worker.process.publisher import TurnSink

pytestmark = [pytest.mark.one_server, pytest.mark.timeout(120)]

SECRET = "geheimnis"


def values(metrics):
    """Each sample of the exposition by its name with labels."""
    lines = [line for line in metrics.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


@pytest.mark.main_path
def test_a_worker_shows_what_it_does_and_nothing_that_users_wrote(redis_url, processes, tmp_path):
    stage, port, place = Stage(tmp_path / "stage"), free_port(), redis_url.removeprefix("redis://")
    worker = processes.worker(
        redis_url, "--status-port", str(port), "--log-format", "json", "--retry-delay", "0.01", env=stage.env
    )
    wait_until(lambda: "status_served" in worker.output, 20)
    wait_until(lambda: get(port, "/ready") == (200, "ok\n"), 20, "the worker is ready")
    assert get(port, "/health") == (200, "ok\n")
    assert get(port, "/secret")[0] == 404
    with Client(redis_url) as client:
        agent = "stage"
        assert client.submit("s", f"tool:note {SECRET}", agent=agent).result(30).text
        with pytest.raises(AgentError):
            client.submit("s", f"fail:rejected {SECRET}", agent=agent).result(30)
        assert client.submit("s", f"fail:limited*1 {SECRET}", agent=agent).result(60).text
        lonely = client.submit("s", SECRET, agent=agent, queue="lonely")
        depth = f'antiphon_queue_depth{{cell="{place}",queue="lonely"}} 1.0'
        wait_until(lambda: depth in get(port, "/metrics")[1], 10)
        assert lonely.cancel() == "cancelled"
    status, text = get(port, "/metrics")
    found = values(text)
    assert status == 200

    def turns(outcome, code=""):
        return f'antiphon_turns_total{{agent="stage",cell="{place}",code="{code}",outcome="{outcome}"}}'

    assert found[turns("finished", "")] == 2
    assert found[turns("failed", "provider_rejected")] == 1
    own = f'agent="stage",cell="{place}"'
    limited = f'{{{own},code="provider_rate_limited",provider="stage"}}'
    assert found[f"antiphon_provider_errors_total{limited}"] == 1
    assert found[f'antiphon_tool_calls_total{{{own},result="ok"}}'] == 1
    assert found[f'antiphon_tokens_total{{{own},direction="output",model="stage-1"}}'] == 3
    assert found[f'antiphon_model_calls_total{{{own},model="stage-1"}}'] == 3
    assert found[f'antiphon_turn_seconds_count{{{own},outcome="finished"}}'] == 2
    assert found[f"antiphon_first_delta_seconds_count{{{own}}}"] == 4
    waited = f"antiphon_accepted_to_first_delta_seconds_count{{{own}}}"
    assert found[waited] == 4, "once for each attempt, and not again when a tool has returned"
    assert found[f'antiphon_redis_seconds_count{{cell="{place}",command="EVALSHA"}}'] > 5
    assert found[f'antiphon_redis_up{{cell="{place}"}}'] == 1
    assert found[f'antiphon_queue_workers{{cell="{place}",queue="antiphon"}}'] == 1
    assert SECRET not in text
    records = [json.loads(line) for line in worker.output.splitlines()]
    assert all([*record][: len(FIELDS)] == [*FIELDS] for record in records)
    (failed,) = [one for one in records if one["action"] == "turn_failed"]
    assert (failed["session"], failed["code"], failed["level"]) == ("s", "provider_rejected", "warning")
    assert SECRET not in worker.output
    before = worker.workers()
    os.kill(before[0], signal.SIGKILL)  # what it has counted stays counted
    wait_until(lambda: worker.workers() not in ([], before), 20, "another process takes its place")
    found = values(get(port, "/metrics")[1])
    assert found[turns("finished")] == 2
    assert found[f'antiphon_worker_deaths_total{{cell="{place}",code="worker_died"}}'] == 1
    assert found[f'antiphon_worker_deaths_total{{cell="{place}",code="loop_stalled"}}'] == 0
    processes_shown = {name for name in found if name.startswith("process_resident_memory_bytes{")}
    assert len(processes_shown) == 2, "the supervisor and the process that took the place of the dead one"


async def test_budgets_that_are_reached_are_counted(redis_url, monkeypatch):
    monkeypatch.setattr("antiphon_worker.process.worker.observer_of", lambda *_: metrics.Metrics("here"))
    agent = Agent("scripted", "any", name="a", budgets=[Budget(tokens=1, per="session")])
    counted = metrics.BUDGETS_REACHED.labels("agent", "reject", "a", "here")
    before = counted._value.get()
    async with running_worker(redis_url, App(agents=[agent])), AsyncClient(redis_url) as client:
        await (await client.submit("s", "Hello", agent="a")).result(20)
        with pytest.raises(BudgetReached):
            await (await client.submit("s", "Again", agent="a")).result(20)
    assert counted._value.get() == before + 1


def test_a_worker_that_drains_is_alive_and_not_ready(redis_url, processes, tmp_path):
    stage, port = Stage(tmp_path / "stage"), free_port()
    worker = processes.worker(redis_url, env=stage.env | {"ANTIPHON_STATUS_PORT": str(port)})
    worker.wait_for_output("takes turns")
    with Client(redis_url) as client:
        turn = client.submit("s", "gate:last", agent="stage")
        wait_until(lambda: stage.notes("waits", gate="last"), 20)
        worker.send_signal(signal.SIGTERM)
        wait_until(lambda: get(port, "/ready") == (503, "It drains.\n"), 10)
        assert get(port, "/health") == (200, "ok\n")
        stage.open("last")
        assert turn.result(30).text
    assert worker.wait() == 0


def test_a_port_that_is_taken_is_named(redis_url, processes, tmp_path):
    port = free_port()
    first = processes.worker(redis_url, "--status-port", str(port))
    first.wait_for_output("status on port")
    second = processes.worker(redis_url, "--status-port", str(port))
    assert second.wait() == 2
    assert f"cannot be served on 127.0.0.1:{port}" in second.output


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics"])
def test_a_status_that_cannot_be_read_has_a_line_in_the_log_without_its_text(path, caplog, capfd):
    def broken(*_):
        raise RuntimeError(SECRET)

    port = free_port()
    with serving_status("127.0.0.1", port, broken, broken, broken):
        status, text = get(port, path)
    assert (status, text) == (500, "It failed: see the log.\n")
    (record,) = [one for one in caplog.records if one.levelname == "ERROR"]
    assert record.action == "status_failed"
    assert record.getMessage().startswith(f"{path} failed: RuntimeError\n")
    assert SECRET not in "".join(record.getMessage()) + capfd.readouterr().err


def test_without_a_setting_nothing_watches_and_nothing_is_imported(redis_url):
    found = imported_by(
        "import antiphon_worker.process.worker, antiphon_worker.commands\n"
        "from antiphon_worker.settings import Settings\n"
        "from antiphon_worker.observing.observer import observer_of\n"
        "assert observer_of(Settings(), 'a', None) is None"
    )
    assert "antiphon_worker.process.worker" in found
    assert [name for name in found if name.startswith(("prometheus", "wsgiref"))] == []
    unasked = ("observing.metrics", "observing.traces")
    assert [name for name in found if name.endswith(unasked)] == []


class _Broken:
    """A watcher that fails at everything."""

    def begin(self, turn):
        return self

    def event(self, event):
        raise RuntimeError(SECRET)

    def command(self, name, seconds):
        """Redis is not its business."""

    def opened(self, agent, known):
        raise RuntimeError(SECRET)

    def end(self, outcome, code, provider):
        raise RuntimeError(SECRET)


async def test_a_watcher_that_fails_does_not_harm_a_turn(redis_url, tmp_path, monkeypatch):
    monkeypatch.setattr("antiphon_worker.process.worker.observer_of", lambda *_: _Broken())
    async with running_worker(redis_url, make_app(Stage(tmp_path))), AsyncClient(redis_url) as client:
        assert (await (await client.submit("s", "Hello", agent="stage")).result(30)).text


def told(span):
    """The attributes of a span, its kind and its status."""
    return {**span.attributes, "kind": span.kind.name, "status": span.status.status_code.name}


@pytest.mark.parametrize("keys", ["", new_key("k")], ids=["in the clear", "sealed"])
async def test_a_trace_leads_from_the_client_through_queue_worker_model_and_tool(
    redis_url, tmp_path, monkeypatch, spans, keys
):
    monkeypatch.setenv(KEYS_VARIABLE, keys)
    tracer, exporter = spans
    monkeypatch.setattr("antiphon_worker.process.worker.observer_of", lambda *_: Traces(tracer))
    async with running_worker(redis_url, make_app(Stage(tmp_path))), AsyncClient(redis_url) as client:
        with tracer.start_as_current_span("request of a user") as root:
            turn = await client.submit("s", f"tool:note {SECRET}", agent="stage", key="1")
        with tracer.start_as_current_span("the same again"):
            assert (await client.submit("s", f"tool:note {SECRET}", agent="stage", key="1")).id == turn.id
        await turn.result(30)
    made = exporter.get_finished_spans()
    ours = {span.name: span for span in made if span.context.trace_id == root.get_span_context().trace_id}
    assert {*ours} == {
        "request of a user", "antiphon.queue", "invoke_agent stage", "chat stage-1", "execute_tool note",
    }  # fmt: skip
    worker = ours["invoke_agent stage"]
    assert worker.parent.span_id == root.get_span_context().span_id
    assert ours["execute_tool note"].parent.span_id == worker.context.span_id
    chat = ours["chat stage-1"]
    assert told(chat).items() >= {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "stage", "gen_ai.request.model": "stage-1",
        "gen_ai.response.model": "stage-1", "gen_ai.conversation.id": "s", "gen_ai.usage.output_tokens": 1,
        "kind": "CLIENT", "status": "UNSET",
    }.items()  # fmt: skip
    assert told(worker).items() >= {
        "gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "stage", "gen_ai.request.model": "stage-1",
        "gen_ai.provider.name": "stage", "kind": "INTERNAL", "status": "UNSET",
    }.items()  # fmt: skip
    assert (told(ours["execute_tool note"])["kind"], told(ours["antiphon.queue"])["kind"]) == (
        "INTERNAL",
        "CONSUMER",
    )
    assert chat.start_time <= chat.end_time <= worker.end_time
    assert all(span.end_time for span in made)
    assert SECRET not in "".join(span.to_json() for span in made)


async def test_a_model_call_that_fails_has_a_span_with_its_error(redis_url, tmp_path, monkeypatch, spans):
    tracer, exporter = spans
    monkeypatch.setattr("antiphon_worker.process.worker.observer_of", lambda *_: Traces(tracer))
    app = make_app(Stage(tmp_path))
    async with running_worker(redis_url, app, retry_delay=0.01), AsyncClient(redis_url) as client:
        failing = await client.submit("s", f"fail:rejected {SECRET}", agent="stage")
        with pytest.raises(AgentError):
            await failing.result(30)
        again = await client.submit("s", f"fail:limited*1 {SECRET}", agent="stage")
        assert (await again.result(30)).text
    made = exporter.get_finished_spans()
    calls = [span for span in made if span.name == "chat stage-1"]
    assert [told(span).get("error.type") for span in calls] == [
        "provider_rejected",
        "provider_rate_limited",
        None,
    ]
    assert [told(span)["status"] for span in calls] == ["ERROR", "ERROR", "UNSET"]
    attempts = [span for span in made if span.name == "invoke_agent stage"]
    assert [told(span)["antiphon.outcome"] for span in attempts] == ["failed", "retrying", "finished"]
    assert [told(span).get("error.type") for span in attempts] == [
        told(one).get("error.type") for one in calls
    ]
    for call, attempt in zip(calls, attempts, strict=True):
        assert call.parent.span_id == attempt.context.span_id
        assert attempt.start_time <= call.start_time <= call.end_time <= attempt.end_time
        assert told(call)["gen_ai.request.model"] == "stage-1"
    assert SECRET not in "".join(span.to_json() for span in made)


def begun(tracer):
    """The watch of an attempt that has begun, before it is known which agent runs it."""
    return Traces(tracer).begin(
        ClaimedTurn(**dict.fromkeys(ClaimedTurn.__struct_fields__[:20], 1) | {"request": b""})
    )


def watched(tracer):
    """The watch of an attempt that has begun, of an agent on OpenAI's chat completions."""
    watch = begun(tracer)
    watch.opened(AgentSpec("openai-chat", "gpt-5", name="support"), Revision("2f1c07d9be52"))
    return watch


def test_spans_have_the_names_of_the_conventions(spans):
    tracer, exporter = spans
    watch = watched(tracer)
    watch.event(
        StepFinished(step=1, model="gpt-5-2026", stop_reason="tool_use", raw_stop_reason="tool_calls")
    )
    watch.event(ToolCallEvent(call_id="c1", name="note"))
    watch.event(ToolResultEvent(call_id="c1", name="note", is_error=True))
    watch.event(
        ModelChanged(source="openai-chat/gpt-5", target="anthropic/claude", code="provider_unavailable")
    )
    watch.event(StepFinished(step=2, model="claude-1", raw_stop_reason="end_turn"))
    watch.end("finished", "", "openai-chat")
    first, tool, failed, last, agent = map(told, exporter.get_finished_spans())
    assert (first["gen_ai.provider.name"], first["gen_ai.response.finish_reasons"]) == (
        "openai",
        ("tool_calls",),
    )
    assert (tool["error.type"], tool["status"]) == ("tool_error", "ERROR")
    assert failed.items() >= {
        "gen_ai.provider.name": "openai", "gen_ai.request.model": "gpt-5", "error.type": "provider_unavailable",
        "status": "ERROR",
    }.items()  # fmt: skip
    assert last.items() >= {
        "gen_ai.provider.name": "anthropic", "gen_ai.request.model": "claude", "gen_ai.response.model": "claude-1",
        "gen_ai.response.finish_reasons": ("end_turn",), "status": "UNSET",
    }.items()  # fmt: skip
    assert (agent["gen_ai.provider.name"], agent["status"]) == ("openai", "UNSET")


def test_a_model_call_has_its_parameters_its_tokens_and_the_time_to_its_first_piece(spans):
    tracer, exporter = spans
    watch = begun(tracer)
    watch.opened(
        AgentSpec("openai", "gpt-5", params={"seed": 7, "temperature": 0.5, "stop": SECRET, "top_p": SECRET}),
        None,
    )
    used = Usage(
        input_tokens=9, cached_input_tokens=5, cache_write_tokens=3, output_tokens=4, reasoning_tokens=2
    )
    for text in ("a", "b"):
        watch.event(TextDelta(text=text))
    watch.event(StepFinished(step=1, model="gpt-5", usage=used))
    watch.event(StepFinished(step=2, model="gpt-5", usage=Usage(input_tokens=9)))
    watch.end("finished", "", "openai")
    first, silent, _ = map(told, exporter.get_finished_spans())
    assert first.items() >= {
        "gen_ai.request.seed": 7, "gen_ai.request.temperature": 0.5, "gen_ai.request.stream": True,
        "gen_ai.usage.cache_read.input_tokens": 5, "gen_ai.usage.cache_creation.input_tokens": 3,
        "gen_ai.usage.reasoning.output_tokens": 2,
    }.items()  # fmt: skip
    assert 0 <= first["gen_ai.response.time_to_first_chunk"] < 1
    assert not {"gen_ai.request.top_p", "gen_ai.request.stop_sequences"} & first.keys()
    assert not [name for name in silent if "cache" in name or "reasoning" in name or "chunk" in name]


@pytest.mark.parametrize(
    ("outcome", "code", "error"),
    [
        ("failed", "turn_timeout", "turn_timeout"),
        ("cancelled", "", "cancelled"),
        ("given_back", "drained", "drained"),
        ("superseded", "", "superseded"),
    ],
)
def test_what_was_cut_off_has_a_span_with_its_error(spans, outcome, code, error):
    tracer, exporter = spans
    answering, working = watched(tracer), watched(tracer)
    answering.event(TextDelta(text=SECRET))
    answering.end(outcome, code, "openai")
    call, _ = exporter.get_finished_spans()
    assert (call.name, told(call)["error.type"], told(call)["status"]) == ("chat gpt-5", error, "ERROR")
    exporter.clear()
    working.event(StepFinished(step=1, model="gpt-5"))
    working.event(ToolCallEvent(call_id="c1", name="note"))
    working.end(outcome, code, "openai")
    _, tool, _ = exporter.get_finished_spans()
    assert (tool.name, told(tool)["error.type"], told(tool)["status"]) == (
        "execute_tool note",
        error,
        "ERROR",
    )


def test_a_turn_that_waits_for_a_decision_has_no_error(spans):
    tracer, exporter = spans
    watch = watched(tracer)
    watch.event(StepFinished(step=1, model="gpt-5"))
    watch.event(ToolCallEvent(call_id="c1", name="note"))
    watch.end("suspended", "", "openai")
    assert [told(span)["status"] for span in exporter.get_finished_spans()] == ["UNSET"] * 3


def test_an_agent_that_comes_with_a_turn_names_no_span(spans):
    tracer, exporter = spans
    watch = begun(tracer)
    watch.opened(AgentSpec("openai", "gpt-5", name=SECRET), None)
    watch.end("failed", "unknown_tool", "openai")
    (agent,) = exporter.get_finished_spans()
    assert (agent.name, told(agent)["error.type"]) == ("invoke_agent", "unknown_tool")
    assert SECRET not in agent.to_json()


def test_spans_name_the_release_and_the_version_of_the_conventions():
    tracer = tracer_of_environment("antiphon-worker")
    scope = tracer.start_span("any").instrumentation_scope
    assert (scope.name, scope.version) == ("antiphon", version("antiphon"))
    assert re.fullmatch(r"https://opentelemetry\.io/schemas/1\.\d+\.0", scope.schema_url)


async def test_without_a_span_a_request_has_no_trace(cell, client):
    turn = await client.submit("s", "Hello", agent="any", delay=60)
    request = (await cell.turn(turn.id)).fields["request"]
    assert decode_request(request).trace == ""
    await turn.cancel()


def test_a_line_of_the_log_is_one_object_whatever_it_holds():
    record = logging.makeLogRecord(
        {"msg": "a %s\nb", "args": ("c",), "levelname": "INFO", "odd": object(), "action": "x", "name": "n"}
    )
    line = JSONFormatter().format(record)
    assert "\n" not in line
    told = json.loads(line)
    assert (told["message"], told["action"], told["odd"][:7]) == ("a c\nb", "x", "<object")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", told["time"])


def test_a_sink_that_nobody_watches_has_no_code_for_it():
    assert "_see" not in TurnSink.body.__code__.co_names
    assert observing.watch_redis("cell", None) == "cell"


@pytest.mark.parametrize("attack", ["\n", "\r\n", "\r", "\x1b[1A\x1b[2K", "\u2028", "\x85"], ids=ascii)
def test_nothing_that_is_logged_looks_like_a_line_of_ours(attack):
    forged = f"no{attack}2026-01-01 00:00:00,000 INFO    [stopped] all is well"
    record = logging.makeLogRecord({"msg": "it said %s", "args": (forged,), "levelname": "WARNING"})
    first, *others = TextFormatter().format(record).splitlines()
    assert "WARNING" in first
    assert all(line.startswith("    ") for line in others)
    assert "\x1b" not in first
    assert len(JSONFormatter().format(record).split("\n")) == 1


def test_a_service_that_names_its_models_anew_each_time_makes_no_series(monkeypatch):
    monkeypatch.setattr(metrics, "_names", set())
    names = [metrics._name(f"model-{number}") for number in range(metrics.MOST_NAMES * 3)]
    assert len(set(names)) == metrics.MOST_NAMES + 1
    assert names[0] == metrics._name("model-0") == "model-0"
    assert [metrics._name(odd) for odd in ("", "a b", "x" * 101, 'a"}', "a\nb")] == ["other"] * 5


OF_TURNS = [one for one in vars(metrics).values() if isinstance(one, metrics.Counter | metrics.Histogram)]


@pytest.mark.parametrize("metric", OF_TURNS, ids=lambda one: one._name)
def test_every_metric_of_turns_has_the_labels_of_their_agent_and_cell(metric):
    assert len(OF_TURNS) == 13
    names = {*metric._labelnames}
    assert names >= ({"cell"} if metric in (metrics.REDIS, metrics.TOOLS_CHANGED) else {"agent", "cell"})


@pytest.mark.parametrize(("revision", "label"), [(Revision("2f1c07d9be52"), "mine"), (None, "inline")])
def test_an_agent_that_comes_with_a_turn_has_no_label_of_its_own(revision, label):
    watch = metrics._Watch(ClaimedTurn, "a")
    watch.opened(AgentSpec("stage", "any", name="mine"), revision)
    assert watch._agent == label


def test_of_the_lines_about_an_outage_one_passes_and_counts_the_others(monkeypatch):
    seldom = SeldomOutages()

    def line(action, place=1):
        record = logging.makeLogRecord({"msg": "away", "action": action, "lineno": place})
        return record.getMessage() if seldom.filter(record) else None

    assert [line("outage") for _ in range(5)] == ["away", None, None, None, None]
    assert line("outage_began", place=2) == "away", "another place"
    assert [line("turn_failed") for _ in range(3)] == ["away"] * 3, "nothing else is left out"
    monkeypatch.setattr(SeldomOutages, "SECONDS", -1.0)
    assert line("outage").startswith("away (4 more of these since ")
    assert line("outage") == "away"
