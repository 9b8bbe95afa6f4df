"""A type checker has nothing to say about the code of the pages and examples, and sees what is wrong."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.source_tree import ROOT

from antiphon import Agent, AsyncClient, Client
from antiphon.input.options import ListOptions, OpeningOptions, SubmitOptions

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
    client.submit("s", "Hello", agnet="support")
    client.submit("s", "Hello", delay="soon")
    client.session("s", sistem="Be brief.")
"""

RIGHT = """
from datetime import timedelta

from antiphon import Agent, AsyncClient, Client

agent = Agent(provider="scripted", model="any")

def use(client: Client) -> str:
    turn = client.submit("s", "Hello", agent=agent, key="1", delay=timedelta(seconds=1), if_busy="reject")
    client.session("s", agent="support", system="Be brief.", messages=[{"role": "user", "content": "Hi"}])
    for event in turn.stream():
        match event.type:
            case "turn_failed":
                print(event.code, event.message)
            case "text_delta" | "reasoning_delta":
                print(event.text)
            case _:
                print(event.seq, event.to_json())
    return turn.result().text

async def follow(client: AsyncClient) -> None:
    turn = await client.submit("s", "Hello", agent="support", metadata={"a": 1})
    async for event in turn.stream():
        if event.type == "turn_finished" and event.response is not None:
            print(event.response.text)
    async for event in client.subscribe("s", after=0):
        print(event.type)
    print([info.session_id async for info in client.sessions(tenant="acme", limit=3)])
"""


@pytest.mark.timeout(120)
def test_a_type_checker_sees_what_is_wrong_and_nothing_else(tmp_path):
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(WRONG)
    assert {found.split()[0] for found in problems(tmp_path)} == {
        f"wrong.py:{line}" for line in (8, 9, 10, 11)
    }


@pytest.mark.parametrize(
    ("options", "call", "others"),
    [
        (SubmitOptions, AsyncClient.submit, {"self", "session", "text"}),
        (OpeningOptions, Agent.session, {"self", "session_id", "ttl", "store"}),
        (ListOptions, Client.sessions, {"self"}),
    ],
)
def test_keywords_that_are_handed_on_are_those_of_the_call(options, call, others):
    taken = {name: str(one.annotation) for name, one in inspect.signature(call).parameters.items()}
    known = {name: hint.__forward_arg__ for name, hint in options.__annotations__.items()}
    assert known == {name: hint for name, hint in taken.items() if name not in others}
