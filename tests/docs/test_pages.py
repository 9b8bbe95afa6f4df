"""The pages about sessions, the examples of the docstrings and the example programs run as they stand."""

import doctest
import importlib
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import antiphon
from antiphon import Agent, Client, Message
from antiphon.testing import script

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "docs" / f"{name}.md"
    for name in ("sessions", "running", "finding", "testing", "turns", "history", "storage")
]
# What is no public name of its own; those are in test_docstrings.py.
DOCUMENTED = [
    "antiphon.session.background",
    "antiphon.input.messages",
    "antiphon_worker.loop.input",
    "antiphon.session.saved",
    "antiphon.stores.conformance",
    "antiphon.session.streams",
    "antiphon.session.variables",
    "antiphon.wire.keys",
]


def answers(request):
    if request.output is not None:
        return {"key_points": ["a"], "conclusion": "the end"}
    return "I know: " + " / ".join(message.text for message in request.messages if message.role == "user")


def test_the_pages_about_sessions_run_from_top_to_bottom(monkeypatch, tmp_path, capsys, workers_runtime):
    monkeypatch.chdir(tmp_path)
    for name in ("photo.png", "report.pdf"):
        (tmp_path / name).write_bytes(b"content")
    model_of_page = script(answers, repeat=True)

    def agent(provider, model, redis=None, **options):
        return Agent(model_of_page if isinstance(provider, str) else provider, model, **options)

    monkeypatch.setattr(antiphon, "Agent", agent)
    monkeypatch.setattr(antiphon, "Client", lambda url, **more: Client(workers_runtime.url, **more))
    names = {"__name__": "page"}
    monkeypatch.setitem(sys.modules, "page", type(sys)("page"))
    for page in PAGES:
        for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            exec(compile(block, str(page), "exec"), names)
    out = capsys.readouterr().out
    assert "I know: My name is Alice / What do you know about me?" in out
    assert "Write a story" in out
    assert "the end" in out
    assert names["restored"].messages[-2].text == "Where were we?"
    assert names["store"].list_sessions() == ["user-123"]
    assert "user-789 done 2" in out
    assert "user-789 acme" in out
    assert "europe" in out
    assert names["trip"].children() == [names["research"].session_id]
    long = [Message.user("more " * 5_000), Message.assistant("and more " * 5_000)] * 10
    summed_up = names["remembering"].session(messages=long)
    summed_up.run("And now?")
    assert 0 < summed_up.to_dict()["summary"]["messages"] < 20
    assert "Keep all order numbers." in summed_up.to_dict()["summary"]["text"]
    names["store"].close()


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_examples_of_the_docstrings_are_true(name):
    outcome = doctest.testmod(importlib.import_module(name))
    assert outcome.failed == 0


def test_the_example_of_families_runs(processes):
    process = processes.python(str(ROOT / "examples" / "session_families.py"))
    assert process.wait() == 0, process.output
    assert "reviewer: It lacks facts." in process.output
    assert "researcher: The facts." in process.output


def test_the_example_conversation_leaves_empty_lines_out_and_ends_quietly_at_ctrl_c(tmp_path):
    command = [sys.executable, "-u", ROOT / "examples" / "sessions_in_this_process.py"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, cwd=tmp_path, text=True, bufsize=1, **pipes) as process:
        assert process.stdout.readline() == "0 messages so far.\n"
        process.stdin.write("\nHello\n")
        assert process.stdout.readline() == "You said: Hello\n"
        process.send_signal(signal.SIGINT)
        printed, complaints = process.communicate(timeout=20)
    assert (printed, complaints, process.returncode) == ("", "", 0)


def test_the_example_conversation_ends_with_its_input(processes, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        process = processes.python(str(ROOT / "examples" / "sessions_in_this_process.py"))
        assert process.wait() == 0, process.output
        assert "0 messages so far." in process.output
    assert list(tmp_path.glob("conversations*")) == []


def test_the_example_conversation_leaves_no_file_when_it_is_empty(tmp_path):
    command = [sys.executable, ROOT / "examples" / "sessions_in_this_process.py"]
    for said, answered, left in (
        ("Hello", "0 messages so far.\nYou said: Hello\n", ["conversations.db"]),
        ("", "2 messages so far.\n", ["conversations.db"]),
        ("/new", "2 messages so far.\n", []),
    ):
        done = subprocess.run(command, cwd=tmp_path, input=said, capture_output=True, text=True, check=True)
        assert (done.stdout, done.stderr) == (answered, "")
        assert [path.name for path in tmp_path.glob("conversations*")] == left
