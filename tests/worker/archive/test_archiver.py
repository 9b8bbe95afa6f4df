"""The archiver: what ends is saved once, whatever happens meanwhile; what is deleted is gone from the store too."""

import asyncio
import logging
import time
from contextlib import asynccontextmanager

import pytest
from redis import Redis
from support.archives import OwnStore, session_keys
from support.cells import body, load_scripts, open_cell
from support.eventually import wait_until_async

from antiphon.input.ids import SessionId
from antiphon.model import Message, decode_message
from antiphon.redis.archived import restore
from antiphon.session.saved import read_saved
from antiphon.stores import PostgresStore, RedisStore, SQLiteStore
from antiphon.wire.archiving import begin_archiving
from antiphon.wire.editing import Change, FieldChange, change_session, delete_session
from antiphon_worker import archive as archiving
from antiphon_worker.archive import Archive, Archiver, ArchiveUnavailable
from antiphon_worker.process.history import restore_before
from antiphon_worker.process.lease import Lease, Stop, StopSignal

MINUTE = 60_000
SOON = 600_000


@pytest.fixture(params=["own", "sqlite", "redis", "postgres"])
def store(request, tmp_path, redis_url):
    match request.param:
        case "own":
            yield OwnStore()
        case "sqlite":
            with SQLiteStore(tmp_path / "archive.db") as opened:
                yield opened
        case "postgres":
            with PostgresStore(request.getfixturevalue("postgres").url, table="archived") as opened:
                for session_id in opened.list_sessions():
                    opened.delete(session_id)
                yield opened
        case _:
            with RedisStore(redis_url) as opened:
                yield opened


@asynccontextmanager
async def archiving_cell(url):
    """A cell whose workers have an archive."""
    async with open_cell(url) as cell:
        await begin_archiving(cell)
        yield cell


@pytest.fixture
def cell(redis_url):
    return archiving_cell(redis_url)


def said(text):
    return [Message.user(text).to_json(), Message.assistant(f"{text}, you said").to_json()]


async def talk(cell, turn="t1", session="s", *, archive=None, **options):
    """One more finished turn, run by a worker with this archive."""
    claimed = await cell.started(turn, session, ttl_ms=SOON, **options)
    if archive is not None and claimed.restored != "1":
        await restore(cell, archive.load, claimed.session_id, claimed.fence)
    assert await cell.end(claimed, messages=said(f"{turn} in {session}"))


def texts(data):
    return [message.text for message in read_saved(data).messages]


async def end(cell, session="s"):
    """The session's time is over."""
    with Redis.from_url(
        f"redis://127.0.0.1:{cell.redis.connection_pool.connection_kwargs['port']}/0"
    ) as redis:
        assert redis.hget(f"ant:session:{session}", "archived")
        redis.delete(*session_keys(session))


async def test_an_ending_session_is_saved_as_to_dict_gives_it_and_once(cell, store):
    archive = Archive(store)
    await talk(cell, archive=archive)
    fields = [FieldChange("system", b"", b"be brief"), FieldChange("metadata", b"", b'{"plan":"free"}')]
    await change_session(cell, "s", "op", Change(fields), when="any", ttl_ms=SOON)
    await Archiver(cell, archive).sweep()
    data = store.load("s")
    assert (data["version"], data["system"], data["metadata"]) == (1, "be brief", {"plan": "free"})
    assert texts(data) == ["t1 in s", "t1 in s, you said"]
    store.save("s", {**data, "metadata": {"saved": "by hand"}})
    await cell.redis.zadd("ant:ending", {"s": 0})
    await Archiver(cell, archive).sweep()
    assert store.load("s")["metadata"] == {"saved": "by hand"}


async def test_a_session_that_began_anew_is_joined_with_its_past_before_it_is_saved(cell, store):
    archive = Archive(store)
    await talk(cell, archive=archive)
    await Archiver(cell, archive).sweep()
    await end(cell)
    await talk(cell, "t2")
    await Archiver(cell, archive).sweep()
    assert texts(store.load("s"))[::2] == ["t1 in s", "t2 in s"]
    assert await cell.redis.llen("ant:history:s") == 4


async def let_expire(cell, session="s"):
    """No worker looks while the session's life ends: its hash alone lives on."""
    for key in session_keys(session)[1:]:
        await cell.redis.delete(key)
    await cell.redis.pexpire(f"ant:session:{session}", 3_600_000)


async def test_workers_that_come_back_after_a_restored_session_has_ended_lose_nothing(cell, store):
    archive = Archive(store)
    for number in range(3):
        await talk(cell, f"t{number}", archive=archive)
    await Archiver(cell, archive).sweep()
    await end(cell)
    await talk(cell, "t3", archive=archive)  # restored
    await Archiver(cell, archive).sweep()
    await let_expire(cell)
    await talk(cell, "t4", archive=archive)
    await Archiver(cell, archive).sweep()
    assert texts(store.load("s"))[::2] == [f"t{number} in s" for number in range(5)]


async def saved(own, cell, number, history=None):
    """A session of so many turns whose copy is in the store, and which goes on with this history."""
    archive = Archive(own)
    for index in range(number):
        await talk(cell, f"t{index}", archive=archive)
    await Archiver(cell, archive).sweep()
    if history is not None:
        await cell.redis.delete("ant:history:s")
        await cell.redis.rpush("ant:history:s", *history)
    return archive


async def test_what_redis_has_lost_of_a_session_stays_in_its_copy(redis_url, own, caplog, monkeypatch):
    """As after a power loss: the history has gone back to an earlier state, and then the session goes on."""

    async def dies_before_it_marks(*_):
        return False

    async with archiving_cell(redis_url) as cell:
        archive = await saved(own, cell, 3, said("t0 in s"))
        kept = ["t0 in s", "t1 in s", "t2 in s"]
        monkeypatch.setattr(archiving, "mark_archived", dies_before_it_marks)
        for turn in ("t9", "t10"):
            await talk(cell, turn, archive=archive)
            kept.append(f"{turn} in s")
            for _ in range(2):
                caplog.clear()
                await cell.redis.zadd("ant:ending", {"s": 0})
                with caplog.at_level(logging.WARNING, "antiphon.archiver"):
                    await Archiver(cell, archive).sweep()
                assert "has lost 4 messages" in caplog.text
                assert texts(own.load("s"))[::2] == kept
        assert own.list_sessions() == ["s"]


async def test_a_copy_that_was_longer_on_purpose_stays_for_a_day(cell, own):
    archive = await saved(own, cell, 3)
    await change_session(cell, "s", "op", Change(keep=2), when="any", ttl_ms=SOON)
    await Archiver(cell, archive).sweep()
    assert texts(own.load("s")) == ["t0 in s", "t0 in s, you said"]
    beside = next(name for name in own.list_sessions() if name != "s")
    assert texts(own.load(beside))[::2] == ["t0 in s", "t1 in s", "t2 in s"]
    await cell.wait(24 * 60 * MINUTE - 1)
    await Archiver(cell, archive).sweep()
    assert beside in own.list_sessions()
    await cell.wait(1)
    await Archiver(cell, archive).sweep()
    assert own.list_sessions() == ["s"]


async def test_a_session_that_went_on_longer_after_it_was_shortened_is_compared_again(cell, own):
    archive = await saved(own, cell, 2)
    await change_session(cell, "s", "op", Change(keep=0), when="any", ttl_ms=SOON)
    await talk(cell, "t8", archive=archive)
    await Archiver(cell, archive).sweep()
    assert texts(own.load("s"))[::2] == ["t8 in s"]
    assert await cell.redis.hget("ant:session:s", "shortened") is None
    await cell.redis.ltrim("ant:history:s", 0, 0)
    await talk(cell, "t9", archive=archive)
    await Archiver(cell, archive).sweep()
    assert texts(own.load("s"))[::2] == ["t8 in s", "t9 in s"]


async def test_a_copy_that_cannot_be_read_is_kept_beside_the_new_one(cell, own):
    own.texts["s"] = '{"version": "?"}'
    await talk(cell)
    await cell.redis.hset("ant:session:s", "restored", "1")
    await Archiver(cell, Archive(own)).sweep()
    assert texts(own.load("s")) == ["t1 in s", "t1 in s, you said"]
    assert '{"version": "?"}' in own.texts.values()


async def test_two_archivers_save_each_session_once(cell, own):
    sessions = [f"s{number}" for number in range(30)]
    for session in sessions:
        await talk(cell, f"turn-{session}", session, archive=Archive(own))
    await asyncio.gather(*[Archiver(cell, Archive(own)).sweep() for _ in range(4)])
    assert sorted(own.saves) == sorted(sessions)
    assert await cell.redis.get("ant:seq_floor") == b"3"


async def test_one_that_dies_between_saving_and_marking_leaves_a_session_that_is_saved_again(
    cell, store, monkeypatch
):
    archive = Archive(store)
    await talk(cell, archive=archive)
    with monkeypatch.context() as patch:
        patch.setattr(archiving, "mark_archived", died)
        with pytest.raises(SystemError):
            await Archiver(cell, archive).sweep()
    assert texts(store.load("s")) == ["t1 in s", "t1 in s, you said"]
    await talk(cell, "t2", archive=archive)
    assert await cell.redis.llen("ant:history:s") == 4, "its own copy is not put in front of it"
    await Archiver(cell, archive).sweep()
    assert len(texts(store.load("s"))) == 4
    assert await cell.redis.hget("ant:session:s", "archived")


async def died(*_):
    raise SystemError("the process is gone")


async def test_one_that_dies_between_reading_and_saving_leaves_a_session_for_the_next(
    cell, store, monkeypatch
):
    archive = Archive(store)
    await talk(cell, archive=archive)
    with monkeypatch.context() as patch:
        patch.setattr(Archiver, "_save", died)
        with pytest.raises(SystemError):
            await Archiver(cell, archive).sweep()
    assert store.load("s") is None
    await Archiver(cell, archive).sweep()
    assert store.load("s") is None
    await cell.wait(MINUTE + 1)
    await Archiver(cell, archive).sweep()
    assert len(texts(store.load("s"))) == 2


async def test_a_process_that_stood_still_since_it_read_a_session_does_not_save_it(cell, own, monkeypatch):
    await talk(cell, archive=Archive(own))
    monkeypatch.setattr(archiving, "SAVE_WITHIN_SECONDS", -1.0)
    await Archiver(cell, Archive(own)).sweep()
    assert own.saves == []
    assert await cell.redis.hget("ant:session:s", "archived") == b""


async def test_a_turn_that_comes_while_its_session_is_saved_makes_it_live_again(cell, own):
    archive = Archive(own)
    await talk(cell, archive=archive)
    own.held.add("save")
    saving = asyncio.create_task(Archiver(cell, archive).sweep())
    await wait_until_async(own.begun["save"].is_set)
    await talk(cell, "t2")
    own.let_go()
    await saving
    assert own.saves == ["s", "s"], "it was not marked, and so read and saved again"
    assert len(texts(own.load("s"))) == 4
    assert len(await cell.history()) == 4


PHASES = ["before it is read", "while it is saved", "before it is marked", "archived", "after its life"]


@pytest.mark.parametrize("when", PHASES)
async def test_a_deleted_session_is_gone_from_the_store_a_minute_later(cell, own, when, monkeypatch):
    archive = Archive(own)
    await talk(cell, archive=archive)
    await delete_at(when, cell, own, archive, monkeypatch)
    await cell.wait(MINUTE)
    await Archiver(cell, archive).sweep()
    assert own.texts == {}
    assert await cell.redis.exists(*session_keys("s")[1:], "ant:forget") == 0
    assert "created" not in [name.decode() for name in await cell.redis.hkeys("ant:session:s")]
    await talk(cell, "t2", archive=archive)
    assert await cell.history() == said("t2 in s")


@pytest.mark.parametrize("when", PHASES)
async def test_a_deleted_session_does_not_come_back_under_its_id(cell, own, when, monkeypatch):
    archive = Archive(own)
    await talk(cell, archive=archive)
    await delete_at(when, cell, own, archive, monkeypatch)
    await talk(cell, "t2", archive=archive)
    assert await cell.history() == said("t2 in s")
    for _ in range(3):
        await Archiver(cell, archive).sweep()
        await cell.wait(MINUTE + 1)
    assert texts(own.load("s")) == ["t2 in s", "t2 in s, you said"]


async def delete_at(when, cell, own, archive, monkeypatch):
    session = SessionId("s")
    if when == "before it is read":
        return await delete_session(cell, session)
    if when == "before it is marked":
        mark = archiving.mark_archived

        async def deleted_first(*arguments):
            monkeypatch.setattr(archiving, "mark_archived", mark)
            await delete_session(cell, session)
            return await mark(*arguments)

        monkeypatch.setattr(archiving, "mark_archived", deleted_first)
    elif when == "while it is saved":
        own.held.add("save")
    sweeping = asyncio.create_task(Archiver(cell, archive).sweep())
    if when == "while it is saved":
        await wait_until_async(own.begun["save"].is_set)
        await delete_session(cell, session)
        own.let_go()
    await sweeping
    assert own.saves == ["s"]
    if when == "after its life":
        await end(cell)
    if when in ("archived", "after its life"):
        await delete_session(cell, session)
    return None


async def test_while_the_store_fails_sessions_are_kept_and_saved_when_it_works_again(
    redis_url, own, monkeypatch, caplog
):
    monkeypatch.setattr("antiphon_worker.archive.FIRST_RETRY_SECONDS", 0.0)
    monkeypatch.setattr("antiphon_worker.archive.LONGEST_RETRY_SECONDS", 0.0)
    async with archiving_cell(redis_url) as cell:
        archive = Archive(own)
        sessions = [f"s{number}" for number in range(5)]
        for session in sessions:
            await talk(cell, f"turn-{session}", session, archive=archive)
            await cell.redis.pexpire(f"ant:session:{session}", 3600_000 + 5000)
            await cell.redis.pexpire(f"ant:history:{session}", 5000)
        own.failing = True
        with caplog.at_level(logging.INFO, "antiphon.archive"):
            for _ in range(3):
                await Archiver(cell, archive).sweep()
            left = [await cell.redis.pttl(f"ant:history:{session}") for session in sessions]
            assert min(left) > SOON - 5000
            own.failing = False
            await cell.wait(MINUTE + 1)
            await Archiver(cell, archive).sweep()
        assert sorted(own.texts) == sessions
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) == 2, lines
        assert lines[0].startswith("the archive fails: ConnectionError. ")
        assert lines[1].startswith("the archive works again")


async def test_a_failing_store_is_left_alone_until_it_is_time_to_try_again(cell, own):
    await talk(cell, archive=Archive(own))
    own.failing = True
    one = Archiver(cell, Archive(own))
    await one.sweep()
    own.failing = False
    await cell.wait(MINUTE + 1)
    await one.sweep()
    assert own.saves == [], "a second has not passed"


async def test_a_session_that_cannot_be_read_does_not_stop_the_others(cell, own, caplog):
    archive = Archive(own)
    await talk(cell, session="bad", archive=archive)
    await talk(cell, "t2", archive=archive)
    await cell.redis.lset("ant:history:bad", 0, "{")
    await Archiver(cell, archive).sweep()
    assert list(own.texts) == ["s"]
    assert "session bad cannot be archived" in caplog.text


async def test_a_session_that_ended_unsaved_is_named_in_the_log(cell, own, caplog):
    await talk(cell, archive=Archive(own))
    await cell.redis.delete("ant:history:s")
    await cell.redis.pexpire("ant:session:s", 3000_000)
    await Archiver(cell, Archive(own)).sweep()
    assert "session s ended before a worker could archive it" in caplog.text


async def test_children_a_closed_state_and_the_time_to_live_are_archived_too(cell, own):
    fields = [FieldChange("children", b"", b"a\nb"), FieldChange("window", b"", b"2:40")]
    event = body("message_added", "")
    change = Change(fields, messages=said("x"), bodies=[event])
    await change_session(cell, "s", "op1", change, when="any", ttl_ms=SOON)
    await change_session(
        cell, "s", "op2", Change([FieldChange("closed", b"", b"1")]), when="any", ttl_ms=None
    )
    await Archiver(cell, Archive(own)).sweep()
    data = own.load("s")
    assert data["archived"] == {"ttl": str(SOON), "window": "2:40", "ends": "0~0 1:2 "}
    assert (data["closed"], data["children"]) == (True, ["a", "b"])


async def begun_anew(cell, archive, turn="t2"):
    """A claimed turn of an archived session that has begun anew, with its lease."""
    claimed = await cell.started(turn, ttl_ms=SOON)
    return claimed, Lease(claimed.session_id, claimed.turn_id, claimed.fence, time.monotonic() + 60)


async def test_a_turn_is_given_what_a_claim_of_the_restored_session_would_bring(cell, own):
    archive = Archive(own)
    for number in range(3):
        await talk(cell, f"t{number}", archive=archive)
    fields = {
        "window": b"4:40",
        "summary": b"2:They met.",
        "system": b"Be brief.",
        "variables": b'{"a":1}',
    }
    changes = [FieldChange(name, b"", value) for name, value in fields.items()]
    await change_session(cell, "s", "op", Change(changes), when="any", ttl_ms=SOON)
    await Archiver(cell, archive).sweep()
    await end(cell)
    turn, lease = await begun_anew(cell, archive, "t3")
    await restore_before(cell, archive, turn, lease)
    await cell.give_back(turn, "drain")
    again = await cell.take_one()
    for name in again.__struct_fields__:
        if name not in ("fence", "attempt"):
            assert getattr(turn, name) == getattr(again, name), name
    assert (len(turn.history), turn.history_length) == (2, 6)


async def test_a_superseded_worker_restores_nothing_and_stops(cell, own):
    turn, lease = await begun_anew(cell, Archive(own))
    await cell.reap_after(10_000)
    await cell.take_one("w2")
    before = await cell.contents()
    with pytest.raises(StopSignal):
        await restore_before(cell, Archive(own), turn, lease)
    assert lease.stop is Stop.SUPERSEDED
    assert await cell.contents() == before


async def test_a_redis_that_cannot_take_the_past_now_makes_the_turn_wait(cell, own):
    archive = Archive(own)
    await talk(cell, archive=archive)
    await Archiver(cell, archive).sweep()
    await end(cell)
    turn, lease = await begun_anew(cell, archive)
    await load_scripts(cell)
    await cell.redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(ArchiveUnavailable, match="no memory left") as waits:
            await restore_before(cell, archive, turn, lease)
    finally:
        await cell.redis.config_set("maxmemory", 0)
    assert waits.value.retry_after > 0
    await restore_before(cell, archive, turn, lease)
    assert [decode_message(one).text for one in turn.history] == ["t1 in s", "t1 in s, you said"]
