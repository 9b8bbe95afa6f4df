"""The tree of a turn: each turn below counts once in what it has used, whatever dies."""

import asyncio
import json
from itertools import count

import pytest
from support.broken_off import BrokenOff
from support.eventually import patience, wait_until_async
from support.here import running_worker
from support.places import on_workers
from support.trees import DEPTH, WIDTH, tree, turns_of
from worker.process.test_children import ASK, Desk, Gate

from antiphon import Agent
from antiphon.cli.main import main
from antiphon.client import AsyncClient
from antiphon.errors import AgentError
from antiphon.model import Usage
from antiphon.testing import answer, script, tool_call
from antiphon_worker.app import App

pytestmark = pytest.mark.one_server

MOST = 15  # turns of a tree


def used(tokens, cost=None):
    return Usage(input_tokens=tokens, cost=cost)


async def test_a_tree_has_each_turn_once_and_what_all_of_them_have_used(place):
    desk = Desk()
    desk.writer = tree("writer")
    async with place(desk.writer) as session_of:
        turn = await session_of("s").submit("Go.")
        response = await turn.result(60)
        found, info = await turn.tree(), await turn.info()
    turns = turns_of(found)
    assert len({one.turn_id for _, one in turns}) == len(turns) == MOST
    depths = [depth for depth, _ in turns]
    assert [depths.count(depth) for depth in range(DEPTH + 1)] == [WIDTH**depth for depth in range(DEPTH + 1)]
    assert {one.status for _, one in turns} == {"finished"}
    assert all(one.started <= one.ended for _, one in turns)
    assert found.usage == info.usage == response.usage
    assert found.total_usage == info.total_usage
    assert found.total_usage == sum((one.usage for _, one in turns), Usage())
    assert all(one.usage.tokens for _, one in turns)
    assert [one.call_id for one in found.children] == ["call_1", "call_2"]
    assert {one.agent for one in found.children} == {"level-1"}


async def test_a_turn_without_children_reads_no_other(redis_url, monkeypatch):
    desk = Desk("Go.")
    async with AsyncClient(redis_url) as client, running_worker(redis_url, App(agents=[desk.writer])):
        turn = await client.submit("s", "Plan it.", agent="writer")
        await turn.result(20)
        cell, read = client.connections.cell_of_turn(turn.id), []
        turn_of = cell.turn

        async def counted(turn_id):
            read.append(turn_id)
            return await turn_of(turn_id)

        monkeypatch.setattr(cell, "turn", counted)
        assert (await turn.info()).total_usage is None
        assert read == [turn.id]


async def test_a_child_counts_while_it_runs_and_when_it_ends_after_its_parent(place):
    gate = Gate()
    desk = Desk(answers=(answer(tool_call("wait"), usage=used(700, 0.5)),), tools=[gate.tool])
    desk.said.entries[0] = answer(ASK, usage=used(30, 0.25))
    async with place(desk.writer) as session_of:
        turn = await session_of("s").submit("Plan it.")

        async def begun():
            return gate.entered and (await turn.tree()).children

        [child] = await wait_until_async(begun, 20, "the child has answered, and is known to its parent")
        found = await turn.tree()
        assert (child.status, child.usage) == ("running", used(700, 0.5))
        assert found.total_usage == found.usage + used(700, 0.5)
        await turn.cancel()

        async def both_ended():
            found = await turn.tree()
            return {found.status, found.children[0].status} == {"cancelled"} and found

        found = await wait_until_async(both_ended, 20, "the tree has ended")
        assert found.usage == used(30, 0.25)
        assert found.total_usage == (await turn.info()).total_usage == used(730, 0.75)


@pytest.mark.parametrize("stored", [False, True], ids=["before", "after"])
async def test_a_tree_broken_off_at_any_write_counts_each_child_once(redis_url, monkeypatch, stored):
    writes = BrokenOff(monkeypatch, stored=stored)
    for at in count():
        writes.at(at)
        desk = Desk(answers=(answer("In November.", usage=used(700)),))
        desk.said.entries = [_done_or_asking]
        desk.said.repeat = True
        async with on_workers(desk.writer, redis_url) as session_of:
            turn = await session_of(f"s{at}").submit("Plan it.")
            await turn.result(30)
            found = await turn.tree()
        assert [one.usage for one in found.children] == [used(700)] * 2
        assert found.total_usage == used(1420), at
        if writes.count < at:
            break
    assert at > 6


def _done_or_asking(request):
    said = ["Done."] if request.messages[-1].role == "tool" else [ASK, ASK]
    return answer(*said, usage=used(10))


async def test_children_of_an_earlier_run_do_not_count(redis_url):
    desk = Desk(ASK, answers=(answer("In November.", usage=used(700)),))
    desk.said.repeat, desk.writer.max_steps = True, 2
    async with AsyncClient(redis_url) as client, running_worker(redis_url, App(agents=[desk.writer])):
        turn = await client.submit("s", "Plan it.", agent="writer")
        runs = []
        for _ in range(2):
            with pytest.raises(AgentError, match="2 "):
                await turn.result(20)
            runs.append(await turn.tree())
            await turn.requeue()
        await turn.cancel()
    first, second = ({one.turn_id for one in run.children} for run in runs)
    assert len(first) == len(second) == 1
    assert first.isdisjoint(second)
    assert [run.total_usage.tokens - run.usage.tokens for run in runs] == [700, 700]


async def test_a_deleted_child_leaves_the_tree(redis_url):
    desk = Desk(answers=(answer("In November.", usage=used(700)),))
    async with AsyncClient(redis_url) as client, running_worker(redis_url, App(agents=[desk.writer])):
        turn = await client.submit("s", "Plan it.", agent="writer")
        await turn.result(20)
        [child] = (await turn.tree()).children
        assert await client.session(child.session_id).delete()
        found = await turn.tree()
        assert found.children == []
        assert found.total_usage == found.usage


async def test_explain_and_graph_show_the_tree(redis_url, capsys):
    desk = Desk(answers=(answer("In November.", usage=used(700, 0.5)),))
    desk.said.entries[0] = answer(ASK, usage=used(30, 0.25))
    async with AsyncClient(redis_url) as client, running_worker(redis_url, App(agents=[desk.writer])):
        turn = await client.submit("s", "Plan it.", agent="writer")
        await turn.result(20)
        [child] = (await turn.tree()).children
        await asyncio.to_thread(main, ["explain", turn.id, "--redis-url", redis_url])
        told = capsys.readouterr().out
        drawn = await client.session("s").graph()
    assert f"  research: {child.turn_id} is finished, " in told
    assert ", 700 tokens for $0.5000\n" in told
    assert "With its sub-agents it has used " in told
    assert drawn.splitlines() == [
        "flowchart TD", '  t1["writer<br/>finished"]', '  t1c1["research<br/>finished"]', '  t1 -- "research" --> t1c1',
    ]  # fmt: skip


async def test_a_session_draws_its_turns_without_redis():
    research = Agent(script("In November."), "any", name="research")
    writer = Agent(script(ASK, "Go in November."), "any", name="writer", tools=[research.as_tool()])
    session = writer.session_async("drawn")
    assert (await session.run("Plan it.")).text == "Go in November."
    assert (await session.graph()).splitlines()[-1] == '  t1 -- "research" --> t1c1'


async def test_a_damaged_tree_that_names_a_turn_above_it_ends(redis_url, redis):
    desk = Desk(answers=(answer("In November.", usage=used(700)),))
    async with AsyncClient(redis_url) as client, running_worker(redis_url, App(agents=[desk.writer])):
        turn = await client.submit("s", "Plan it.", agent="writer")
        await turn.result(20)
        [child] = (await turn.tree()).children
        above, below = f"ant:turn:{turn.id}", f"ant:turn:{child.turn_id}"
        parent = json.loads(redis.hget(below, "request"))["parent"]
        request = json.loads(redis.hget(above, "request"))
        request["parent"] = {**parent, "turn_id": child.turn_id, "session_id": child.session_id}
        redis.hset(above, "request", json.dumps(request))
        redis.hset(below, f"child:{turn.id}", "")
        found = await asyncio.wait_for(turn.tree(), patience(20))
    assert [one.turn_id for one in found.children] == [child.turn_id]
    assert found.children[0].children == []


DAMAGE = {
    "no request": lambda redis, key: redis.hdel(key, "request"),
    "no JSON": lambda redis, key: redis.hset(key, "request", "{"),
    "usage": lambda redis, key: redis.hset(key, "response", '{"usage":3}'),
    "another kind of key": lambda redis, key: (redis.delete(key), redis.set(key, "x")),
}


@pytest.mark.parametrize("harm", DAMAGE.values(), ids=DAMAGE)
async def test_a_tree_names_children_that_cannot_be_read_and_counts_the_others(
    harm, redis_url, redis, capsys
):
    async with on_workers(tree("writer"), redis_url) as session_of:
        turn = await session_of("s").submit("Go.")
        await turn.result(60)
        whole = await turn.tree()
        assert (whole.left_out, (await turn.info()).left_out) == ([], [])
        damaged = whole.children[0].children[1]
        harm(redis, f"ant:turn:{damaged.turn_id}")
        found, info = await turn.tree(), await turn.info()
        assert await asyncio.to_thread(main, ["explain", turn.id, "--redis-url", redis_url]) == 0
    assert found.left_out == info.left_out == found.children[0].left_out == [damaged.turn_id]
    assert found.children[1].left_out == []
    assert found.total_usage == info.total_usage
    assert found.total_usage.tokens == whole.total_usage.tokens - damaged.total_usage.tokens
    assert "Not counted, because their records cannot be read: 1 turn." in " ".join(
        capsys.readouterr().out.split()
    )
    redis.delete(f"ant:turn:{damaged.turn_id}")
