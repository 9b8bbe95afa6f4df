"""The scripts that change sessions outside their turns: every answer, every repetition, every limit."""

import json
import re
from pathlib import Path

import pytest
from support.cells import START_MS

import antiphon.wire
from antiphon.errors import SessionExists, StoreUnavailable, TurnNotFound, UsageError, WrongTenant
from antiphon.input.ids import SessionId, TurnId
from antiphon.wire.cell import Cell
from antiphon.wire.connection.open import open_redis
from antiphon.wire.editing import (
    Busy,
    Change,
    FieldChange,
    Part,
    change_session,
    delete_session,
    forget_turn,
    fork_session,
    new_op,
)
from antiphon.wire.scripts import load_script

S = SessionId("s")
TTL = 1_000_000
FOLDER = Path(antiphon.wire.__file__).parent / "lua"
NAMES = ["edit", "fork", "delete", "forget"]


async def change(cell, op=None, when="idle", ttl_ms=TTL, **parts):
    return await change_session(cell, S, op or new_op(), Change(**parts), when=when, ttl_ms=ttl_ms)


def body(kind):
    return json.dumps({"type": kind, "session_id": "s"}, separators=(",", ":")).encode()


@pytest.mark.parametrize("name", NAMES)
def test_the_header_names_what_the_script_takes_and_answers(name):
    text = (FOLDER / f"editing/{name}.lua").read_text()
    script = load_script(f"editing/{name}")
    code = "\n".join(line for line in text.split("\n") if not line.startswith("--"))
    assert re.match(r"-- [A-Z].*\.", text)
    assert set(re.findall(r"return \{'([A-Z_]+)'", code)) == {word.decode() for word in script.outcomes}
    for argument in script.arguments:
        assert re.search(rf"\b{argument.removesuffix('...')}\b", code), argument
    source = (Path(antiphon.wire.__file__).parent / "editing.py").read_text()
    for word in script.outcomes:
        assert repr(word).replace("'", '"') in source
    assert not re.search(r"PREFIX|cjson|TIME|\bARGV\b|\bKEYS\b|['\"](ant|rq):", code)


async def test_fields_messages_and_events_are_written_together(cell):
    assert await change(
        cell,
        fields=[FieldChange("system", b"", b"S"), FieldChange("metadata", b"", b'{"a":[]}')],
        messages=[b"1", b"2"],
        bodies=[body("message_added"), body("variables_changed")],
    )
    snapshot = await cell.snapshot(S)
    assert snapshot.history == [b"1", b"2"]
    assert snapshot.fields["system"] == b"S"
    assert snapshot.fields["metadata"] == b'{"a":[]}'
    assert int(snapshot.fields["created"]) == int(snapshot.fields["updated"]) == START_MS
    assert [event["type"] for event in await cell.events()] == ["message_added", "variables_changed"]
    assert [event["seq"] for event in await cell.events()] == [1, 2]


async def test_a_repeated_change_happens_once(cell):
    for _ in range(2):
        assert await change(cell, op="x", length=0, messages=[b"1"], bodies=[body("message_added")]) is True
    assert await cell.history() == [b"1"]
    assert len(await cell.events()) == 1


async def test_what_was_read_must_still_be_so(cell):
    await change(cell, fields=[FieldChange("system", b"", b"S")], messages=[b"1"])
    before = await cell.contents()
    assert await change(cell, fields=[FieldChange("system", b"", b"T")]) is False
    assert await change(cell, fields=[FieldChange("system", b"X", b"T")]) is False
    assert await change(cell, length=0, messages=[b"2"]) is False
    assert await change(cell, length=2, messages=[b"2"]) is False
    assert await cell.contents() == before


async def test_a_field_that_becomes_empty_goes(cell):
    await change(cell, fields=[FieldChange("system", b"", b"S")])
    assert await change(cell, fields=[FieldChange("system", b"S", b"")])
    assert "system" not in (await cell.snapshot(S)).fields


async def test_the_end_of_a_history_is_replaced(cell):
    await change(cell, fields=[FieldChange("window", b"", b"2:10")], messages=[b"1", b"2", b"3"])
    assert await change(cell, length=3, keep=1, messages=[b"4"])
    assert await cell.history() == [b"1", b"4"]
    assert "window" not in (await cell.snapshot(S)).fields
    assert await change(cell, keep=0, messages=[b"5"])
    assert await cell.history() == [b"5"]
    assert await change(cell, keep=0)
    assert await cell.history() == []


async def test_a_summary_stays_for_as_long_as_the_messages_that_it_tells_of(cell):
    await change(cell, fields=[FieldChange("summary", b"", b"2:both")], messages=[b"1", b"2", b"3"])
    await change(cell, keep=2, messages=[b"4"])
    assert (await cell.snapshot(S)).fields["summary"] == b"2:both"
    await change(cell, keep=1)
    assert "summary" not in (await cell.snapshot(S)).fields
    await change(cell, keep=0, fields=[FieldChange("summary", b"", b"1:new")], messages=[b"5"])
    assert (await cell.snapshot(S)).fields["summary"] == b"1:new", "one that comes with its history"


async def test_a_change_waits_for_the_turns_before_it(cell):
    await cell.put_each("t1", "t2")
    assert await change(cell, messages=[b"1"]) == Busy(TurnId("t2"))
    assert await change(cell, when="between", messages=[b"1"]) is True
    turn = await cell.take_one()
    assert await change(cell, when="between", messages=[b"2"]) == Busy(TurnId("t1"))
    assert await change(cell, when="any", messages=[b"3"]) is True
    await cell.end(turn)
    assert await change(cell, when="between", messages=[b"4"]) is True
    assert await cell.history() == [b"1", b"3", b'"t1"', b"4"]


async def test_a_closed_session_is_not_changed(cell):
    await change(cell, fields=[FieldChange("closed", b"", b"1")])
    with pytest.raises(UsageError, match="closed"):
        await change(cell, messages=[b"1"])
    with pytest.raises(UsageError, match="closed"):
        await cell.put("t1")


async def test_a_changed_session_lives_as_long_as_it_is_to(cell):
    await change(cell, messages=[b"1"], bodies=[body("message_added")])
    keys = [cell.keys.history(S), cell.keys.events(S)]
    lives = [await cell.redis.pttl(key) for key in keys]
    assert all(TTL - 5000 < life <= TTL for life in lives), lives
    assert await cell.redis.pttl(cell.keys.session(S)) > TTL
    assert await cell.redis.zscore(cell.keys.sessions, "s") == START_MS + TTL
    await cell.put("t1")
    await change(cell, when="any", messages=[b"2"])
    assert await cell.redis.pttl(cell.keys.history(S)) == -1


@pytest.mark.lasting_keys("ant:session:*", "ant:history:*", "ant:events:*")
async def test_a_session_without_a_ttl_is_kept(cell):
    await change(cell, ttl_ms=0, messages=[b"1"], bodies=[body("message_added")])
    assert await cell.redis.pttl(cell.keys.history(S)) == -1


async def test_events_of_changes_are_trimmed_while_no_turn_runs(cell):
    many = [body("message_added")] * 6000
    await change(cell, bodies=many)
    await change(cell, bodies=many)
    assert await cell.redis.xlen(cell.keys.events(S)) == 10_000
    assert (await cell.events())[-1]["seq"] == 12_000


async def fork(cell, source="s", target="f", op=None):
    await cell.fork(source, target, op or new_op(), ttl_ms=TTL)


async def test_a_fork_has_the_fields_and_the_history(cell):
    fields = {
        "agent": b'"a"',
        "system": b"S",
        "variables": b"{}",
        "metadata": b"[]",
        "files": b"{}",
        "window": b"1:2",
        "summary": b"1:It began.",
    }
    await change(
        cell,
        fields=[FieldChange(n, b"", v) for n, v in fields.items()] + [FieldChange("parent", b"", b"p")],
        messages=[b"1"],
    )  # fmt: skip
    await cell.wait(5)
    await fork(cell)
    found = await cell.snapshot(SessionId("f"))
    assert found.history == [b"1"]
    assert {name: found.fields[name] for name in fields} == fields
    assert "parent" not in found.fields
    assert int(found.fields["created"]) == START_MS + 5
    assert await cell.event_types("f") == []
    assert await cell.event_types("s") == ["session_forked"]
    assert await cell.redis.pttl(cell.keys.history(SessionId("f"))) > 0


async def test_a_repeated_fork_happens_once_and_another_is_refused(cell):
    await change(cell, messages=[b"1"])
    for _ in range(2):
        await fork(cell, op="x")
    assert await cell.event_types() == ["session_forked"]
    with pytest.raises(SessionExists, match="'f'"):
        await fork(cell)


async def test_a_fork_of_a_running_session_has_the_finished_turns_only(cell):
    await change(cell, messages=[b"1"])
    turn = await cell.started("t1")
    await fork(cell)
    await cell.end(turn)
    assert await cell.history("f") == [b"1"]
    assert await cell.history("s") == [b"1", b'"t1"']
    assert await cell.inbox("f") == []


async def test_a_fork_under_the_id_of_a_session_that_has_expired_has_nothing_of_it(cell):
    await cell.end(await cell.started("t1", "f"))
    await cell.redis.hset("ant:session:f", "system", "of the former life")
    await cell.redis.pexpire("ant:session:f", 3600_000)  # all else of it has expired
    before = int(await cell.redis.hget("ant:session:f", "seq"))
    await change(cell, messages=[b"1"])
    await fork(cell)
    found = await cell.snapshot(SessionId("f"))
    assert (found.history, found.fields.get("system")) == ([b"1"], None)
    assert int(await cell.redis.hget("ant:session:f", "first")) == before + 1, "a cursor of it finds a gap"


@pytest.mark.parametrize(("ttl_ms", "kept"), [(5000, b"5000"), (None, str(TTL).encode())])
async def test_a_fork_is_kept_as_long_as_asked_for_or_as_its_source(cell, ttl_ms, kept):
    await change(cell, messages=[b"1"])
    await cell.fork("s", "f", new_op(), ttl_ms=ttl_ms)
    assert await cell.redis.hget("ant:session:f", "ttl") == kept


async def test_a_fork_of_nothing_is_empty(cell):
    await fork(cell, source="nothing")
    assert (await cell.snapshot(SessionId("f"))).history == []
    assert await cell.redis.exists(cell.keys.session(SessionId("nothing"))) == 0


async def test_a_deleted_session_leaves_its_seq_for_an_hour(cell):
    await change(cell, messages=[b"1"], bodies=[body("message_added")])
    assert await delete_session(cell, S) is True
    assert await delete_session(cell, S) is False
    assert list(await cell.contents()) == ["ant:erasing", "ant:session:s"]
    assert await cell.redis.hgetall("ant:session:s") == {b"first": b"2", b"seq": b"2"}
    assert 0 < await cell.redis.pttl("ant:session:s") <= 3600_000
    await cell.put("t1")
    assert [event["seq"] for event in await cell.events()] == [3]


async def test_a_deleted_session_is_in_no_list_although_it_had_a_delayed_turn(cell):
    await cell.put("t1", due_in_ms=100_000)
    assert await cell.redis.zscore("ant:sessions", "s")
    assert await delete_session(cell, S) is True
    assert await cell.redis.zscore("ant:sessions", "s") is None


async def test_a_deleted_session_is_no_longer_set_aside_and_readers_look_at_once(cell):
    await change(cell, messages=[b"1"])
    await cell.redis.hset("ant:quarantined", "s", "damaged")
    async with cell.redis.pubsub() as reader:
        await reader.subscribe(cell.keys.live(cell.database, S))
        await reader.get_message(timeout=10)
        await delete_session(cell, S)
        told = await reader.get_message(timeout=10)
    assert (told["type"], told["data"]) == ("message", b"")
    assert not await cell.redis.hexists("ant:quarantined", "s")


async def test_another_tenant_deletes_nothing(cell):
    await cell.end(await cell.started("t1", tenant="acme"))
    before = await cell.contents()
    with pytest.raises(WrongTenant):
        await delete_session(cell, S, "other")
    assert await cell.contents() == before


async def test_a_session_with_turns_is_not_deleted(cell):
    await cell.put_each("t1", "t2")
    assert await delete_session(cell, S) == Busy(TurnId("t2"))
    assert await cell.inbox() == ["t1", "t2"]


async def test_a_turn_that_has_ended_is_forgotten_and_its_history_stays(cell):
    await cell.put("t1")
    with pytest.raises(UsageError, match="is queued: cancel it first"):
        await forget_turn(cell, TurnId("t1"))
    await cell.end(await cell.take_one())
    history, before = await cell.history(), await cell.contents()
    await forget_turn(cell, TurnId("t1"))
    assert await cell.history() == history == [b'"t1"']
    left = await cell.contents()
    assert not [key for key in left if "t1" in key], "neither ours nor RQ's"
    assert before.keys() - left.keys() >= {cell.keys.turn("t1"), "rq:job:t1", "rq:finished:antiphon"}
    assert cell.keys.turns(S) not in left
    with pytest.raises(TurnNotFound):
        await forget_turn(cell, TurnId("t1"))


async def fork_nothing(cell):
    await fork_session(
        cell, S, SessionId("f"), "op", Part(0, "", b""), ttl_ms=0, body=b"", branch=b"", fields=[]
    )


@pytest.mark.parametrize("name", ["change", "fork", "delete"])
async def test_a_redis_that_is_away_is_a_store_error(name):
    async with open_redis("redis://127.0.0.1:1/0", retries=0) as redis:
        cell = Cell(redis)
        with pytest.raises(StoreUnavailable):
            await {"change": change, "fork": fork_nothing, "delete": lambda cell: delete_session(cell, S)}[
                name
            ](cell)
