"""What an operator reads in a worker's log: each change of state by its word, and why turns fail."""

import asyncio
import logging
from contextlib import asynccontextmanager

import pytest
from support.ensemble import agent_spec, open_ensemble
from support.eventually import patience, wait_until, wait_until_async
from support.here import running_worker

from antiphon import Agent, Client
from antiphon.client import AsyncClient
from antiphon.errors import AgentError, ProviderOverloaded, ProviderRejected, ProviderUnauthorized
from antiphon.input.request import WAITS, AgentSpec
from antiphon.testing import script, tool_call
from antiphon.tools import tool
from antiphon_worker import App
from antiphon_worker.process.worker import Worker
from antiphon_worker.providers.scripted import ScriptedProvider
from antiphon_worker.rq.presence import Presence
from antiphon_worker.settings import Settings

pytestmark = pytest.mark.one_server


@pytest.fixture
def working(redis_url, tmp_path, caplog):
    """A worker on this loop, its stage and a client; the log is kept."""
    caplog.set_level(logging.INFO, "antiphon")

    @asynccontextmanager
    async def start(**settings):
        async with open_ensemble(redis_url, tmp_path / "stage") as ensemble, ensemble.worker(**settings):
            yield ensemble

    return start


async def line(caplog, action):
    """The first record with this action, once there is one."""

    def found():
        return [record for record in caplog.records if getattr(record, "action", None) == action]

    return (await wait_until_async(found, 10, f"the log has {action}"))[0]


async def test_a_turn_that_finished_is_called_so(working, caplog):
    async with working() as ensemble:
        turn = await ensemble.submit("s", "hello")
        await turn.result(60)
        record = await line(caplog, "turn_finished")
        assert record.levelname == "INFO"
        assert record.getMessage().startswith(f"turn {turn.id} of session s: finished after ")


async def test_a_turn_that_failed_says_why_and_is_a_warning(working, caplog):
    async with working() as ensemble:
        turn = await ensemble.submit("s", "no fail:unauthorized")
        with pytest.raises(ProviderUnauthorized):
            await turn.result(60)
        record = await line(caplog, "turn_failed")
        assert record.levelname == "WARNING"
        assert ", code provider_unauthorized, provider stage" in record.getMessage()
        assert (record.code, record.provider) == ("provider_unauthorized", "stage")
        assert "does not accept the key" not in record.getMessage()


async def test_a_turn_that_is_tried_again_says_why_and_when(working, caplog):
    async with working(retry_delay=0.02) as ensemble:
        turn = await ensemble.submit("s", "once fail:broken*1")
        await turn.result(60)
        record = await line(caplog, "turn_retrying")
        assert record.levelname == "WARNING"
        assert "retrying after" in record.getMessage()
        assert ", code provider_stream_broken, again_in 0.0, provider stage" in record.getMessage()


async def test_a_delayed_turn_that_is_due_is_no_warning(working, caplog):
    async with working() as ensemble:
        await (await ensemble.submit("s", "later", delay=0.1)).result(60)
        record = await line(caplog, "reaped_due")
        assert (record.levelname, "its delay is over" in record.getMessage()) == ("INFO", True)


@pytest.mark.parametrize(
    ("at_limit", "action", "says"),
    [
        ("reject", "resumed", "so it goes on"),
        ("fail", "not_decided", "nobody decided about a call of it in time"),
    ],
)
async def test_a_time_limit_of_a_call_is_no_warning(working, caplog, at_limit, action, says):
    agent = agent_spec(approval=["note"], approval_timeout=0.1, approval_at_limit=at_limit, version=WAITS)
    async with working() as ensemble:
        turn = await ensemble.submit("s", "tool:note", agent=agent)
        record = await line(caplog, f"reaped_{action}")
        assert (record.levelname, says in record.getMessage()) == ("INFO", True)
        await ensemble.seen("s", "turn_failed" if at_limit == "fail" else "turn_finished")
        assert await turn.status() in ("failed", "finished")


@pytest.mark.main_path
def test_every_line_of_a_worker_process_shows_its_action(redis_url, processes):
    worker = processes.worker(redis_url)
    worker.wait_for_output("takes turns")
    with Client(redis_url) as client:
        turn = client.submit("s", "hello", agent=AgentSpec(provider="scripted", model="any"))
        turn.result(timeout=10)
    wait_until(lambda: f"INFO    [turn_finished] turn {turn.id}" in worker.output, 10, "the line of the turn")
    assert "[started] worker" in worker.output


async def test_a_worker_announces_itself_once_clients_see_it(redis_url, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "antiphon")
    reached, released, beat = asyncio.Event(), asyncio.Event(), Presence._beat

    async def late(self, *arguments):
        reached.set()
        await released.wait()
        await beat(self, *arguments)

    monkeypatch.setattr(Presence, "_beat", late)
    async with running_worker(redis_url, at_once=True):
        await asyncio.wait_for(reached.wait(), patience(10))
        await asyncio.sleep(0)  # all services have begun
        assert "takes turns" not in caplog.text
        released.set()
        await line(caplog, "started")


def quoting(asked):
    """A service whose errors quote the user, who says which one it is to be."""

    async def answer(request):
        told = request.messages[-1]
        where = {"status": 422, "request_id": "req_7"}
        if told.role == "tool":
            return "done"
        match told.text.split()[0]:
            case "rejected":
                raise ProviderRejected(f"you wrote {told.text}", **where)
            case "overloaded":
                raise ProviderOverloaded(f"you wrote {told.text}", retry_after=0.01, **where)
            case "bug":
                raise ValueError(told.text)
            case "wait":
                asked.set()
                await asyncio.Event().wait()
            case "tool":
                return tool_call("raises", text=told.text)
        return f"you wrote {told.text}"

    return ScriptedProvider(script(answer, repeat=True), name="quoting")


@tool
async def raises(text: str) -> str:
    """Raise an exception that says what the user wrote."""
    raise LookupError(text)


async def test_what_users_wrote_is_in_no_line_above_debug_and_in_no_record_of_rq(redis_url, caplog):
    caplog.set_level(logging.DEBUG)
    asked, mark = asyncio.Event(), "4111-1111"
    agent = Agent(name="quoter", provider="quoting", model="any", tools=[raises])
    app = App(agents=[agent], providers={"quoting": quoting(asked)})
    worker = Worker(Settings(error_limit=2, retry_delay=0.01), app, url=redis_url)
    running = asyncio.create_task(worker.run())
    ended = {}
    try:
        async with AsyncClient(redis_url) as client:
            for text in ("fine", "rejected", "overloaded", "bug", "tool"):
                turn = await client.submit(text, f"{text} {mark}", agent="quoter")
                try:
                    ended[text] = (await turn.result(60)).text
                except AgentError as error:
                    ended[text] = error.code
            turn = await client.submit("wait", f"wait {mark}", agent="quoter")
            await asked.wait()
            await turn.cancel(f"because of {mark}")
            with pytest.raises(AgentError, match=mark):
                await turn.result(60)
            await line(caplog, "turn_cancelled")
            redis = client.connections.cell_of_session("wait").redis
            jobs = [await redis.hgetall(key) async for key in redis.scan_iter("rq:job:*")]
            workers = [await redis.hgetall(key) async for key in redis.scan_iter("rq:worker:*")]
    finally:
        worker.abort()
        await running
        await app.aclose()
    assert ended == {
        "fine": f"you wrote fine {mark}", "rejected": "provider_rejected", "overloaded": "provider_overloaded",
        "bug": "internal_error", "tool": "done",
    }  # fmt: skip
    above = [record for record in caplog.records if record.levelno > logging.DEBUG]
    assert [text for text in map(logging.Formatter().format, above) if mark in text] == []
    assert [record for record in above if mark in repr(vars(record))] == []
    at_debug = "".join(
        r.getMessage() for r in caplog.records if r.levelno == logging.DEBUG and "antiphon" in r.name
    )
    assert f"you wrote rejected {mark}" in at_debug
    assert f"because of {mark}" in at_debug
    failed = [record for record in above if getattr(record, "action", "") == "turn_failed"]
    assert [(r.code, getattr(r, "status", None), getattr(r, "request_id", None)) for r in failed] == [
        ("provider_rejected", 422, "req_7"), ("provider_overloaded", 422, "req_7"), ("internal_error", None, None),
    ]  # fmt: skip
    assert "in stream\n" in next(r for r in above if getattr(r, "action", "") == "turn_broke").getMessage()
    assert len(jobs) == 6
    assert mark not in repr(workers)
    reasons = [job.pop(b"exc_info").decode() for job in jobs]
    assert mark not in repr(jobs)
    assert sorted(reason.split(" ")[0] for reason in reasons if mark in reason) == ["because", "you", "you"]
