"""A worker leaves what a newer release has written to a worker of that release."""

import json

import pytest
from support.ensemble import open_ensemble
from support.stage import FIRST_WORDS, reply

from antiphon.errors import CorruptRecord, TurnCancelled
from antiphon.input.request import KNOWN
from antiphon.model import Message, Usage
from antiphon_worker.loop.steps import StepEntry, encode_entry
from antiphon_worker.process.outcomes import seconds_until_newer


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
