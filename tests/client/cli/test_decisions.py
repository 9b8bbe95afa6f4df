"""`antiphon waiting`, `approve`, `reject` and `tool-result`: people decide about tool calls in a terminal."""

import asyncio
import io
import json

import pytest

from antiphon.cli.main import main
from antiphon.model import OpenCall

pytestmark = pytest.mark.one_server


@pytest.fixture
def run(redis_url, capsys):
    """Run a command in this process; what it prints, and its exit code with what it complains of."""

    async def run(*argv):
        code = await asyncio.to_thread(main, [*argv, "--redis-url", redis_url])
        out, err = capsys.readouterr()
        return out if code == 0 else (code, err)

    return run


async def suspended(cell, *calls):
    await cell.hold(await cell.started("t1", text=b'{"messages":[]}', tenant="acme"), *calls)


async def test_what_waits_is_listed_with_its_calls(cell, run):
    assert await run("waiting") == ""
    await suspended(cell, OpenCall("c1", "pay", {"amount": 3}), OpenCall("c2", "look", kind="tool"))
    head, first, second = (await run("waiting")).splitlines()
    assert head.split() == ["TURN", "SESSION", "SINCE", "CALL", "WAITS", "FOR", "UNTIL", "WHAT"]
    assert first.split()[:2] == ["t1", "s"]
    assert ("c1" in first, "approval" in first, "pay {'amount': 3}" in first) == (True, True, True)
    assert ("c2" in second, "tool" in second) == (True, True)
    (found,) = map(json.loads, (await run("waiting", "--tenant", "acme", "--json")).splitlines())
    assert (found["turn_id"], [call["call_id"] for call in found["calls"]]) == ("t1", ["c1", "c2"])
    assert await run("waiting", "--tenant", "other") == ""


async def test_the_only_call_of_a_turn_needs_no_id(cell, run):
    await suspended(cell)
    assert (
        await run("approve", "t1", "--by", "ada", "--arguments", '{"amount":2}')
        == "decided; the turn goes on\n"
    )
    turn = await cell.take_one()
    decision = json.loads(turn.decisions[0])
    assert (decision["kind"], decision["by"], decision["arguments"]) == ("approve", "ada", {"amount": 2})
    code, said = await run("reject", "t1", "c1")
    assert (code, "approved before, by ada" in said) == (2, True)


async def test_a_call_is_rejected_by_its_id(cell, run):
    await suspended(cell, OpenCall("c1", "pay"), OpenCall("c2", "pay"))
    code, said = await run("reject", "t1")
    assert (code, "choose one of c1, c2" in said) == (2, True)
    assert await run("reject", "t1", "c2", "--reason", "No.") == "decided; the turn waits for 1 more\n"
    said = json.loads(await run("reject", "t1", "c1", "--json"))
    assert (said["call_id"], said["kind"], said["by"]) == ("c1", "reject", "the command line")


async def test_the_result_of_a_callers_tool_is_given_as_text_or_from_a_pipe(cell, run, monkeypatch):
    await suspended(cell, *(OpenCall(f"c{n}", "look", kind="tool") for n in (1, 2, 3)), OpenCall("c4", "pay"))
    await run("tool-result", "t1", "c1", "--result", "a tree", "--by", "ada")
    monkeypatch.setattr("sys.stdin", io.StringIO('{"leaves": 3}\n'))
    await run("tool-result", "t1", "c2", "--result", "-")
    told = await run("tool-result", "t1", "c3", "--result", "no such file", "--error")
    assert told == "decided; the turn waits for 1 more\n"
    assert (await run("tool-result", "t1", "--result", "paid"))[0] == 2, "it waits for an approval"
    assert (await run("tool-result", "t1", "c1", "--result", "a bush"))[0] == 2
    assert (await run("tool-result", "t1", "c4"))[0] == 2, "without a result"
    await run("reject", "t1", "c4")
    made = [json.loads(one) for one in (await cell.take_one()).decisions]
    assert [(one["kind"], one.get("content"), one.get("is_error"), one["by"]) for one in made] == [
        ("result", "a tree", None, "ada"),
        ("result", '{"leaves": 3}\n', None, "the command line"),
        ("result", "no such file", True, "the command line"),
        ("reject", None, None, "the command line"),
    ]


async def test_what_is_wrong_is_said_in_a_sentence(cell, run):
    await suspended(cell)
    assert (await run("approve", "t1", "--arguments", "[1]"))[0] == 2
    assert "belong" in (await run("approve", "t1", "--tenant", "other"))[1]
    await run("approve", "t1")
    assert "t1 is queued: it is not suspended" in (await run("approve", "t1"))[1]
    assert (await run("approve", "t9"))[0] == 1
