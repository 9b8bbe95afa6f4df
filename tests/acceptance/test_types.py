"""A type checker has nothing to say about the code of the pages and examples, and sees what is wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.source_tree import ROOT

# The pages tell a story: what one block leaves undefined stands in the words around it.
SETTINGS = {"typeCheckingMode": "standard", "pythonVersion": "3.11", "reportUndefinedVariable": "none"}


def python_of(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def problems(folder: Path) -> list[str]:
    """What pyright says about the files of a folder."""
    (folder / "pyrightconfig.json").write_text(json.dumps(SETTINGS))
    command = [
        sys.executable,
        "-m",
        "pyright",
        "--pythonpath",
        sys.executable,
        "--outputjson",
        "--project",
        folder,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    return [f"{Path(one['file']).name}:{one['range']['start']['line'] + 1} {one['message']}" for one in found]


@pytest.mark.timeout(120)
def test_the_code_of_the_pages_and_the_examples_passes_a_type_checker(tmp_path):
    for number, block in enumerate(python_of(ROOT / "README.md")):
        (tmp_path / f"readme_{number}.py").write_text(block)
    for page in (ROOT / "docs").rglob("*.md"):
        (tmp_path / f"page_{page.stem}.py").write_text("\n".join(python_of(page)))
    for example in (ROOT / "examples").rglob("*.py"):
        (tmp_path / f"example_{example.name}").write_text(example.read_text())
    assert problems(tmp_path) == []


WRONG = """
from antiphon import Client, Session

def use(client: Client, session: Session) -> None:
    for event in client.subscribe("s"):
        if event.type == "text_delta":
            print(event.text)
        print(event.text)
"""


@pytest.mark.timeout(120)
def test_a_type_checker_sees_what_is_wrong(tmp_path):
    (tmp_path / "wrong.py").write_text(WRONG)
    assert {found.split()[0] for found in problems(tmp_path)} == {"wrong.py:8"}
