"""The command line, as a person at a terminal uses it: every command is a process of its own."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys

import pytest
from redis import Redis
from support import forks
from support.eventually import wait_until
from support.processes import COMMAND
from support.servers import RedisServer

from antiphon import Agent
from antiphon.cli.main import main
from antiphon.client import Client
from antiphon.encryption import new_key

pytestmark = [pytest.mark.main_path, pytest.mark.one_server, pytest.mark.timeout(120)]

ECHO = ("--provider", "scripted", "--model", "any")
SLOW = Agent("scripted", "any", script=["one", "two"], pause=60)
COMMANDS = [
    "submit",
    "tail",
    "history",
    "sessions",
    "turns",
    "cancel",
    "due",
    "failed",
    "requeue",
    "limits",
    "budgets",
    "tenants",
    "schedules",
    "webhooks",
    "facts",
    "export",
    "forget",
    "batch",
    "files",
    "waiting",
    "approve",
    "reject",
    "chat",
    "top",
    "explain",
    "graph",
    "workers",
    "queues",
    "init",
    "docs",
    "completion",
    "worker",
    "run",
    "redis",
    "demo",
]


def antiphon(*argv, url=None, stdin="", program=None, **env):
    """Run a command to its end."""
    command = [COMMAND, *argv] if program is None else [sys.executable, "-c", program, *argv]
    variables = {**os.environ, "COLUMNS": "80", **env}
    if url:
        variables["ANTIPHON_REDIS_URL"] = url
    return forks.run([str(part) for part in command], env=variables, input=stdin)


def output(*argv, **options):
    """What a command that succeeds prints."""
    done = antiphon(*argv, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def complaint(code, *argv, **options):
    """The one sentence with which a command fails."""
    done = antiphon(*argv, **options)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert done.stderr.count("\n") == 1, f"not one line: {done.stderr}"
    assert done.stderr.startswith("antiphon")
    return done.stderr


@pytest.fixture
def worker(processes, redis_url):
    """A worker that takes turns."""
    process = processes.worker(redis_url)
    process.wait_for_output("takes turns")
    return process


def test_submit_says_what_to_do_if_the_session_is_busy(redis_url, worker):
    slow = ("--provider", "scripted", "--model", "any", "--queue", "antiphon")
    with Client(redis_url) as client:
        first = client.submit("s", "1", agent=SLOW)
        wait_until(lambda: first.status() == "running", 30)
        assert first.id in complaint(1, "submit", "s", "2", *slow, "--if-busy", "reject", url=redis_url)
        waits = output("submit", "s", "3", *slow, url=redis_url).strip()
        second = output("submit", "s", "4", *slow, "--if-busy", "interrupt", "--wait", url=redis_url)
        assert second == "You said: 4\n"
        assert first.status() == "cancelled"
        client.turn(waits).result(30)
        texts = [message.text for message in client.snapshot("s").messages]
        assert (texts[0], texts[-4:]) == ("1", ["4", "You said: 4", "3", "You said: 3"])
        third = client.submit("other", "5", agent=SLOW)
        wait_until(lambda: third.status() == "running", 30)
        assert output("submit", "other", "6", *slow, "--if-busy", "rollback", "--wait", url=redis_url)
        assert [one.text for one in client.snapshot("other").messages] == ["6", "You said: 6"]
    assert "invalid choice: 'later'" in antiphon("submit", "s", "7", "--if-busy", "later").stderr


@pytest.mark.lasting_keys("ant:schedule*")
def test_schedules_are_set_listed_paused_and_removed(redis_url):
    assert "No schedules found" in antiphon("schedules", url=redis_url).stderr
    output("schedules", "add", "s", "tick", "Hello", "--every", "60", "--agent", "a", url=redis_url)
    output(
        "schedules", "add", "s", "daily", "Hi", "--cron", "0 18 * * *", "--tz", "Europe/Berlin",
        "--tenant", "acme", "--priority", "high", url=redis_url,
    )  # fmt: skip
    shown = output("schedules", "list", url=redis_url).splitlines()
    assert re.match(r"s +tick +every 60 s +\d\d:\d\d:", shown[1])
    assert re.match(r"s +daily +0 18 \* \* \*", shown[2])
    output("schedules", "pause", "s", "tick", url=redis_url)
    (line,) = output("schedules", "--json", "--limit", "1", "--tenant", "acme", url=redis_url).splitlines()
    assert (json.loads(line)["name"], json.loads(line)["tz"]) == ("daily", "Europe/Berlin")
    assert " paused" in output("schedules", "--session", "s", url=redis_url)
    output("schedules", "resume", "s", "tick", url=redis_url)
    assert "does not belong to the tenant 'b'" in complaint(
        2, "schedules", "remove", "s", "daily", "--tenant", "b", url=redis_url
    )
    output("schedules", "add", "s", "push", "Look", "--on", "github:*", "--agent", "a", url=redis_url)
    assert re.search(r"s +push +on github:\* +- +- *$", output("schedules", url=redis_url), re.MULTILINE)
    for name in ("tick", "daily", "push"):
        output("schedules", "remove", "s", name, url=redis_url)
    assert "no schedule 'tick'" in complaint(1, "schedules", "remove", "s", "tick", url=redis_url)
    assert "One of the arguments --every --cron" in complaint(
        2, "schedules", "add", "s", "x", "y", url=redis_url
    )


@pytest.mark.lasting_keys("ant:webhook*", "ant:dispatched")
def test_webhooks_are_set_listed_and_removed(redis_url):
    assert "No webhooks found" in antiphon("webhooks", url=redis_url).stderr
    secret = output("webhooks", "add", "ops", "https://example.com/", "--types", "turn_failed", url=redis_url)
    assert secret.startswith("whsec_")
    own = "whsec_" + "c2VjcmV0" * 5
    told = output(
        "webhooks", "add", "inside", "http://inside/", "--private", "--tenant", "acme",
        url=redis_url, ANTIPHON_WEBHOOK_SECRET=own,
    )  # fmt: skip
    assert told.strip() == own
    shown = output("webhooks", url=redis_url)
    assert re.search(r"inside +http://inside/ +acme", shown)
    assert "whsec_" not in shown
    (line,) = output("webhooks", "list", "--json", "--limit", "1", url=redis_url).splitlines()
    assert json.loads(line)["tenant"] == "acme"
    assert "begins with https://" in complaint(2, "webhooks", "add", "x", "http://x/", url=redis_url)
    for name in ("ops", "inside"):
        output("webhooks", "remove", name, url=redis_url)
    assert "Unknown webhook: 'ops'" in complaint(1, "webhooks", "remove", "ops", url=redis_url)


def test_help_names_every_command_and_fits_a_terminal():
    shown = output("--help")
    assert [name for name in COMMANDS if f"\n  {name} " not in shown] == []
    assert max(map(len, shown.splitlines())) < 110


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_says_how_it_is_used(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: antiphon {command}")
    assert re.findall(r"\b[a-z][A-Z]+\b", shown) == [], "abbreviations stay as they are"


def test_the_version_is_that_of_the_package():
    from importlib.metadata import version

    assert output("--version") == f"antiphon {version('antiphon')}\n"


def test_an_app_that_does_not_exist_ends_a_worker_before_it_begins():
    assert "ANTIPHON_APP (--app)" in complaint(2, "worker", "--app", "no.such.module:app")


def test_durations_have_units():
    with RedisServer(config={"maxmemory": "1mb", "maxmemory-policy": "noeviction"}) as full:
        argv = ["worker", "--drain", "5m", "--lease", "1500ms", "--redis-url", full.url]
        assert "out of memory" in complaint(1, *argv)


@pytest.mark.parametrize(
    "argv",
    [
        ["submit", "s", "x"],
        ["history", "s"],
        ["sessions"],
        ["failed"],
        ["cancel", "t"],
        ["redis", "check"],
    ],
    ids=" ".join,
)
def test_a_redis_that_is_away_is_said_in_one_sentence(argv):
    assert "cannot be reached" in complaint(1, *argv, url="redis://127.0.0.1:1/0")


@pytest.mark.parametrize("command", [["worker"], ["redis", "check"]], ids=" ".join)
def test_a_redis_that_would_lose_turns_is_refused_with_the_fix(command):
    with RedisServer(config={"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}) as evicting:
        assert "maxmemory-policy noeviction" in complaint(1, *command, url=evicting.url)
        with RedisServer(replica_of=evicting) as replica:
            assert "point ANTIPHON_REDIS_URL at the primary" in complaint(1, *command, url=replica.url)
    with RedisServer(config={"maxmemory": "1mb", "maxmemory-policy": "noeviction"}) as full:
        with Redis.from_url(full.url) as redis:
            redis.config_set("maxmemory", "1")
        assert "out of memory" in complaint(1, *command, url=full.url)


def test_a_check_says_what_a_redis_promises(redis_url):
    shown = output("redis", "check", "--durability", "none", url=redis_url)
    assert "durability none" in shown
    assert "ANTIPHON_DURABILITY is fsync" in complaint(
        1, "redis", "check", "--durability", "fsync", url=redis_url
    )


@pytest.mark.parametrize("command", [("redis", "check"), ("worker", "check"), ("sessions",)], ids=" ".join)
def test_an_empty_url_is_no_redis_that_is_well(command):
    assert "Redis URL is empty" in complaint(2, *command, "--redis-url", "")


OF_AN_APP = """
from antiphon import Agent
from antiphon_worker import App
app = App(agents=[Agent("scripted", "any", name="echo"), Agent("openai", "gpt", name="support"),
                  Agent("anthropic", "claude", name="writer")])
none = App()
"""
WITHOUT_ANTHROPIC = """
import sys
sys.modules["anthropic"] = None
from antiphon import Agent
from antiphon.cli.main import main
sys.exit(main())
"""


def test_an_app_is_checked_without_a_worker_and_a_redis(tmp_path):
    (tmp_path / "agents_of_a_test.py").write_text(OF_AN_APP)
    env = {"PYTHONPATH": str(tmp_path), "HOME": str(tmp_path)}
    check = ("worker", "check", "--app", "agents_of_a_test:app")
    done = antiphon(*check, url="redis://127.0.0.1:1/0", program=WITHOUT_ANTHROPIC, **env)
    echo, support, writer = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (1, "")
    assert echo == "echo: ready"
    assert support.startswith("support: There is no API key for OpenAI: set OPENAI_API_KEY")
    assert writer == "writer: This provider needs the anthropic package: pip install 'antiphon[worker]'."
    keys = {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"}
    assert output(*check, **env, **keys) == "echo: ready\nsupport: ready\nwriter: ready\n"
    assert (
        output("worker", "check", "--app", "agents_of_a_test:none", **env)
        == "The App has no agents of its own.\n"
    )
    assert "cannot be loaded" in complaint(2, "worker", "check", "--app", "nowhere:app", **env)


@pytest.mark.parametrize("check", [(), ("check",)], ids=["worker", "check"])
def test_an_app_that_cannot_be_loaded_is_told_with_its_line(tmp_path, check):
    env = {"PYTHONPATH": str(tmp_path)}
    for text, told in {
        "\nimport nowhere": "line 2: No module named 'nowhere'.",
        "import os\nos.environ['NOT_SET']": "line 2: KeyError: 'NOT_SET'.",
        "def f(:": "line 1: SyntaxError: invalid syntax.",
        "from antiphon_worker import App\napp = App(agent=[])": "line 2: TypeError: ",
        "raise ValueError('a\\nb')": "line 1: ValueError: a b.",
    }.items():
        (tmp_path / "app_of_a_test.py").write_text(text)
        said = complaint(2, "worker", *check, "--app", "app_of_a_test:app", **env)
        assert "(--app) 'app_of_a_test:app' cannot be loaded: app_of_a_test.py, " + told in said


def test_a_worker_with_keys_that_are_not_valid_says_so_before_it_starts(redis_url):
    said = complaint(2, "worker", url=redis_url, ANTIPHON_ENCRYPTION_KEYS="k1:AAAA")
    assert "ANTIPHON_ENCRYPTION_KEYS must have 32 bytes" in said


OF_AN_APP_WITH_A_MEMORY = """
from langchain_core.vectorstores import InMemoryVectorStore
from antiphon.memory import Memory, WordEmbeddings
from antiphon_worker import App
app = App(memory=Memory(InMemoryVectorStore(WordEmbeddings())))
"""


def test_a_worker_with_keys_and_a_memory_in_plain_text_says_so_before_it_starts(redis_url, tmp_path):
    (tmp_path / "app_of_a_test.py").write_text(OF_AN_APP_WITH_A_MEMORY)
    env = {"PYTHONPATH": str(tmp_path), "ANTIPHON_ENCRYPTION_KEYS": new_key("k1")}
    said = complaint(2, "worker", "--app", "app_of_a_test:app", url=redis_url, **env)
    assert "SealedEmbeddings(embeddings)" in said


def test_a_worker_says_at_its_start_what_its_agents_lack(redis_url, processes, tmp_path):
    (tmp_path / "agents_of_a_test.py").write_text(OF_AN_APP)
    worker = processes.worker(
        redis_url, "--app", "agents_of_a_test:app", env={"PYTHONPATH": str(tmp_path), "HOME": str(tmp_path)}
    )
    for agent, variable in (("support", "OPENAI_API_KEY"), ("writer", "ANTHROPIC_API_KEY")):
        worker.wait_for_output(f"[agent_not_ready] agent {agent} is not ready: ")
        assert variable in worker.output
    assert worker.output.count("agent_not_ready") == 2
    turn = output("submit", "s", "hello", "--agent", "echo", "--wait", url=redis_url)
    assert turn == "You said: hello\n"
    worker.terminate()


def test_delayed_turns_are_shown_with_their_times(redis_url):
    with Client(redis_url) as client:
        turn = client.submit("s", "x", agent="any", delay=3600, tenant="acme")
        client.submit("t", "x", agent="any", delay=7200)
        head, first, second = output("due", url=redis_url).splitlines()
        assert head.split() == ["TURN", "SESSION", "TENANT", "DUE"]
        assert first.split()[:3] == [turn.id, "s", "acme"]
        assert second.split()[1:3] == ["t", "-"]
        (found,) = map(json.loads, output("due", "--tenant", "acme", "--json", url=redis_url).splitlines())
        assert (found["turn_id"], found["due"] - found["created"]) == (turn.id, 3_600_000)
        assert len(output("due", "--limit", "1", "--json", url=redis_url).splitlines()) == 1
        head, *rows = output("sessions", url=redis_url).splitlines()
        assert head.split()[-1] == "DUE"
        assert [row.split()[3] for row in rows] == ["delayed", "delayed"]
        assert re.search(r"\d\d:\d\d:\d\d$", rows[0])
        for one in [*client.turns("s"), *client.turns("t")]:
            one.cancel()
        _, row = output("turns", "s", "--status", "cancelled", url=redis_url).splitlines()
        assert row.split()[:3] == [turn.id, "cancelled", "any"]
        assert json.loads(output("turns", "s", "--json", url=redis_url))["turn_id"] == turn.id
        assert "Nothing matches" in antiphon("turns", "s", "--status", "failed", url=redis_url).stderr
        assert "has no turns" in antiphon("turns", "nosuch", url=redis_url).stderr
        assert "No turn is delayed." in antiphon("due", url=redis_url).stderr


def test_a_turn_that_no_worker_takes_is_accepted_with_a_warning(redis_url):
    done = antiphon("submit", "s", "hello", *ECHO, url=redis_url)
    assert done.returncode == 0
    assert "No worker serves the queue antiphon" in done.stderr
    turn = done.stdout.strip()
    assert json.loads(output("sessions", "--json", url=redis_url))["turns"] == 1
    assert output("cancel", turn, url=redis_url) == "cancelled\n"


async def test_a_turn_is_cancelled_with_what_is_to_stay(cell, redis_url):
    turn = await cell.started("t1")
    said = await asyncio.to_thread(output, "cancel", "t1", "--keep", "partial", url=redis_url)
    assert said == "its worker is ending it\n"
    assert await cell.keep_of("t1") == "partial"
    await cell.end(turn, "cancelled")


def test_a_session_keeps_its_queue_and_tenant_and_is_found_by_them(redis_url):
    first = antiphon("submit", "s", "hello", *ECHO, "--queue", "gpu", "--tenant", "acme", url=redis_url)
    second = antiphon("submit", "s", "again", url=redis_url)
    other = antiphon("submit", "t", "hello", *ECHO, url=redis_url)
    assert "Start one with `antiphon worker --queues gpu`" in first.stderr
    assert second.stderr == ""  # it waits for the turn before it, not for a worker
    assert "Start one with `antiphon worker`" in other.stderr
    (found,) = output("sessions", "--tenant", "acme", "--json", url=redis_url).splitlines()
    assert json.loads(found)["queue"] == "gpu"
    assert json.loads(found)["turns"] == 2
    lines = output("sessions", url=redis_url).splitlines()
    assert [line.split()[:4] for line in lines] == [
        ["SESSION", "TENANT", "AGENT", "STATUS"], ["t", "-", "-", "waiting"], ["s", "acme", "-", "waiting"],
    ]  # fmt: skip
    assert len(output("sessions", "--limit", "1", url=redis_url).splitlines()) == 2
    assert "another session id" in complaint(2, "submit", "s", "x", *ECHO, "--tenant", "other", url=redis_url)
    for done in (first, second, other):
        output("cancel", done.stdout.strip(), url=redis_url)


def test_a_turn_is_submitted_answered_and_remembered(worker, redis_url):
    assert output("submit", "s", "hello", *ECHO, "--wait", url=redis_url) == "You said: hello\n"
    assert output("submit", "s", "again", *ECHO, "--stream", url=redis_url) == "You said: again\n"
    assert output("submit", "s", "-", *ECHO, "--wait", stdin="typed", url=redis_url) == "You said: typed\n"
    messages = [json.loads(line) for line in output("history", "s", "--json", url=redis_url).splitlines()]
    assert [message["role"] for message in messages] == ["user", "assistant"] * 3
    shown = output("history", "s", url=redis_url)
    assert shown.startswith("user\n  hello\n\nassistant\n  You said: hello\n")
    assert "done" in output("sessions", url=redis_url)


def test_the_same_key_submits_once(redis_url):
    first = output("submit", "s", "hello", *ECHO, "--key", "k", url=redis_url)
    assert output("submit", "s", "hello", *ECHO, "--key", "k", url=redis_url) == first
    assert "idempotency key" in complaint(2, "submit", "s", "other", *ECHO, "--key", "k", url=redis_url)
    output("cancel", first.strip(), url=redis_url)


def test_a_worker_that_was_killed_does_not_count_as_one_that_serves(redis_url, processes):
    process = processes.worker(redis_url)
    process.wait_for_output("takes turns")
    served = antiphon("submit", "s", "hello", *ECHO, url=redis_url)
    assert served.stderr == ""
    with Client(redis_url) as client:
        client.turn(served.stdout.strip()).result()
    process.kill()
    with Redis.from_url(redis_url) as redis:
        for key in redis.smembers("rq:workers"):
            redis.delete(key)  # what its time to live does a minute later
    warned = antiphon("submit", "other", "hello", *ECHO, url=redis_url)
    assert "No worker serves" in warned.stderr
    output("cancel", warned.stdout.strip(), url=redis_url)


def test_a_failed_turn_is_listed_and_can_be_run_again(worker, redis_url):
    done = antiphon("submit", "s", "hello", "--agent", "nobody", "--wait", url=redis_url)
    assert done.returncode == 1
    assert "no agent 'nobody'" in done.stderr
    (failed,) = output("failed", "--json", url=redis_url).splitlines()
    assert json.loads(failed)["code"] == "unknown_agent"
    turn = json.loads(failed)["turn_id"]
    assert output("requeue", turn, url=redis_url) == f"{turn}\n"

    def runs():
        shown = history_of_events(redis_url, "s")
        return [event for event in shown if event["type"] == "turn_failed" and event["run"] == 2]

    wait_until(runs, description="the second run ended")
    assert turn in output("failed", url=redis_url)
    done = output("submit", "s", "hello", *ECHO, url=redis_url).strip()
    ended = "the turn has already ended: finished\n"
    wait_until(lambda: output("cancel", done, url=redis_url) == ended, description="the turn finished")
    assert "only failed turns" in complaint(2, "requeue", done, url=redis_url)


def history_of_events(url, session):
    with Redis.from_url(url) as redis:
        return [json.loads(fields[b"e"]) for _, fields in redis.xrange(f"ant:events:{session}")]


def test_tail_shows_each_event_once_and_in_order(worker, redis_url, processes):
    output("submit", "s", "hello", *ECHO, "--wait", url=redis_url)
    tail = processes.start(COMMAND, "tail", "s", "--after", "0", "--json", "--redis-url", redis_url)
    plain = processes.start(COMMAND, "tail", "s", "--after", "0", "--redis-url", redis_url)
    tail.wait_for_output("turn_finished")
    output("submit", "s", "once more", *ECHO, "--wait", url=redis_url)
    wait_until(lambda: tail.output.count("turn_finished") == 2, description="the second turn is shown")
    events = [json.loads(line) for line in tail.output.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert "  You said: once more\n" in plain.wait_for_output("once more\n")
    tail.send_signal(signal.SIGINT)
    assert tail.wait() == 130
    assert "Traceback" not in tail.output


def test_what_a_terminal_would_obey_is_not_printed(worker, redis_url):
    output("submit", "s", "red \x1b[31malert\x07", *ECHO, "--wait", url=redis_url)
    assert "\x1b" not in output("history", "s", url=redis_url)
    assert output("submit", "s", "\x1b[2Jgone", *ECHO, "--stream", url=redis_url) == "You said: [2Jgone\n"


NOBODY = "Redis has no session nobody. Waiting for its first event.\n"


def test_a_closed_pipe_ends_a_tail_that_waits(redis_url):
    tail = subprocess.Popen(
        [COMMAND, "tail", "nobody", "--redis-url", redis_url], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    tail.stdout.close()
    assert tail.wait(30) == 141
    assert tail.stderr.read() in (b"", NOBODY.encode())  # it may end before it looks
    tail.stderr.close()


def test_a_tail_says_that_it_waits_for_a_session(processes, redis_url):
    tail = processes.start(COMMAND, "tail", "nobody", "--redis-url", redis_url)
    tail.wait_for_output(NOBODY)
    tail.send_signal(signal.SIGINT)
    assert tail.wait() == 130


def test_a_closed_pipe_ends_a_long_output_quietly(redis_url, worker):
    for _ in range(3):
        output("submit", "s", "word " * 20_000, *ECHO, "--wait", url=redis_url)
    history = subprocess.Popen(
        [COMMAND, "history", "s", "--redis-url", redis_url], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert history.stdout.read(4) == b"user"
    history.stdout.close()
    assert history.wait(30) == 141
    assert history.stderr.read() == b""
    history.stderr.close()


def test_interrupting_a_worker_drains_it(worker):
    worker.send_signal(signal.SIGINT)
    assert worker.wait() == 0
    assert "has stopped" in worker.output
    assert "Traceback" not in worker.output


def test_one_turn_runs_without_redis_and_its_session_goes_on(tmp_path):
    store = tmp_path / "sessions.db"
    assert output("run", "hello", *ECHO) == "You said: hello\n"
    for text in ("first", "second"):
        assert output("run", text, *ECHO, "--session", "s", "--store", store) == f"You said: {text}\n"
    from antiphon.stores import SQLiteStore

    with SQLiteStore(store) as saved:
        assert len(saved.load("s")["messages"]) == 4


def test_an_embedded_valkey_serves_until_it_is_stopped_and_keeps_its_data(processes, tmp_path):
    start = (COMMAND, "redis", "--port", "0", "--data-dir", tmp_path / "data")
    assert "not a port" in complaint(2, *start[1:])
    from support.network import free_port

    port = free_port()
    start = (COMMAND, "redis", "--port", str(port), "--data-dir", tmp_path / "data")
    first = processes.start(*start)
    url = first.wait_for_output("redis://").strip()
    assert "durability everysec" in output("redis", "check", url=url)
    assert f"Port {port} cannot be used" in complaint(2, *start[1:])
    with Redis.from_url(url) as redis:
        redis.set("kept", "yes")
    assert first.terminate() == 130
    second = processes.start(*start)
    second.wait_for_output("redis://")
    with Redis.from_url(url, decode_responses=True) as redis:
        assert redis.get("kept") == "yes"


def test_an_embedded_valkey_does_not_outlive_a_killed_owner(processes):
    from support.network import free_port

    owner = processes.start(COMMAND, "redis", "--port", str(free_port()))
    url = owner.wait_for_output("redis://").strip()
    os.kill(owner.pid, signal.SIGKILL)
    wait_until(lambda: antiphon("redis", "check", url=url).returncode == 1, description="the server is gone")


def test_where_a_package_is_missing_one_sentence_says_which_to_install():
    program = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("antiphon_worker", "antiphon_demo", "openai", "anthropic", "starlette"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from antiphon import Agent
from antiphon.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
    for command in (["demo"], ["redis"]):
        assert "pip install 'antiphon[demo]'" in complaint(2, *command, program=program)
    for command in (["worker"], ["run", "x", *ECHO]):
        assert "pip install 'antiphon[worker]'" in complaint(2, *command, program=program)
    assert "pip install 'antiphon[gateway]'" in complaint(2, "serve", program=program)
    assert "pip install 'antiphon[worker]'" in output("--help", program=program)


def test_without_the_package_of_the_demo_a_redis_can_still_be_examined(redis_url, monkeypatch, capsys):
    monkeypatch.setattr("antiphon.cli.main.entry_points", lambda group: ())
    for command in ("demo", "redis"):
        assert main([command]) == 2
        assert capsys.readouterr().err == (
            f"antiphon {command}: `antiphon {command}` needs the package of the demo: pip install 'antiphon[demo]'.\n"
        )
    assert main(["redis", "check", "--durability", "none", "--redis-url", redis_url]) == 0
    assert main(["redis", "acl", "worker"]) == 0


def test_limits_of_a_tenant_are_set_and_shown(redis_url):
    shown = output(
        "limits", "acme", "--in-flight", "5", "--per-minute", "100", "--user-turns", "3", url=redis_url
    )
    assert [line.split() for line in shown.splitlines()[-7:]] == [
        ["in", "flight", "5"], ["waiting", "none"], ["per", "minute", "100"], ["user", "turns", "3"],
        ["user", "in", "flight", "none"], ["user", "per", "minute", "none"], ["stored", "bytes", "none"],
    ]  # fmt: skip
    output("limits", "--waiting", "7", url=redis_url)
    assert "7" in output("limits", "acme", url=redis_url)
    for number in range(6):
        output("submit", f"s-{number}", "Hello", "--tenant", "acme", url=redis_url)
    output("submit", "t", "Hello", "--tenant", "umbra", url=redis_url)
    listed = output("tenants", url=redis_url).splitlines()
    assert [line.split() for line in listed[1:]] == [
        ["acme", "1", "5", "5", "7", "100", "3", "none", "none", "none"],
        ["umbra", "1", "0", "none", "7", "none", "none", "none", "none", "none"],
    ]
    shown = json.loads(output("tenants", "--json", url=redis_url).splitlines()[0])
    assert (shown["tenant"], shown["limits"]["in_flight"]) == ("acme", 5)
    assert antiphon("limits", "acme", "--waiting", "0", url=redis_url).returncode == 2
    output("limits", "acme", "--none", url=redis_url)
    output("limits", "--none", url=redis_url)
    with Redis.from_url(redis_url) as redis:
        assert not redis.exists("ant:limits")
        redis.flushall()  # the turns wait for workers


@pytest.mark.lasting_keys("ant:schedule*", "ant:event*", "ant:tenant_events:*")
def test_an_event_is_sent_and_starts_turns(redis_url):
    sent = ("event", "github:push", '{"ref": "main"}', "--key", "1", "--json")
    assert json.loads(output(*sent, url=redis_url)) == {"turns": 0}
    assert "reached 0 turns" in output("event", "github:push", url=redis_url)
    output("schedules", "add", "s", "push", "Look", "--on", "github:*", "--agent", "a", url=redis_url)
    assert json.loads(output(*sent, url=redis_url)) == {"turns": 1}
    assert "reached 0 turns" in output("event", "github:push", "--tenant", "acme", url=redis_url)
    assert antiphon("event", "two words", url=redis_url).returncode == 2
    assert antiphon("event", "push", "no json", url=redis_url).returncode == 2
    with Redis.from_url(redis_url) as redis:
        redis.flushdb()  # the turn waits for workers


def test_budgets_are_set_shown_and_removed(redis_url):
    acme = ("tenant", "acme")
    several = ("--budget", "cost=5,per=day", "--budget", "tokens=100000,per=month,reached=suspend")
    shown = output("budgets", "set", *acme, *several, url=redis_url).splitlines()
    assert [line.split()[:5] for line in shown[1:]] == [
        ["$5", "day", "reject", "$0", "$0"], ["100,000", "tokens", "month", "suspend", "0"],
    ]  # fmt: skip
    assert output("budgets", *acme, url=redis_url).splitlines() == shown
    (one,) = output(
        "budgets", "set", "user", "alice", "--tenant", "acme", "--budget", "cost=0.5", "--json", url=redis_url
    ).splitlines()
    assert json.loads(one)["budget"] == {"cost": 0.5}
    assert output("budgets", "user", "alice", "--json", url=redis_url) == "", "that of no tenant"
    output("budgets", "set", "tenant", "--budget", "cost=9", url=redis_url)
    rows = [line.split()[:4] for line in output("budgets", url=redis_url).splitlines()[1:]]
    assert rows == [
        ["tenant", "-", "(all", "others)"],
        ["tenant", "-", "acme", "$5"],
        ["tenant", "-", "acme", "100,000"],
        ["user", "acme", "alice", "$0.5"],
    ]
    of_acme = output("budgets", "--tenant", "acme", "--json", url=redis_url).splitlines()
    assert [json.loads(line)["name"] for line in of_acme] == ["acme", "acme", "alice"]
    assert output("budgets", "set", *acme, "--none", "--json", url=redis_url) == ""
    assert "$9" in output("budgets", "remove", *acme, url=redis_url)
    output("budgets", "remove", "tenant", url=redis_url)
    for wrong in (
        ("set", *acme), ("set", *acme, "--none", "--budget", "cost=5"), ("set", *acme, "--budget", "cost=five"),
        ("set", *acme, "--budget", "price=5"), ("set", *acme, "--budget", "cost=5,tokens=5"), ("everyone", "acme"),
        (*acme, "--tenant", "acme"),
    ):  # fmt: skip
        assert antiphon("budgets", *wrong, url=redis_url).returncode == 2
    with Redis.from_url(redis_url) as redis:
        assert not redis.exists("ant:budgets:tenant")


def test_a_priority_is_submitted(redis_url):
    turn = output("submit", "s", "Hello", *ECHO, "--priority", "low", url=redis_url).strip()
    with Redis.from_url(redis_url) as redis:
        assert redis.hget(f"ant:turn:{turn}", "priority") == b"low"
        redis.flushdb()
