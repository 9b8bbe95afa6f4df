"""`antiphon graph`: the turns of a session, their agents and their children, as a Mermaid diagram."""

import asyncio

from support.here import running_worker
from support.trees import tree

from antiphon.cli.main import main
from antiphon.client import AsyncClient
from antiphon.events import ChildEvent, Handoff
from antiphon.redis.trees import drawn_below
from antiphon_worker import App


async def test_the_tree_of_each_turn_is_drawn(redis_url, capsys):
    async with AsyncClient(redis_url) as client, running_worker(redis_url, App(agents=[tree()])):
        for _ in range(2):
            await (await client.submit("s", "Go.", agent="level-0")).result(60)
        assert await asyncio.to_thread(main, ["graph", "s", "--redis-url", redis_url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["flowchart TD", '  t1["level-0<br/>finished"]']
    assert lines.count("  t1 --> t2") == 1
    for turn in ("t1", "t2"):
        assert sum(line.startswith(f'  {turn} -- "level-1" --> {turn}c') for line in lines) == 2
    nodes = [line.split("[")[1] for line in lines if "[" in line]
    assert {name: nodes.count(f'"{name}<br/>finished"]') for name in ("level-1", "level-2", "leaf")} == {
        "level-1": 4, "level-2": 8, "leaf": 16,
    }  # fmt: skip
    drawn = [line.split(" --> ")[1] for line in lines if " --> " in line]
    assert len(drawn) == len(set(drawn)) == 1 + 2 * 14, "each one is below one other"


def test_hand_offs_are_drawn_and_names_are_only_text():
    started = {"type": "turn_started"}
    events = [
        Handoff(source="clerk", target='a "b"]'),
        ChildEvent(turn_id="t", parent_id="t", child_id="c", agent="research", event=started),
    ]
    assert drawn_below("t1", "t", events) == [
        '  t1c1["research<br/>running"]', '  t1h0["a #34;b#34;#93;"]', '  t1 -. "hands over" .-> t1h0',
        "  t1h0 --> t1c1",
    ]  # fmt: skip


def test_a_session_that_is_not_there_has_no_turns(redis_url, capsys):
    assert main(["graph", "nothing", "--redis-url", redis_url]) == 0
    assert capsys.readouterr().out == "flowchart TD\n"


async def test_a_turn_that_cannot_be_read_is_drawn_as_such(redis_url, redis):
    async with AsyncClient(redis_url) as client, running_worker(redis_url, App(agents=[tree()])):
        turns = [await client.submit("s", "Go.", agent="level-0") for _ in range(3)]
        for turn in turns:
            await turn.result(60)
        redis.hset(f"ant:turn:{turns[1].id}", "request", "{")
        lines = (await client.session("s").graph()).splitlines()
        assert '  t2["turn<br/>unreadable"]' in lines
        assert {"  t1 --> t2", "  t2 --> t3"} <= {*lines}
