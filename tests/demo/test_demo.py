"""`antiphon demo` from its start to its verdict, and what is left of it when it is stopped half-way."""

import json
import os
import re
import signal
import socket
import urllib.request
from pathlib import Path

import httpx2
import pytest
from support.eventually import wait_until
from support.processes import COMMAND
from support.source_tree import ROOT

from antiphon.errors import AgentError, UsageError
from antiphon_demo import stage
from antiphon_demo.conversations import read_conversations
from antiphon_demo.process_guard import Guard
from antiphon_demo.service import choose_service

pytestmark = [pytest.mark.timeout(240)]


@pytest.fixture
def demo(processes, tmp_path):
    """Starts a demo whose temporary files are in a folder of the test's own, run without forks."""
    (tmp_path / "temporary").mkdir()

    def start(*flags, **variables):
        env = {"TMPDIR": str(tmp_path / "temporary"), "COLUMNS": "80", "TEST_FORKS": "no", **variables}
        return processes.start(COMMAND, "demo", "--plain", *flags, name="demo", env=env)

    start.folder = tmp_path / "temporary"
    return start


def started_with(folder):
    """The processes whose temporary folder this is: all that a demo has started."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"TMPDIR={folder}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:
            continue  # it has ended while we looked
    return found


@pytest.mark.main_path
def test_a_demo_kills_a_worker_and_every_answer_is_still_complete(demo):
    process = demo("--sessions", "3", "--pace", "40")
    assert process.wait(timeout=200) == 0, process.output
    lines = process.output.splitlines()
    assert re.search(r"kill -9 of worker process \d+, in the middle of (one|\d+) answers?", process.output)
    assert re.search(r"turn 2 of 3, attempt 2", process.output)
    assert sum("turn 3 of 3" in line for line in lines) == 3
    assert [line for line in lines if re.match(r"  G[25] holds: ", line)] != []
    assert re.search(r"^  recovery +[\d,]+ ms$", process.output, re.MULTILINE)
    assert (
        lines[-1] == "OK: every answer is complete, though a worker was killed in the middle; G2 and G5 hold."
    )
    assert list(demo.folder.iterdir()) == []
    assert started_with(demo.folder) == []


def test_a_demo_plays_conversations_of_a_file(demo):
    process = demo(
        "--input",
        str(ROOT / "examples/conversations.jsonl"),
        "--no-kill",
        "--pace",
        "200",
        "--processes",
        "1",
    )
    assert process.wait(timeout=200) == 0, process.output
    assert process.output.splitlines()[-1] == "OK: every answer is complete; G2 and G5 hold."
    assert "富士山, turn 2 of 2" in process.output
    assert "kill -9" not in process.output


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)], ids=str)
def test_a_demo_keeps_its_page_running_until_it_is_stopped(demo, number, code):
    process = demo("--serve", "--sessions", "1", "--no-kill", "--processes", "1", "--pace", "200")
    printed = process.wait_for_output("Ctrl-C ends it.", timeout=120)
    (page,) = re.findall(r"The page stays at (http://\S+)\.", " ".join(printed.split()))
    assert f"The operator dashboard shows them: {page}" in " ".join(printed.split())
    with urllib.request.urlopen(page) as answer:
        assert b"<title>Antiphon live</title>" in answer.read()
    with urllib.request.urlopen(page.replace("/live", "/sessions")) as answer:
        assert [one["turns"] for one in json.load(answer)["sessions"]] == [0]
    process.send_signal(number)
    assert process.wait(timeout=60) == code, process.output
    assert started_with(demo.folder) == []


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)], ids=str
)
def test_a_demo_that_is_stopped_leaves_nothing_behind(demo, number, code):
    process = demo("--sessions", "2", "--no-kill")
    process.wait_for_output("turn 1 of 3", timeout=120)
    assert len(started_with(demo.folder)) > 4
    process.send_signal(number)
    assert process.wait() == code
    wait_until(lambda: not started_with(demo.folder), description="all its processes are gone")
    wait_until(lambda: not list(demo.folder.iterdir()), description="its files are gone")
    assert "Traceback" not in process.output


def test_a_demo_whose_model_service_refuses_says_so_and_fails(processes, tmp_path):
    server = processes.python("-m", "antiphon_demo.modelserver", name="modelserver")
    url = json.loads(server.wait_for_output("}\n"))["openai_url"]
    env = {"OPENAI_API_KEY": "wrong", "OPENAI_BASE_URL": url}
    process = processes.start(COMMAND, "demo", "--plain", "--sessions", "1", name="demo", env=env)
    assert process.wait(timeout=120) == 1
    assert "the real service (openai)" in process.output
    assert "answered 401" in process.output
    assert process.output.splitlines()[-1].startswith("FAILED: ")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "There are no conversations"),
        ('{"turns": ["fine"]}\nnot json', "line 2"),
        ('{"turns": "one text"}', "line 1"),
        ('{"questions": ["one"]}', "line 1"),
        ('{"turns": []}', "at least one turn"),
        ('{"turns": ["fine", " "]}', "no turn may be empty"),
    ],
)
def test_a_file_without_conversations_is_refused_with_its_line(content, says, tmp_path):
    path = tmp_path / "conversations.jsonl"
    path.write_text(content)
    with pytest.raises(UsageError, match=says):
        read_conversations(path)


@pytest.mark.one_server
async def test_a_demo_whose_port_is_taken_shows_its_page_on_another(monkeypatch):
    with Guard() as guard, socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(stage, "PAGE_PORT", taken.getsockname()[1])
        shown = stage.Stage(guard, processes=1, pace=0, service=choose_service(None, None, {}), serves=True)
        try:
            await shown.set_up()
        finally:
            await shown.aclose()
        async with httpx2.AsyncClient() as client:
            assert "<title>Antiphon live</title>" in (await client.get(shown.page)).text


@pytest.mark.one_server
async def test_workers_that_are_not_ready_in_time_are_said(monkeypatch):
    monkeypatch.setattr(stage, "READY_SECONDS", 0)
    with Guard() as guard:
        shown = stage.Stage(guard, processes=1, pace=0, service=choose_service(None, None, {}))
        with pytest.raises(AgentError, match="not ready in 0 seconds"):
            await shown.set_up()
        await shown.aclose()


def test_a_file_that_is_not_there_is_said_so(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        read_conversations(tmp_path / "nowhere.jsonl")


def test_conversations_of_the_same_name_are_sessions_of_their_own(tmp_path):
    path = tmp_path / "conversations.jsonl"
    path.write_text('{"name": "a", "turns": ["x"]}\n\n{"name": "a", "turns": ["y"]}\n{"turns": ["z"]}\n')
    assert [one.name for one in read_conversations(path)] == ["a", "a-2", "4"]
    assert len(read_conversations(path, 2)) == 2


def test_our_own_conversations_are_played_again_where_more_are_asked_for():
    own = read_conversations(None)
    more = read_conversations(None, 3 * len(own))
    assert len({one.name for one in more}) == 3 * len(own)


def test_the_questions_of_mt_bench_are_read(shared):
    questions = read_conversations(shared / "conversations" / "mt_bench_questions.jsonl")
    assert len(questions) == 80
    assert {len(one.turns) for one in questions} == {2}
    assert questions[0].name == "81"


def test_the_real_service_answers_where_its_key_is_set():
    assert choose_service(None, None, {}).own
    assert list(choose_service(None, None, {}).providers) == ["openai", "openai-chat", "anthropic"]
    real = choose_service(None, None, {"ANTHROPIC_API_KEY": "k"})
    assert (real.own, list(real.providers)) == (False, ["anthropic"])
    assert choose_service("openai-chat", "m", {"ANTHROPIC_API_KEY": "k"}).own
    assert choose_service("openai-chat", "m", {"OPENAI_API_KEY": "k"}).agent(0).model == "m"
    assert os.environ.get("OPENAI_API_KEY") is None, "tests must not find a key"
