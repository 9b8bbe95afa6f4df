"""Turns of sub-agents go before turns that have not begun, so that trees end before others begin."""

from antiphon.input.ids import sub_agent_session


async def test_a_sub_agent_goes_to_the_front_of_its_queue(cell):
    await cell.put("t1", "one")
    await cell.put("t2", "two")
    await cell.put("c1", sub_agent_session("call-1"))
    await cell.put("c2", sub_agent_session("call-2"))
    await cell.put("t3", "child-and-no-more")
    assert await cell.queue() == ["c2", "c1", "t1", "t2", "t3"]
    assert [turn.turn_id for turn in (await cell.take(limit=8)).turns] == ["c2", "c1", "t1", "t2", "t3"]


async def test_of_a_tenant_it_goes_to_the_front_of_the_line(cell):
    for number, session in enumerate(["one", "two", "three", sub_agent_session("call")]):
        await cell.put(f"t{number}", session, tenant="acme", user="ada")
    order = []
    while (taken := await cell.take(limit=1)).turns:
        order += [turn.turn_id for turn in taken.turns]
    assert order == ["t0", "t3", "t1", "t2"]
    await cell.put("o", "other", tenant="other")
    assert await cell.queue() == ["o"]
