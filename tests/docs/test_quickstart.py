"""The commands of the quickstart that need no API key run word for word, and so does its Python."""

from __future__ import annotations

import os
import re
import shlex

import pytest
from support import forks
from support.processes import COMMAND, Processes
from support.source_tree import ROOT

pytestmark = pytest.mark.main_path

PAGE = (ROOT / "docs" / "quickstart.md").read_text()
WITHOUT_KEY = re.findall(r"^\$ antiphon (.*--provider scripted.*)$", PAGE, re.MULTILINE)


def run(line: str, folder, **env: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")} | env
    done = forks.run([COMMAND, *shlex.split(line)], cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_both_ways_can_be_tried_without_a_key():
    assert [line.split()[0] for line in WITHOUT_KEY] == ["run", "submit"]


@pytest.mark.one_server
def test_a_turn_on_a_worker_without_an_app_runs_word_for_word(redis_url, processes: Processes, tmp_path):
    processes.worker(redis_url).wait_for_output("takes turns")
    (line,) = [line for line in WITHOUT_KEY if line.startswith("submit")]
    assert "You said: Where is order 7?" in run(line, tmp_path, ANTIPHON_REDIS_URL=redis_url)


def test_a_turn_in_this_process_runs_word_for_word(tmp_path, processes: Processes):
    (line,) = [line for line in WITHOUT_KEY if line.startswith("run")]
    assert "You said: Say hello." in run(line, tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "page.py").write_text(code)
    assert "You said: Hello" in processes.python(str(tmp_path / "page.py")).wait_for_output("Hello")
