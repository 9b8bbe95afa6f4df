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

import antiphon
from antiphon import Agent
from antiphon.input.options import OpeningOptions
from antiphon.redis.turn import AsyncTurn
from antiphon.session.runtime import TurnHandle
from antiphon.session.turn import Turn
from antiphon_worker.local.submitted import SubmittedTurn

pytestmark = pytest.mark.short

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
        copy = (
            tmp_path / f"example_{example.parent.name}" / example.name
        )  # examples of a folder import each other
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(example.read_text())
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
"""

RIGHT = """
from datetime import timedelta

from antiphon import Agent, AsyncClient, Client, Session

agent = Agent(provider="scripted", model="any")

def say(session: Session) -> str:
    session.run("Hello", temperature=0.2, max_tokens=5, extra_body={"own": 1}, agent=agent, if_busy="reject")
    turn = session.submit("Hello", key="1", delay=timedelta(seconds=1), metadata={"a": 1}, queue="slow")
    return turn.result(3).text + session.messages[0].text + session.history(-1)[0].text + str(session.tenant)

async def say_and_wait(session: Session) -> str:
    turn = await session.submit_async("Hello", key="1")
    response = await session.json_async("Hello", schema=dict, timeout=3)
    return (await turn.result()).text + response.text + (await session.messages_async())[0].text

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
        f"wrong.py:{line}" for line in (8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 20, 21, 22)
    }


@pytest.mark.parametrize(
    ("options", "call", "others"),
    [
        (OpeningOptions, Agent.session, {"self", "session_id", "ttl", "store"}),
    ],
)
def test_keywords_that_are_handed_on_are_those_of_the_call(options, call, others):
    taken = {name: str(one.annotation) for name, one in inspect.signature(call).parameters.items()}
    known = {name: hint.__forward_arg__ for name, hint in options.__annotations__.items()}
    assert known == {name: hint for name, hint in taken.items() if name not in others}


@pytest.mark.parametrize("name", ["AsyncClient", "Client", "Session"])
def test_every_keyword_of_a_call_has_a_name(name):
    """Parameters of a model are open; only an agent takes what nobody knows."""
    cls = getattr(antiphon, name)
    calls = [one for one in vars(cls).values() if inspect.isfunction(one)]
    assert len(calls) > 8
    hidden = [
        f"{call.__qualname__}(**{one.name})"
        for call in calls
        for one in inspect.signature(call).parameters.values()
        if one.kind is one.VAR_KEYWORD
    ]
    assert hidden == []


def test_both_forms_of_a_method_show_the_same_keywords():
    twins = [name for name in vars(antiphon.Session) if f"{name}_async" in vars(antiphon.Session)]
    calls = [name for name in twins if inspect.isfunction(vars(antiphon.Session)[name])]
    assert len(calls) > 15
    for name in calls:
        one, other = (inspect.signature(getattr(antiphon.Session, form)) for form in (name, f"{name}_async"))
        assert one.parameters == other.parameters
        assert inspect.iscoroutinefunction(getattr(antiphon.Session, f"{name}_async")) is not name.startswith(
            "stream"
        )
        assert not inspect.iscoroutinefunction(getattr(antiphon.Session, name))


@pytest.mark.parametrize("twin", [AsyncTurn, SubmittedTurn], ids=lambda twin: twin.__name__)
def test_a_turn_has_the_methods_of_its_asynchronous_twins_with_the_same_parameters(twin):
    methods = [name for name, one in vars(TurnHandle).items() if inspect.isfunction(one) and name[0] != "_"]
    assert len(methods) >= 7
    for name in methods:
        one, other = (inspect.signature(getattr(cls, name)) for cls in (Turn, twin))
        assert one.parameters == other.parameters, name
        if name != "stream":
            assert one.return_annotation == other.return_annotation, name
