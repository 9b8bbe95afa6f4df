"""A type checker has nothing to say about the code of the pages and examples, and sees what is wrong."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
from support.source_tree import ROOT

from antiphon import Agent
from antiphon import agent as agent_module
from antiphon.input.options import ListOptions, OpeningOptions
from antiphon.redis.turn import AsyncTurn
from antiphon.session.runtime import TurnHandle
from antiphon.session.turn import Turn
from antiphon.stores.base import SessionStore

pytestmark = pytest.mark.short

# The pages tell a story: what one block leaves undefined stands in the words around it.
SETTINGS = {
    "typeCheckingMode": "standard", "pythonVersion": "3.11", "reportUndefinedVariable": "none",
    "reportRedeclaration": "none",
}  # fmt: skip


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
    for page in (ROOT / "docs").glob("*.md"):
        if page.name != "examples.md":  # its code is that of the examples
            (tmp_path / f"page_{page.stem}.py").write_text("\n".join(python_of(page)))
    for page in (ROOT / "docs").glob("*/*.md"):
        (tmp_path / f"{page.parent.name}_{page.stem}.py").write_text("\n".join(python_of(page)))
    for example in (ROOT / "examples").rglob("*.py"):
        copy = (
            tmp_path / f"example_{example.parent.name}" / example.name
        )  # examples of a folder import each other
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(example.read_text())
    assert problems(tmp_path) == []


WRONG = """
from antiphon import AsyncSession, Client, Session

def use(client: Client, session: Session) -> None:
    for event in client.subscribe("s"):
        if event.type == "text_delta":
            print(event.text)
        print(event.text)
    client.submit("s", "Hello", agnet="support")
    client.submit("s", "Hello", delay="soon")
    client.session("s", sistem="Be brief.")
    session.run("Hello", temprature=0.2)
    session.stream("Hello", tiemout=3)
    session.json("Hello", schema=dict, if_busy="wait")
    session.submit("Hello", dealy=3)
    session.messages.text
    Client("redis://localhost", max_conections=3)

async def awaiting(session: Session) -> None:
    await session.run_async("Hello", kye="1")
    await session.messages
    (await session.history_async("first")).text

async def awaited(session: AsyncSession) -> None:
    session.messages
    await session.run("Hello", tiemout=3)
    await session.runs("Hello")
    (await session.messages()).text
"""

RIGHT = """
from datetime import timedelta

from antiphon import Agent, AsyncClient, AsyncSession, Client, Session

agent = Agent(provider="scripted", model="any")

def say(session: Session) -> str:
    session.run("Hello", temperature=0.2, max_tokens=5, extra_body={"own": 1}, agent=agent, if_busy="reject")
    turn = session.submit("Hello", key="1", delay=timedelta(seconds=1), metadata={"a": 1}, queue="slow")
    return turn.result(3).text + session.messages[0].text + session.history(-1)[0].text + str(session.tenant)

async def say_and_wait(session: Session) -> str:
    turn = await session.submit_async("Hello", key="1")
    response = await session.json_async("Hello", schema=dict, timeout=3)
    return (await turn.result()).text + response.text + (await session.messages_async())[0].text

async def awaited(client: AsyncClient) -> str:
    session: AsyncSession = client.session("s", agent=agent)
    assert agent.session_async("s").session_id == session.session_id
    fork = await session.fork(at=(await session.messages())[0].id)
    return (await fork.run("Hello", temperature=0.2)).text + (await (await fork.submit("x")).result()).text

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
        f"wrong.py:{line}" for line in (8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 20, 21, 22, 26, 27, 28)
    }


@pytest.mark.parametrize(
    ("options", "call"), [(OpeningOptions, Agent.session), (ListOptions, Agent.sessions)]
)
def test_keywords_that_are_written_out_are_those_of_the_declaration(options, call):
    known = {name: str(hint) for name, hint in get_type_hints(options, vars(agent_module)).items()}
    taken = {
        name: str(hint)
        for name, hint in get_type_hints(call, vars(agent_module) | {"SessionStore": SessionStore}).items()
    }
    assert {name: hint for name, hint in taken.items() if name in known} == known


@pytest.mark.parametrize("twin", [AsyncTurn], ids=lambda twin: twin.__name__)
def test_a_turn_has_the_methods_of_its_asynchronous_twins_with_the_same_parameters(twin):
    methods = [name for name, one in vars(TurnHandle).items() if inspect.isfunction(one) and name[0] != "_"]
    assert len(methods) >= 7
    for name in methods:
        one, other = (inspect.signature(getattr(cls, name)) for cls in (Turn, twin))
        assert one.parameters == other.parameters, name
        if name != "stream":
            assert one.return_annotation == other.return_annotation, name
