"""A worker leaves what a newer release has written to a worker of that release."""

import asyncio
import json
import time
from contextlib import asynccontextmanager
from hashlib import sha256

import pytest
from support.ensemble import open_ensemble
from support.eventually import wait_until_async
from support.other_stage import app_with
from support.stage import FIRST_WORDS, reply

from antiphon import Agent
from antiphon.errors import CorruptRecord, TurnCancelled, UnknownAgent, UnknownTool
from antiphon.input.request import KNOWN, AgentSpec
from antiphon.model import FallbackModel, Message, Usage
from antiphon.wire.lists.workers import FIELD
from antiphon_worker.loop.steps import StepEntry, encode_entry
from antiphon_worker.process.outcomes import seconds_until_newer
from antiphon_worker.process.worker import Worker
from antiphon_worker.rq.presence import AppParts
from antiphon_worker.settings import Settings


async def change_request(ensemble, turn, change) -> None:
    cell = ensemble.client.connections.cell_of_session(turn.session_id)
    request = json.loads(await ensemble.field(turn, "request"))
    change(request)
    await cell.redis.hset(cell.keys.turn(turn.id), "request", json.dumps(request))


async def of_request(ensemble, turn, version) -> None:
    await change_request(ensemble, turn, lambda request: request.update(version=version))


async def of_travelling_agent(ensemble, turn, version) -> None:
    await change_request(ensemble, turn, lambda request: request["agent"].update(version=version))


async def of_session_agent(ensemble, turn, version) -> None:
    await change_request(ensemble, turn, lambda request: request.pop("agent"))
    cell = ensemble.client.connections.cell_of_session(turn.session_id)
    agent = json.dumps({"provider": "stage", "model": "m", "version": version})
    await cell.redis.hset(cell.keys.session(turn.session_id), "agent", agent)


async def of_journal_entry(ensemble, turn, version) -> None:
    cell = ensemble.client.connections.cell_of_session(turn.session_id)
    step = StepEntry(
        1, Message.assistant(FIRST_WORDS + reply([Message.user("Hello")])), Usage(), "end", None, "m"
    )
    entry = json.dumps(json.loads(encode_entry(step)) | {"version": version})
    await cell.redis.rpush(cell.keys.journal(turn.id), entry)
    await cell.redis.hset(cell.keys.turn(turn.id), "started_at", int(time.time() * 1000))  # it has run


MARKS = {
    of_request: "request",
    of_travelling_agent: "agent",
    of_session_agent: "agent",
    of_journal_entry: "journal entry",
}
EVERY = pytest.mark.parametrize("mark", MARKS, ids=lambda mark: mark.__name__)


@pytest.mark.main_path
@pytest.mark.one_server
@pytest.mark.parametrize(("mark", "form"), [*((mark, int) for mark in MARKS), (of_request, str)])
async def test_what_is_newer_is_given_back_until_a_newer_worker_comes(processes, mark, form, ensemble):
    turn = await ensemble.submit("s", "Hello")
    kind = MARKS[mark]
    await mark(ensemble, turn, form(KNOWN[kind] + 1))
    async with ensemble.worker():
        events = await ensemble.seen("s", "turn_retrying", times=2)
    info = await turn.info()
    assert (info.status, info.code) == ("retrying", "newer_release")
    assert f"The {kind} of this turn has version {KNOWN[kind] + 1}" in (info.error or "")
    assert [message.text for message in info.input] == ["Hello"]
    assert [await ensemble.field(turn, name) for name in ("attempt", "errors", "crashes")] == ["0"] * 3
    assert all(event.retry_at > event.at for event in events if event.type == "turn_retrying")
    ensemble.supervisor(env={"ANTIPHON_APP": "support.next_stage:app"})
    assert (await turn.result(60)).text
    assert (await turn.info()).error is None
    await ensemble.whole("s")


@EVERY
@pytest.mark.parametrize(
    "version", ["next", -3.5, [2], "9" * 5000], ids=["word", "fraction", "list", "endless"]
)
async def test_what_is_damaged_fails(ensemble, mark, version):
    turn = await ensemble.submit("s", "Hello")
    await mark(ensemble, turn, version)
    async with ensemble.worker():
        with pytest.raises(CorruptRecord, match="version"):
            await turn.result(60)


async def test_a_newer_request_in_another_form_is_shown_without_its_input_and_can_be_cancelled(ensemble):
    turn = await ensemble.submit("s", "Hello")
    await change_request(
        ensemble, turn, lambda r: r.update(version=KNOWN["request"] + 1, messages={"in": "u"})
    )
    async with ensemble.worker():
        await ensemble.seen("s", "turn_retrying")
        info = await turn.info()
        assert (info.input, "newer release" in (info.error or "")) == ([], True)
        await turn.cancel("not needed")
        with pytest.raises(TurnCancelled):
            await turn.result(60)


async def test_the_log_says_once_that_turns_need_a_newer_worker(redis_url, tmp_path, caplog):
    async with open_ensemble(redis_url, tmp_path / "stage") as ensemble:
        turns = []
        for session in ("s1", "s2"):
            turns.append(turn := await ensemble.submit(session, "Hello"))
            await of_request(ensemble, turn, KNOWN["request"] + 1)
        async with ensemble.worker():
            for session in ("s1", "s2"):
                await ensemble.seen(session, "turn_retrying")
            for turn in turns:
                await turn.cancel("not needed")
                with pytest.raises(TurnCancelled):
                    await turn.result(60)
    warnings = [line.getMessage() for line in caplog.records if line.levelname == "WARNING"]
    newer = [text for text in warnings if "newer release" in text]
    assert len(newer) == 1
    assert newer[0].startswith(
        f"The request of this turn has version {KNOWN['request'] + 1}, but this worker supports versions up to "
    )


async def test_later_waits_are_longer(cell):
    turn = await cell.started("t1")
    waits = []
    for turn.spent_ms in (0, 40_000, 3_600_000):
        waits.append(seconds_until_newer(turn))
    assert waits == [2, 10, 30]


ENV = {"ANTIPHON_APP": "support.other_stage:app"}


@asynccontextmanager
async def worker_with(ensemble, *agents, tools=(), approved=(), **settings):
    """A worker on this loop whose record says what its App has."""
    app = app_with(ensemble.stage, *agents, tools=tools, approved=approved)
    worker = Worker(Settings(**settings), app, url=ensemble.url)
    running = asyncio.create_task(worker.run())
    try:
        await listed(ensemble, worker.name)
        yield worker
    finally:
        worker.abort()
        await running
        await app.aclose()


async def listed(ensemble, name="", number=1):
    """Wait until so many workers say what their Apps have."""
    redis = ensemble.client.connections.cell_of_session("s").redis

    async def found():
        keys = [key async for key in redis.scan_iter("rq:worker:*") if key.count(b":") == 2]
        named = [key for key in keys if name in key.decode() and await redis.hget(key, FIELD)]
        return len(named) >= number

    await wait_until_async(found, 20, "the workers are listed")


async def starts(ensemble, session):
    return [event.worker for event in await ensemble.events(session) if event.type == "turn_started"]


@pytest.mark.main_path
@pytest.mark.one_server
async def test_a_turn_goes_to_the_process_that_has_its_agent(processes, ensemble):
    """Real processes, old and new App side by side: each turn runs, and asks each App at most once."""
    for names in ("old", "old new"):
        ensemble.supervisor(env={**ENV, "STAGE_APP": names})
    await listed(ensemble, number=2)
    turns = [await ensemble.submit(f"s{n}", "Hello", agent="new" if n % 2 else "old") for n in range(12)]
    for turn in turns:
        assert (await turn.result(30)).text
        info = await turn.info()
        assert (info.run, info.attempt) == (1, 1)
        assert [await ensemble.field(turn, name) for name in ("errors", "crashes")] == ["0", "0"]
        assert len(await starts(ensemble, turn.session_id)) <= 2
    await ensemble.whole(*(turn.session_id for turn in turns))


@pytest.mark.parametrize("needs", ["agent", "tool"])
async def test_a_turn_waits_in_its_queue_for_a_busy_worker_and_starts_as_soon_as_it_has_room(
    redis_url, tmp_path, needs
):
    """The idle worker that lacks it looks once, and leaves it where it is."""
    travelling = AgentSpec("stage", "any", tools=["drill"])
    asked = "smith" if needs == "agent" else travelling
    async with (
        open_ensemble(redis_url, tmp_path / "stage") as ensemble,
        worker_with(ensemble, "smith", tools=("drill",), concurrency=1) as having,
    ):
        busy = await ensemble.submit("busy", "gate:free", agent="smith")
        await ensemble.waits("free")
        async with worker_with(ensemble, "baker") as lacking:
            turn = await ensemble.submit("s", "Hello", agent=asked)
            (retrying,) = [e for e in await ensemble.seen("s", "turn_retrying") if e.type == "turn_retrying"]
            assert retrying.code == f"unknown_{needs}"
            other = await ensemble.submit("other", "Hello", agent="baker")
            assert (await other.result(20)).text  # passes the turn that waits
            assert await turn.status() == "queued"
            assert await starts(ensemble, "s") == [lacking.name]
            ensemble.stage.open("free")
            await turn.result(20)
            assert await starts(ensemble, "s") == [lacking.name, having.name]
            await busy.result(20)


async def open_call(turn):
    """The one call that the turn waits for, as soon as it does."""

    async def waits():
        return await turn.status() == "suspended"

    await wait_until_async(waits, 20, "the turn is suspended")
    (call,) = (await turn.info()).calls
    return call


async def test_an_approved_call_goes_to_a_worker_that_has_its_tool(ensemble):
    """The agent of another worker has the same name, and not the tool."""
    async with worker_with(ensemble, "smith", approved=("drill",), concurrency=1) as having:
        turn = await ensemble.submit("s", "go tool:drill", agent="smith")
        call = await open_call(turn)
        busy = await ensemble.submit("busy", "gate:free", agent="smith")
        await ensemble.waits("free")
        async with worker_with(ensemble, "smith") as lacking:
            await turn.approve(call.call_id, by="ada")
            (retrying,) = [e for e in await ensemble.seen("s", "turn_retrying") if e.type == "turn_retrying"]
            assert retrying.code == "revision_unavailable"
            ensemble.stage.open("free")
            await turn.result(20)
            await busy.result(20)
            assert await starts(ensemble, "s") == [having.name, lacking.name, having.name]
        assert len(ensemble.stage.notes("tool")) == 1
        info = await turn.info()
        assert (info.attempt, [one.by for one in info.decisions]) == (2, ["ada"])
        await ensemble.whole("s")


async def test_an_approved_call_that_no_worker_can_run_fails_its_turn(ensemble):
    async with worker_with(ensemble, "smith", approved=("drill", "saw")):
        turn = await ensemble.submit("s", "go tool:drill", agent="smith")
        call = await open_call(turn)
        rejected = await ensemble.submit("t", "go tool:saw", agent="smith")
        other = await open_call(rejected)
    async with worker_with(ensemble, "smith"):
        await turn.approve(call.call_id, by="ada")
        with pytest.raises(
            UnknownTool, match=r"no tool 'drill' on this worker.*No worker of the queue .* start one with"
        ):
            await turn.result(20)
        await rejected.reject(other.call_id)  # needs no tool
        assert (await rejected.result(20)).text
    assert ensemble.stage.notes("tool") == []


async def test_two_apps_that_both_lack_it_ask_each_other_nothing(ensemble):
    async with worker_with(ensemble, "baker"), worker_with(ensemble, "brewer"):
        turn = await ensemble.submit("s", "Hello", agent="smith")
        with pytest.raises(
            UnknownAgent, match="No worker of the queue antiphon has it: start one with"
        ) as caught:
            await turn.result(20)
        assert "--app module:app --queues antiphon" in caught.value.message
        assert len(await starts(ensemble, "s")) == 1
        tools = await ensemble.submit("t", "Hello", agent=AgentSpec("stage", "any", tools=["drill"]))
        with pytest.raises(UnknownTool, match="start one"):
            await tools.result(20)


@pytest.mark.parametrize(("second", "looks"), [("brewer", ["baker", "brewer"]), ("baker", ["brewer"])])
async def test_a_record_that_promises_too_much_makes_no_loop(ensemble, monkeypatch, second, looks):
    """Each App looks at the turn once; then it stands in the queue for a worker that has what it needs.

    The worker that looks second is busy until the other one has. An honest record spares its worker the look.
    """
    truth, promised = AppParts.encoded, AppParts("ant", agents=["smith"], more=True)

    def lie(own):
        return truth(promised if own.agents == ["brewer"] else own)

    monkeypatch.setattr(AppParts, "encoded", lie)  # in its record, and not in what it knows of itself
    monkeypatch.setattr(AppParts, "digest", lambda own: sha256(truth(own)).hexdigest()[:10])
    async with (
        worker_with(ensemble, "baker", concurrency=1) as baker,
        worker_with(ensemble, "brewer", concurrency=1) as brewer,
    ):
        names = {"baker": baker.name, "brewer": brewer.name}
        busy = await ensemble.submit("busy", "gate:free", agent=second)
        await ensemble.waits("free")
        turn = await ensemble.submit("s", "Hello", agent="smith")
        await ensemble.seen("s", "turn_retrying")
        ensemble.stage.open("free")
        await busy.result(20)
        await ensemble.seen("s", "turn_retrying", times=len(looks))
        for _ in range(3):  # claims, which pass it
            await (await ensemble.submit("other", "Hello", agent="baker")).result(20)
        assert await starts(ensemble, "s") == [names[look] for look in looks]
        assert await turn.cancel("nobody has it") == "cancelled"


def test_a_record_has_a_bound():
    parts = AppParts.of("ant", [f"a{n}" for n in range(10_000)], [], [], [])
    assert len(parts.encoded()) < 10_000
    assert parts.has("anything")
    assert not AppParts.of("ant", ["a"], [], [], []).has("b")


def test_what_an_agent_needs_of_an_app():
    parts = AppParts.of("ant", ["a"], ["t"], ["p"], ["enough"])
    assert parts.has("a")
    assert parts.has(None)
    assert parts.has(AgentSpec("p", "m", tools=["t"]))
    assert parts.has(Agent("scripted", "m", name="a").spec())
    assert not parts.has(AgentSpec("q", "m"))
    assert parts.has(AgentSpec("p", "m", fallback=[FallbackModel("p", "n")]))
    assert not parts.has(AgentSpec("p", "m", fallback=[FallbackModel("q", "n")]))
    assert not parts.has(AgentSpec("p", "m", tools=["t", "u"]))
    own = AppParts.of("ant", ["a"], ["t"], [], [], ["u"])
    assert own.has("a", {"t", "u"})
    assert not own.has("a", {"t", "v"})
