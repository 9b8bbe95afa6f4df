"""`submit_many`: many turns in one call, each accepted or refused as `submit` accepts or refuses it."""

from __future__ import annotations

import re

from support.cells import START_MS, TestCell, load_scripts

from antiphon.encryption.keyring import Keyring
from antiphon.errors import AgentError, CorruptRecord, KeyReused
from antiphon.wire.cell import Cell
from antiphon.wire.editing import delete_session
from antiphon.wire.records import NewTurn
from antiphon.wire.scripts import load_script
from antiphon_worker.local.transitions import SUBMIT_ARGUMENTS


def turn(turn_id: str, session: str = "s", **options) -> NewTurn:
    return NewTurn(session, turn_id, b'{"messages":[]}', options.pop("digest", turn_id), **options)  # type: ignore[arg-type]


BATCH = [
    turn("t1"),
    turn("t2"),
    turn("t1"),
    turn("t2", digest="another text"),
    turn("t3", if_busy="reject"),
    turn("t4", inbox_limit=2),
    turn("t5", if_busy="interrupt"),
    turn("t6", if_busy="steer", metadata=b'{"a":1}'),
    turn("t7", "delayed", due_in_ms=5_000),
    turn("t8", "other", queue="slow", ttl_ms=60_000, agent=b'{"provider":"p","model":"m"}', agent_queue="q"),
    turn("t9", "other", cursor=1),
    turn("t10", "other", cursor=0),
    turn("t11", "of-tenant", tenant="acme", priority="high", user="ada"),
    turn("t12", "of-tenant", tenant="acme", priority="low"),
    turn("t13", "of-tenant", tenant="another"),
    turn("t14", "second-of-tenant", tenant="acme"),
    turn("t15", "third-of-tenant", tenant="acme"),
    turn("t16", "gone"),
    turn("t17", "closed"),
    turn("t18", "for ever", ttl_ms=10**18),
    turn("t19", "rolled", priority="high"),
    turn("t20", "rolled", if_busy="rollback"),
]


async def prepare(cell: TestCell) -> None:
    await cell.redis.flushdb()
    await cell.set_clock(START_MS)
    await load_scripts(cell)
    await cell.redis.hset("ant:limits", mapping={"waiting:acme": 2, "in_flight:acme": 1})
    await cell.end(await cell.started("gone-1", "gone"))
    await delete_session(cell, "gone")  # type: ignore[arg-type]
    await cell.redis.hset("ant:session:closed", mapping={"created": 1, "closed": 1, "seq": 1})


async def each_by_itself(cell: TestCell) -> list[int | AgentError]:
    answers: list[int | AgentError] = []
    for one in BATCH:
        try:
            answers.append(await cell.submit(one))
        except AgentError as exc:
            answers.append(exc)
    return answers


def compared(answers: list[int | AgentError]) -> list[int | dict[str, object]]:
    return [one if isinstance(one, int) else {"error": type(one), **vars(one)} for one in answers]


async def test_many_turns_are_what_they_would_be_one_by_one(cell):
    await prepare(cell)
    expected, stored = compared(await each_by_itself(cell)), await without_tokens(cell)
    await prepare(cell)
    assert compared(await cell.submit_many(BATCH)) == expected
    assert await without_tokens(cell) == stored
    refused = [one.turn_id for one, answer in zip(BATCH, expected, strict=True) if isinstance(answer, dict)]
    assert refused == ["t2", "t3", "t4", "t10", "t13", "t15", "t17", "t18"]
    await cell.redis.flushdb()


async def test_a_repeated_call_gets_the_first_answers_and_changes_nothing(cell):
    turns = [turn(f"t{n}", f"s{n % 2}") for n in range(6)]
    assert await cell.submit_many(turns) == [0, 0, 1, 1, 2, 2]
    before = await cell.contents()
    assert await cell.submit_many(turns) == [0, 0, 1, 1, 2, 2]
    assert await cell.contents() == before


async def test_a_damaged_session_fails_its_own_turns_alone(cell):
    await cell.redis.set("ant:inbox:damaged", "x")
    first, damaged, last = await cell.submit_many([turn("t1"), turn("t2", "damaged"), turn("t3")])
    assert (first, last) == (0, 1)
    assert isinstance(damaged, CorruptRecord)


async def test_a_damaged_key_of_all_sessions_is_named_to_each(cell):
    await cell.redis.set("ant:sessions", "x")
    answers = await cell.submit_many([turn("t1"), turn("t2")])
    assert all("The key ant:sessions must be a sorted set" in str(one) for one in answers)
    assert await cell.redis.keys("ant:turn:*") == []


async def test_a_key_of_before_the_key_of_encryption_changed_is_known(cell):
    old, new = ("old", bytes(32)), ("new", bytes(range(32)))
    before = Cell(cell.redis, clock="test_clock", keys=Keyring([old]))
    after = Cell(cell.redis, clock="test_clock", keys=Keyring([new, old]))
    assert await before.submit_many([turn("t1"), turn("t2")]) == [0, 1]
    first, second, other = await after.submit_many([turn("t1"), turn("t2"), turn("t2", digest="another")])
    assert (first, second) == (0, 1)
    assert isinstance(other, KeyReused)


def test_a_turn_has_as_many_arguments_as_a_call_of_submit():
    taken = re.search(r"^local EACH = (\d+)", load_script("submit_many").source, re.MULTILINE)
    assert taken
    assert int(taken[1]) == len(load_script("submit").arguments) == SUBMIT_ARGUMENTS


async def without_tokens(cell: TestCell) -> dict[str, object]:
    """Everything in Redis but what differs with each claim of the preparation."""
    return {
        key: value
        for key, value in (await cell.contents()).items()
        if "gone" not in key and "held" not in key
    }
