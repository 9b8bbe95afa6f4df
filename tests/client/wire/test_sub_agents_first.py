"""Turns of sub-agents go before turns that have not begun, so that trees end before others begin."""

import pytest

from antiphon.client import AsyncClient
from antiphon.errors import UsageError
from antiphon.input.ids import sub_agent_session
from antiphon.redis.deployment import TenantLimits, set_tenant_limits


async def put_child(cell, turn, **options):
    """Submit a turn as the worker of a parent does."""
    await cell.put(turn, sub_agent_session(turn), priority="front", **options)


async def test_a_sub_agent_goes_to_the_front_of_its_queue(cell):
    await cell.put("t1", "one")
    await cell.put("t2", "two")
    await put_child(cell, "c1")
    await put_child(cell, "c2")
    await cell.put("t3", "child-and-no-more")
    assert await cell.queue() == ["c2", "c1", "t1", "t2", "t3"]
    assert [turn.turn_id for turn in (await cell.take(limit=8)).turns] == ["c2", "c1", "t1", "t2", "t3"]


async def test_a_callers_session_of_such_a_name_does_not(cell):
    await cell.put("t1", "one")
    await cell.put("t2", sub_agent_session("t2"))
    assert await cell.queue() == ["t1", "t2"]
    for number, user in enumerate(["ada", "ada", "ada", "bob"]):
        session = sub_agent_session(f"a{number}") if number == 2 else f"of-a{number}"
        await cell.put(f"a{number}", session, tenant="acme", user=user)
    line = await cell.redis.zrange(cell.keys.line("antiphon", "@acme"), 0, -1)
    assert line == [b"a1", b"a3", b"a2"], "users take turns"


async def test_no_caller_can_choose_to_go_first(redis_url):
    async with AsyncClient(redis_url) as client:
        with pytest.raises(UsageError, match="priority="):
            await client.session("s").submit("Hi", priority="front")


async def test_a_turn_that_runs_again_does_not(cell):
    await put_child(cell, "c1")
    await cell.end(await cell.take_one(), "failed")
    await cell.put("t1", "one")
    await cell.requeue("c1")
    assert await cell.queue() == ["t1", "c1"]


async def test_of_a_tenant_it_goes_to_the_front_of_the_line(cell):
    for number, session in enumerate(["one", "two", "three"]):
        await cell.put(f"t{number}", session, tenant="acme", user="ada")
    await put_child(cell, "t3", tenant="acme", user="ada")
    order = []
    while (taken := await cell.take(limit=1)).turns:
        order += [turn.turn_id for turn in taken.turns]
    assert order == ["t0", "t3", "t1", "t2"]
    await cell.put("o", "other", tenant="other")
    assert await cell.queue() == ["o"]


async def test_another_users_turn_does_not_pass_by_others_because_a_sub_agent_is_first_in_line(cell):
    await cell.put("t0", "zero", tenant="acme", user="ada")
    await cell.put("t1", "one", tenant="acme", user="bob")
    await put_child(cell, "c", tenant="acme", user="ada")
    await cell.wait(1)
    await cell.put("t2", "two", tenant="acme", user="eve")
    line = await cell.redis.zrange(cell.keys.line("antiphon", "@acme"), 0, -1)
    assert line == [b"c", b"t1", b"t2"]


async def test_of_a_user_with_a_limit_it_goes_to_the_front_of_both_lines(cell):
    await set_tenant_limits([cell], "a", TenantLimits(user_in_flight=1, in_flight=1))
    for number in range(3):
        await cell.put(f"x{number}", f"of-x{number}", tenant="a", user="x")
    await cell.put("y0", "of-y0", tenant="a", user="y")
    await cell.wait(1)
    await put_child(cell, "c", tenant="a", user="x")
    order = []
    for _ in range(5):
        turn = await cell.take_one()
        order.append(turn.turn_id)
        await cell.end(turn)
    assert order[:3] == ["x0", "c", "y0"]
    assert sorted(order[3:]) == ["x1", "x2"]
