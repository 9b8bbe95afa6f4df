"""docs/frameworks.md runs as it stands, with the real SDKs, against the model server."""

import asyncio
import re
from pathlib import Path

import pytest

from antiphon import Agent

PAGE = (Path(__file__).parents[2] / "docs" / "frameworks.md").read_text()
REDIS = "redis://localhost:6379/0"


def blocks_of(section):
    """The Python code of a section of the page."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def run(workers_runtime, monkeypatch):
    """Runs code of the page on a server of the tests."""

    def run(code, names):
        exec(compile(code.replace(REDIS, workers_runtime.url), "frameworks.md", "exec"), names)

    return run


def test_the_session_of_the_agents_sdk(run, models, capsys):
    names = {}
    run(blocks_of("OpenAI Agents SDK")[0], names)
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert len(asyncio.run(names["session"].get_items())) == 4


def test_the_runner_of_the_agents_sdk(run, models):
    names = {}
    for block in blocks_of("OpenAI Agents SDK")[1:]:
        run(block, names)
    runner = names["app"]._providers["agents-sdk"]
    session = Agent(provider=runner, model="gpt-4o").session()
    assert (
        session.run('call:order_status {"order": "7"}').tool_calls[0].result
        == "Order 7 was shipped yesterday."
    )
    assert session.variables == {"order": "7"}


def test_a_function_of_your_own(run, capsys):
    run("import antiphon\n" + blocks_of("Turn functions")[0], {})
    assert capsys.readouterr().out == "HELLO\n"


def test_the_history_of_langchain(run, capsys):
    run(blocks_of("LangChain")[0], {})
    assert capsys.readouterr().out == "['My name is Alice', 'Hello, Alice']\n"


def test_the_checkpointer_of_langgraph(run, capsys):
    run(blocks_of("LangGraph")[0], {"__name__": "page"})
    assert capsys.readouterr().out == "Message 3.\n"


def test_the_runner_of_langgraph(run, models):
    names = {"__name__": "page"}
    for block in blocks_of("LangGraph"):
        run(block, names)
    session = Agent(provider=names["runner"], model="gpt-4o").session()
    assert session.run('call:order_place {"order": "7"}').tool_calls[0].result == "Order 7 is in Hamburg."


def test_the_chat_store_of_llama_index(run, capsys):
    run(blocks_of("LlamaIndex")[0], {})
    assert capsys.readouterr().out == "['My name is Alice', 'Hello, Alice']\n"


def test_the_runner_of_pydantic_ai(run, models):
    names = {}
    run(blocks_of("pydantic-ai")[0], names)
    session = Agent(provider=names["app"]._providers["pydantic-ai"], model="gpt-4o").session()
    assert (
        session.run('call:parcel_status {"order": "7"}').tool_calls[0].result
        == "Order 7 was shipped yesterday."
    )


def test_the_store_of_pydantic_ai(run, models):
    names = {}
    for block in blocks_of("pydantic-ai"):
        run(block, names)

    async def ask_twice():
        await names["converse"]("c", "Hello")
        await names["converse"]("c", "And now?")
        return len((await names["conversations"].load("c", scope="user-123")).messages)

    assert asyncio.run(ask_twice()) == 4
