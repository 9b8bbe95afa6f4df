"""What operators see at the command line: workers, queues, the life of a turn, and the live screens."""

import asyncio
import json
import os
import subprocess

import pytest
from rich.console import Console
from support import forks
from support.cells import open_cell
from support.eventually import wait_until
from support.operated import APP
from support.processes import COMMAND
from support.stage import Stage
from support.terminal import Terminal

from antiphon.cli.explain import story_of
from antiphon.cli.main import commands, main
from antiphon.cli.screen import drawn
from antiphon.cli.view import Rates, View, rates_between
from antiphon.client import Client
from antiphon.events import (
    StepFinished,
    ToolCallEvent,
    ToolResultEvent,
    TurnFailedEvent,
    TurnFinished,
    TurnQueued,
    TurnResumed,
    TurnRetrying,
    TurnStarted,
    TurnSuspended,
)
from antiphon.model import Decision, OpenCall, Usage
from antiphon.redis.deployment import Overview, QueueState, TenantLimits
from antiphon.wire.lists.workers import TurnRow, WorkerRow

pytestmark = pytest.mark.one_server


@pytest.fixture
def run(redis_url, capsys):
    """Run a command in this process: its exit code, and what it prints."""

    async def run(*argv):
        code = await asyncio.to_thread(main, [*argv, "--redis-url", redis_url])
        return code, capsys.readouterr().out

    return run


def lines(story):
    return [one.text for one in story.sentences]


def test_a_story_says_who_held_a_turn_why_it_was_tried_again_and_where_the_time_went():
    story = story_of(
        [
            TurnQueued(at=1000, position=2),
            TurnStarted(at=3000, worker="w1", attempt=1),
            StepFinished(at=4000, step=1, model="m", usage=Usage(7, 5, cost=0.25), stop_reason="tool_use"),
            ToolCallEvent(at=4000, call_id="c1", name="look", arguments={"q": "geheim"}),
            ToolCallEvent(at=4500, call_id="c2", name="read"),
            ToolResultEvent(at=5000, call_id="c1", name="look", result="geheim"),
            ToolResultEvent(at=6000, call_id="c2", name="read", is_error=True),
            TurnRetrying(at=7000, attempt=1, code="worker_died", reason="Its worker died.", retry_at=9000),
            TurnStarted(at=9000, worker="w2", attempt=2),
            TurnSuspended(at=9500, calls=[OpenCall("c3", "pay", {"to": "geheim"})]),
            TurnResumed(at=19500, decisions=[Decision("c3", "approve", by="ada")]),
            TurnStarted(at=20000, worker="w2", attempt=3),
            TurnFinished(at=21000),
        ],
        now=99_000,
    )
    assert lines(story) == [
        "It was accepted behind 2 other turns of its session.",
        "Worker w1 took it after 2.00 s of waiting behind other turns: attempt 1.",
        "Model call 1 (m) answered: 7 tokens in, 5 out, $0.25; it stopped for tool_use.",
        "The model called the tool look (c1).",
        "The model called the tool read (c2).",
        "The tool look returned after 1.00 s.",
        "The tool read failed after 1.50 s.",
        "Attempt 1 ended (worker_died): Its worker died.",
        "It was to be tried again in 2.00 s.",
        "Worker w2 took it after 2.00 s of waiting for its next attempt: attempt 2.",
        "It was suspended, to wait for: approval of pay (c3). No worker held it.",
        "It was decided after 10 s: approve of c3 by ada.",
        "Worker w2 took it again after 0.50 s of waiting for a worker: attempt 3.",
        "It finished.",
    ]
    assert story.seconds == {
        "waiting behind other turns": 2.0,
        "in model calls": 3.5,
        "in tools": 2.0,
        "waiting for its next attempt": 2.0,
        "waiting for decisions": 10.0,
        "waiting for a worker": 0.5,
    }
    assert "geheim" not in str(story), "what users, models and tools wrote is not shown"


def test_a_story_that_has_not_ended_counts_until_now():
    story = story_of([TurnQueued(at=1000), TurnStarted(at=2000, worker="w", attempt=1)], now=5000)
    assert story.seconds == {"waiting for a worker": 1.0, "in model calls": 3.0}
    ended = story_of([TurnStarted(at=2000), TurnFailedEvent(at=3000, code="x", message="No.")], now=9000)
    assert ended.seconds == {"in model calls": 1.0}


async def test_explain_reads_the_log_of_a_turn_and_of_no_other(redis_url, run):
    async with open_cell(redis_url) as cell:
        await cell.put("t1", text=b'{"messages":[]}')
        await cell.put("t2", text=b'{"messages":[]}')
        await cell.hold(await cell.take_one(), OpenCall("c1", "pay"))
        code, out = await run("explain", "t1")
        assert (code, "Turn t1 is suspended." in out) == (0, True)
        assert "antiphon approve t1 c1" in out
        assert "behind 1" not in out
        code, out = await run("explain", "t1", "--json")
        told = json.loads(out)
        assert (told["status"], told["attempt"], len(out.splitlines())) == ("suspended", 1, 1)
        assert [one["text"][:14] for one in told["story"]] == [
            "It was accepte",
            "Worker w1 took",
            "Model call 0 (",
            "It was suspend",
        ]
        code, out = await run("explain", "t2")
        assert "behind 1 other turn " in out
        assert "No worker serves the queue" not in out, "it waits behind t1"
    assert (await run("explain", "nothing"))[0] == 1


async def test_queues_and_workers_say_by_their_exit_code_what_is_wrong(redis_url, run):
    assert await run("workers") == (1, "")
    assert await run("queues") == (0, "")
    async with open_cell(redis_url) as cell:
        await cell.put("t1", text=b'{"messages":[]}')
        code, out = await run("queues")
        assert (code, out.split()[:2]) == (1, ["QUEUE", "QUEUED"])
        code, out = await run("queues", "--json")
        assert (code, json.loads(out)["queued"]) == (1, 1)


def overview(at, *, tokens=0, finished=0, turns=()):
    worker = WorkerRow("w", ["q"], "h", 1, "busy", "antiphon", 1, 1, 2, [], finished, 0, 1.0, tokens, 0.25)
    return Overview(at, [QueueState("lonely", queued=3)], [worker], list(turns))


def test_rates_are_those_of_workers_that_were_there_before():
    before, now = overview(1000, tokens=100, finished=4), overview(3000, tokens=500, finished=10)
    assert rates_between(before, now) == Rates(3.0, 200.0)
    now.workers[0].name = "another"
    assert rates_between(before, now) == Rates()
    assert rates_between(None, now) == Rates()


def test_the_row_of_a_worker_has_what_it_does_in_all_its_cells():
    def row(*counts, state="idle"):
        heard, turns, *more = counts
        return WorkerRow("w", ["q"], "h", 1, state, "antiphon", 1, heard, len(turns), turns, *more)

    worker = row(5, ["t1"], 1, 2, 3.0, 4, 0.5)
    worker.add(row(7, ["t2", "t3"], 10, 20, 30.0, 40, 0.25, state="busy"))
    assert worker == row(7, ["t1", "t2", "t3"], 11, 22, 33.0, 44, 0.5, state="busy")
    worker.add(row(None, [], 0, 0, 0.0, 0, 0.75))
    assert (worker.heard, worker.lag, worker.state) == (7, 0.75, "busy")


def test_turns_are_sorted_and_filtered():
    rows = [
        TurnRow("t1", "a", "running", "q", "w", 1, 3, 0, 900),
        TurnRow("t2", "b", "suspended", "q", "", 4, 1, 0, 500),
        TurnRow("t3", "c", "queued", "other", "", 0, 2, 700, 0),
    ]
    view = View(overview(1000, turns=rows), Rates())

    def shown():
        return [row[0] for row in view.turn_rows()[1]]

    assert shown() == ["t2", "t3", "t1"]
    view.reverse = True
    assert shown() == ["t1", "t3", "t2"]
    view.reverse, view.sort = False, "step"
    assert shown() == ["t1", "t3", "t2"]
    view.filter = "SUSP"
    assert shown() == ["t2"]
    assert view.queue_rows()[1] == []
    assert "No worker serves lonely: its turns wait." in view.plain()


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_a_narrow_screen_leaves_columns_out_and_cuts_no_value(width):
    session = "4f1c2f0e-9d53-4a37-8f10-5f1f6c2f9b10"
    rows = [
        TurnRow(f"{n:032x}", session, "suspended", "antiphon", "vm-8933-e9fe90e7", 1, 3, 0, 900)
        for n in range(3)
    ]
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, file=nowhere, width=width)
        console.print(drawn(View(overview(1000, turns=rows), Rates()), "q quit", width, 40))
        shown = console.export_text()
    assert "…" not in shown
    assert all(row.turn_id in shown for row in rows)
    assert all(line in shown for line in ("queue ", "queued", "worker", "state", "status"))
    assert (session in shown) == (width >= 100)
    assert ("vm-8933-e9fe90e7" in shown, "attempt" in shown) == (width >= 160, width >= 160)


async def test_top_without_a_terminal_prints_the_state_once(cell, run):
    await cell.started("t1", text=b'{"messages":[]}')
    code, out = await run("top", "--interval", "0.1")
    assert (code, "1 session with turns" in out, "t1" in out) == (0, True, True)
    code, out = await run("top", "--once", "--json")
    (turn,) = json.loads(out)["overview"]["turns"]
    assert (turn["turn_id"], turn["status"], turn["worker"]) == ("t1", "running", "w1")


@pytest.mark.main_path
async def test_top_in_a_terminal_obeys_its_keys(cell, redis_url):
    for number in range(3):
        await cell.started(f"t{number}", session=f"user-{number}", text=b'{"messages":[]}')
    with Terminal("top", "--interval", "0.2", env={"ANTIPHON_REDIS_URL": redis_url}) as terminal:
        await asyncio.to_thread(terminal.wait_for, "user-2")
        assert "turns by age" in terminal.text
        terminal.send("s")
        await asyncio.to_thread(terminal.wait_for, "turns by step")
        terminal.send("r/user-1q")
        await asyncio.to_thread(terminal.wait_for, "filter: user-1q_")
        terminal.send("\x7f\n")
        await asyncio.to_thread(terminal.wait, lambda shown: "user-2" not in shown, "others are hidden")
        assert ("user-1" in terminal.text, "reversed" in terminal.text) == (True, True)
        terminal.send("p")
        await asyncio.to_thread(terminal.wait_for, "paused")
        terminal.send("q")
        assert await asyncio.to_thread(terminal.ended) == 0


@pytest.mark.main_path
@pytest.mark.timeout(120)
def test_a_conversation_in_a_terminal(redis_url, processes, tmp_path):
    """Streaming, Ctrl-C that stops the turn and not the program, an approval, and what was said before."""
    stage = Stage(tmp_path / "stage")
    worker = processes.worker(redis_url, env=stage.env | {"ANTIPHON_APP": APP})
    env = {"ANTIPHON_REDIS_URL": redis_url}
    with Terminal("chat", "demo", "--agent", "support", "--by", "ada", env=env) as terminal:
        terminal.wait_for("\n>")
        worker.wait_for_output("takes turns")
        terminal.send("Hello gate:never\r")
        terminal.wait_for("The first words.")
        terminal.send("\x03")
        terminal.wait_for("[stopped at the command line]")
        terminal.send("Pay tool:refund\r")
        terminal.wait_for("Approve?")
        terminal.send("y\r")
        terminal.wait_for("[refund returned: refunded Pay tool:refund]")
        terminal.wait(lambda shown: shown.endswith("\n>"), "the prompt is back")
        assert b"\x1b[36m" in terminal.raw
        terminal.send("\x03")
        terminal.wait_for("Nothing runs.")
        terminal.send("/session\r")
        terminal.wait_for("\ndemo")
        terminal.send("\x04")
        assert terminal.ended() == 0
    with Client(redis_url) as client:
        stopped, paid = list(client.turns("demo"))[::-1]
        assert (stopped.status(), paid.status()) == ("cancelled", "finished")
        assert paid.info().decisions[0].by == "ada"
        turn = client.submit("demo", "Wait gate:late", agent="support")
        wait_until(lambda: stage.notes("waits", gate="late"), 20)
    with Terminal("chat", "demo", "--last", "2", env=env | {"NO_COLOR": "1"}) as terminal:
        terminal.wait_for(f"Turn {turn.id} runs:")
        stage.open("late")
        terminal.wait(lambda shown: shown.endswith("\n>"), "the turn that ran is followed to its end")
        assert b"\x1b[36m" not in terminal.raw
        terminal.send("/quit\r")
        assert terminal.ended() == 0
    piped = forks.run(
        [COMMAND, "chat", "--agent", "support", "--json", "--redis-url", redis_url], input="One\n"
    )
    assert piped.returncode == 0, piped.stderr
    assert json.loads(piped.stdout.splitlines()[-1])["type"] == "turn_finished"


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes_every_command_with_its_options(capsys, shell):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert [point.name for point in commands() if point.name not in script] == []
    assert "redis-url" in script
    if shell == "bash":
        assert (
            subprocess.run(["bash", "-n"], input=script, text=True, timeout=20, check=False).returncode == 0
        )


async def test_what_changes_something_says_so_in_json_too(redis_url, run):
    code, out = await run("submit", "s", "Hello", "--agent", "any", "--json")
    told = json.loads(out)
    assert (code, told["session_id"]) == (0, "s")
    code, out = await run("cancel", told["turn_id"], "--json")
    assert json.loads(out) == {"turn_id": told["turn_id"], "answer": "cancelled"}
    code, out = await run("submit", "s", "Hello", "--agent", "any", "--json", "--key", "1")
    async with open_cell(redis_url) as cell:
        await cell.cancel(json.loads(out)["turn_id"], "no", "steps")
    code, out = await run("submit", "s", "Hello", "--agent", "any", "--json", "--key", "1", "--wait")
    assert (code, json.loads(out)["type"]) == (1, "turn_cancelled")
    code, out = await run("limits", "acme", "--json")
    assert json.loads(out) == dict.fromkeys(TenantLimits.__struct_fields__)
