"""What holds of every command: JSON for programs, the same exit codes, and nothing that a terminal would obey."""

import asyncio
import json
import re
import signal
import subprocess

import pytest
from redis import Redis
from support import forks
from support.cells import open_cell
from support.eventually import wait_until
from support.processes import COMMAND
from support.source_tree import ROOT

from antiphon.cli.arguments import EXIT_CODES, acts_of
from antiphon.cli.chat import Answer
from antiphon.cli.explain import story_of
from antiphon.cli.getting_started import parsers
from antiphon.cli.main import commands, main
from antiphon.cli.terminal import EventLines, Paint, counted, printable, safe_json
from antiphon.client import Client
from antiphon.events import (
    ChildEvent,
    Handoff,
    ModelChanged,
    RecallFailed,
    StepFinished,
    TextDelta,
    ToolCallEvent,
    ToolProgress,
    ToolResultEvent,
    TurnCancelledEvent,
    TurnFailedEvent,
    TurnQueued,
    TurnRetrying,
    TurnStarted,
)

pytestmark = [pytest.mark.main_path, pytest.mark.one_server, pytest.mark.timeout(120)]

PARSERS = dict(parsers())
OPERATING = (ROOT / "docs" / "operating.md").read_text()

# Commands whose output is no data of their own, and what a program uses instead.
NO_JSON = {
    "completion": "its output is a script for a shell",
    "export": "its output is lines of JSON",
    "graph": "its output is a drawing for Mermaid",
    "mcp": "its output is a protocol in JSON",
    "worker": "its output is a log: --log-format json",
}
ATTACK = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil\r\x00"


def named(name: str) -> str:
    return name.replace(" ", "-")


def test_every_command_and_act_is_known_here():
    assert len(PARSERS) >= 36
    assert {name for name in PARSERS if " " not in name} == {point.name for point in commands()}
    assert {name for name in PARSERS if " " in name} == {
        f"{point.name} {act}" for point in commands() for act in acts_of(point.load())
    }
    assert {"schedules add", "webhooks remove", "worker check", "redis acl"} <= PARSERS.keys()


@pytest.mark.parametrize("name", PARSERS, ids=named)
def test_a_command_has_json_for_programs_or_says_why_not(name):
    options = {option for action in PARSERS[name]._actions for option in action.option_strings}
    assert ("--json" in options) != (name in NO_JSON)
    if "log" in NO_JSON.get(name, ""):
        assert "--log-format" in options


@pytest.mark.parametrize("name", PARSERS, ids=named)
def test_an_unknown_option_is_wrong_usage_and_does_nothing(name, capsys):
    assert main([*name.split(), "--no-such-option"]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)


def test_the_page_has_the_exit_codes():
    rows = dict(re.findall(r"^\| (\d+) \| (.*) \|$", OPERATING, re.MULTILINE))
    assert rows == {str(code): said for code, said in EXIT_CODES.items()}


def run(*argv, url=None, **more):
    env = {"PATH": "/usr/bin:/bin", "ANTIPHON_REDIS_URL": url or "redis://127.0.0.1:1/0"}
    return forks.run([COMMAND, *argv], env=env, **more)


def test_success_failure_and_wrong_usage_are_told_apart(redis_url):
    assert run("sessions", url=redis_url).returncode == 0
    assert run("explain", "nothing", url=redis_url).returncode == 1
    assert run("sessions").returncode == 1, "a Redis that is away"
    assert run("sessions", "--limit", "many", url=redis_url).returncode == 2
    assert run("nothing").returncode == 2


def test_ctrl_c_and_a_reader_that_is_gone_have_codes_of_their_own(redis_url, processes):
    with Redis.from_url(redis_url) as redis:
        listening = lambda: redis.pubsub_numsub("ant:live:0:s")[0][1] == 1  # noqa: E731
        tail = processes.start(COMMAND, "tail", "s", env={"ANTIPHON_REDIS_URL": redis_url})
        wait_until(listening, 20)
        tail.send_signal(signal.SIGINT)
        assert tail.wait() == 130
    alone = subprocess.Popen(
        [COMMAND, "sessions", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    alone.stdout.close()
    assert alone.wait(20) in (0, 141)
    assert alone.stderr.read() == ""
    alone.stderr.close()


async def test_what_stands_until_somebody_changes_it_is_told_as_json(redis_url, capsys):
    async def told(*argv):
        code = await asyncio.to_thread(main, [*argv, "--json", "--redis-url", redis_url])
        out = capsys.readouterr().out
        return code, [json.loads(line) for line in out.splitlines()]

    name, agent = ("s", "daily"), ("--agent", "any")
    code, (added,) = await told("schedules", "add", *name, "Hello", "--every", "3600", *agent)
    assert (code, added["name"], added["every"]) == (0, "daily", 3600)
    assert (await told("schedules", "pause", *name))[1][0]["due"] is None
    assert (await told("schedules", "resume", *name))[1][0]["due"]
    assert await told("schedules", "remove", *name) == (0, [])
    code, (hook,) = await told("webhooks", "add", "ops", "https://hooks.example.com/x")
    assert (code, hook["name"], hook["secret"][:6]) == (0, "ops", "whsec_")
    assert await told("webhooks", "remove", "ops") == (0, [{"name": "ops", "removed": True}])
    code, (fact,) = await told("facts", "add", "Likes tea.", "--tenant", "acme")
    assert (code, fact["text"], fact["by"]) == (0, "Likes tea.", "person")
    edited = await told("facts", "edit", fact["id"], "Likes coffee.", "--tenant", "acme")
    assert edited[1][0]["text"] == "Likes coffee."
    assert [one["id"] for one in (await told("facts", "--tenant", "acme"))[1]] == [fact["id"]]
    removed = await told("facts", "remove", fact["id"], "--tenant", "acme")
    assert removed == (0, [{"id": fact["id"], "removed": True}])
    assert await told("facts", "--tenant", "acme") == (0, [])
    code, (facts,) = await told("redis", "check", "--durability", "none")
    assert (code, facts["role"], facts["durability"]) == (0, "master", "none")


def test_a_damaged_fact_is_listed_with_its_id_and_can_be_removed(redis_url, capsys):
    def told(*argv):
        assert main(["facts", *argv, "--redis-url", redis_url]) == 0
        return capsys.readouterr().out

    told("add", "Likes tea.")
    with Redis.from_url(redis_url) as redis:
        (key,) = redis.keys("ant:facts:*")
        redis.hset(key, "bad", "damage")
        shown = told()
        assert "Likes tea." in shown
        assert "The fact 'bad' cannot be read" in shown
        told("remove", "bad")
        assert "bad" not in told()


def test_what_needs_no_redis_is_told_as_json_too(capsys, tmp_path, monkeypatch):
    def told(*argv):
        code = main([*argv, "--json"])
        return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    code, (user,) = told("redis", "acl", "client", "--name", "web")
    assert (code, user["user"]) == (0, "web")
    assert user["password"] not in user["line"]
    monkeypatch.setenv("ANTIPHON_ACL_PASSWORD", "given")
    assert told("redis", "acl", "client")[1][0]["password"] is None
    code, (key,) = told("serve", "--new-key")
    assert (code, len(key["hash"])) == (0, 64)
    code, events = told("run", "Hello", "--provider", "scripted", "--model", "any")
    assert (code, events[0]["type"], events[-1]["type"]) == (0, "turn_queued", "turn_finished")
    (tmp_path / "tiny.py").write_text(
        "from antiphon import Agent\nfrom antiphon_worker import App\n"
        "app = App(agents=[Agent('openai', 'm', name='a')])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    code, (agent,) = told("worker", "check", "--app", "tiny:app")
    assert (code, agent["agent"], bool(agent["lacks"])) == (1, "a", True)


def test_a_batch_tells_its_sums_as_json(redis_url, tmp_path, capsys):
    (tmp_path / "in").write_text('{"text": " "}\n')
    code = main(
        ["batch", str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--json", "--redis-url", redis_url]
    )
    assert (code, json.loads(capsys.readouterr().out)) == (1, {"lines": 1, "done": 1, "failed": 1})


def test_numbers_and_words_agree():
    assert [counted(n, "turn") for n in (0, 1, 2, 1200)] == ["0 turns", "1 turn", "2 turns", "1,200 turns"]
    story = story_of([TurnQueued(at=1, position=1), TurnCancelledEvent(at=2, reason="no", kept=1)], 3)
    assert [one.text for one in story.sentences] == [
        "It was accepted behind 1 other turn of its session.",
        "It was cancelled (no); 1 message of it stays.",
    ]


class Screen:
    """A terminal: it keeps what is written to it."""

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text

    def flush(self):
        """Everything is shown at once."""

    def isatty(self):
        return False


# Events in which a model, a tool or another client chose every text.
HOSTILE = [
    TurnQueued(turn_id=ATTACK),
    TurnStarted(worker=ATTACK, attempt=1),
    TextDelta(text=ATTACK),
    StepFinished(step=1, model=ATTACK, stop_reason=ATTACK),
    ToolCallEvent(call_id=ATTACK, name=ATTACK, arguments={ATTACK: ATTACK}),
    ToolProgress(call_id=ATTACK, name=ATTACK, text=ATTACK),
    ToolResultEvent(call_id=ATTACK, name=ATTACK, result=ATTACK, is_error=True),
    ModelChanged(source=ATTACK, target=ATTACK, code=ATTACK),
    Handoff(source=ATTACK, target=ATTACK, reason=ATTACK),
    ChildEvent(child_id=ATTACK, agent=ATTACK, event={"type": ATTACK}),
    RecallFailed(memory=ATTACK, error=ATTACK),
    TurnRetrying(attempt=1, code=ATTACK, reason=ATTACK),
    TurnCancelledEvent(reason=ATTACK, kept=1),
    TurnFailedEvent(code=ATTACK, message=ATTACK),
]
HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.mark.parametrize("event", HOSTILE, ids=lambda event: event.type)
def test_a_terminal_is_told_nothing_that_it_would_obey(event):
    out = Screen()
    EventLines(out).show(event)
    Answer(out, Paint(out)).show(event)
    Answer(out, Paint(out), plain_json=True).show(event)
    out.text += "".join(one.text for one in story_of([event], 1).sentences)
    assert "evil" in out.text
    assert HARMFUL.findall(out.text) == []


def test_json_for_a_terminal_means_the_same():
    encoded = json.dumps({"text": ATTACK, "ü": "ö"}, ensure_ascii=False).encode()
    assert HARMFUL.findall(safe_json(encoded)) == []
    assert json.loads(safe_json(encoded)) == json.loads(encoded)


async def test_no_command_shows_the_commands_of_a_forged_record(redis_url, capsys):
    """Whoever may write to Redis chooses every field: whoever looks at them is not harmed."""
    async with open_cell(redis_url) as cell:
        await cell.put("t1", text=b'{"messages":[]}')
        await cell.redis.hset("ant:turn:t1", mapping={"queue": ATTACK, "tenant": ATTACK, "worker": ATTACK})
        await cell.redis.sadd("rq:queues", f"rq:queue:{ATTACK}")
        await cell.redis.lpush(f"rq:queue:{ATTACK}", "t1")
        told = ""
        for argv in (["explain", "t1"], ["queues"], ["top", "--once"], ["sessions"], ["failed"], ["workers"]):
            await asyncio.to_thread(main, [*argv, "--redis-url", redis_url])
            found = capsys.readouterr()
            told += found.out + found.err
        await cell.cancel("t1", "no", "steps")
    assert "evil" in told
    assert HARMFUL.findall(told) == []


def test_the_error_of_a_turn_is_printed_without_commands(redis_url, capsys):
    with Client(redis_url) as client:
        client.submit("s", "Hello", agent="any", key="1").cancel(ATTACK)
    code = main(["submit", "s", "Hello", "--agent", "any", "--key", "1", "--wait", "--redis-url", redis_url])
    told = capsys.readouterr()
    assert (code, "evil" in told.err) == (1, True)
    assert HARMFUL.findall(told.out + told.err) == []
    assert printable("a\tb\nc") == "a\tb\nc"
