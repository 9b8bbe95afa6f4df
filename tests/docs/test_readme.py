"""The README is true: its code runs word for word, its commands exist, and it stays short."""

from __future__ import annotations

import re

import pytest
from support.models import ModelProcess
from support.processes import Processes
from support.source_tree import ROOT

pytestmark = pytest.mark.main_path

README = (ROOT / "README.md").read_text()
MOST_WORDS = 700  # before the table of pages


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_readme_is_read_in_a_few_minutes():
    before_the_pages = README.partition("\n## Documentation\n")[0]
    assert len(before_the_pages.split()) <= MOST_WORDS, "move what is not needed first to a page in docs/"


def test_the_first_screen_shows_the_two_commands_that_do_everything():
    first_screen = README.splitlines()[:12]
    assert [line.split()[2] for line in first_screen if line.startswith("$ make")] == ["demo", "test"]


def test_the_first_example_can_be_run_from_its_folder():
    for name, text in zip(("app.py", "client.py"), blocks("python"), strict=False):
        assert (ROOT / "examples" / "workers" / name).read_text() == text


@pytest.mark.one_server
@pytest.mark.parametrize("has_key", [True, False])
def test_the_first_example_runs_word_for_word_with_and_without_a_key(
    redis_url, processes: Processes, tmp_path, monkeypatch, has_key
):
    app, client = blocks("python")[:2]
    (tmp_path / "app.py").write_text(app)
    (tmp_path / "client.py").write_text(client.replace("redis://localhost:6379/0", redis_url))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    environment = ModelProcess(processes, "--length", "5").environment if has_key else {}
    worker = processes.worker(
        redis_url,
        "--app",
        "app:app",
        "--processes",
        "2",
        env=environment | {"PYTHONPATH": str(tmp_path)},
    )
    worker.wait_for_output("takes turns")
    run = processes.python(str(tmp_path / "client.py"))
    printed = run.wait_for_output("Usage(")
    assert ("[turn 1" if has_key else "You said: Where is order 7?") in printed
    assert "input_tokens=" in printed


def test_the_example_without_a_server_runs_word_for_word(processes: Processes, tmp_path):
    (tmp_path / "parrot.py").write_text(blocks("python")[2])
    printed = processes.python(str(tmp_path / "parrot.py")).wait_for_output("Hello")
    assert "You said: Hello" in printed
