"""The revision of an agent changes with everything that changes how it behaves, and with nothing else."""

import subprocess
import sys

import pytest

from antiphon import Agent, tool
from antiphon.errors import UsageError
from antiphon.hooks import ToolStart
from antiphon.memory import Memory, WordEmbeddings
from antiphon.model import Retry, Timeouts
from antiphon.model.usage import Limits
from antiphon.window import Window
from antiphon_worker.app import App

MADE = """
from typing import Annotated, Literal
from antiphon import Agent, tool
from antiphon.model.usage import Limits
from antiphon.window import Summary

def large(arguments): return arguments["cents"] > 100

@tool(approval=large, approval_timeout=60)
def refund(order: str, cents: int = 5, to: Literal["card", "cash"] | None = None) -> str:
    '''Refund an order.

    Args:
        order: The number of the order.
    '''
    return "done"

agent = Agent("openai", "gpt-4o-mini", name="support", system="Be kind.", tools=[refund], temperature=0.2,
              limits=Limits(tokens=10_000), window=Summary(tokens=500), fallback=["anthropic/claude-haiku"], label="v7")
"""
FROZEN = "808ab7f6b911"


def made(**change):
    base = {"provider": "openai", "model": "m", "name": "support", "system": "Be kind.", "temperature": 0.2}
    return Agent(**(base | change))


def test_a_revision_is_the_same_in_every_process_and_every_version_of_python():
    """The value is written down here: each version of Python that runs this test compares with it."""
    found = {
        subprocess.run(
            [sys.executable, "-c", f"{MADE}\nprint(agent.revision)"],
            env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True,
        ).stdout.strip()
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert found == {FROZEN}


@tool
def search(query: str) -> str:
    """Search."""
    return query


def searching(**options):
    return tool(name="search", **options)(search.function)


def by_number(query: int = 1) -> str:
    """Search."""
    return str(query)


def either(arguments):
    return True


def audit(call: ToolStart): ...


CHANGES = {
    "name": {"name": "sales"},
    "provider": {"provider": "openai-chat"},
    "model": {"model": "other"},
    "system": {"system": "Be brief."},
    "parameters": {"temperature": 0.3},
    "tools": {"tools": [search]},
    "description of a tool": {"tools": [searching(description="Look it up.")]},
    "schema of a tool": {"tools": [tool(name="search")(by_number)]},
    "rule of a tool": {"tools": [searching(approval=True)]},
    "function of a rule": {"tools": [searching(approval=either)]},
    "time limit of a rule": {"tools": [searching(approval=True, approval_timeout=5)]},
    "time limit of a tool": {"tools": [searching(timeout=5)]},
    "at_most_once": {"tools": [searching(at_most_once=True)]},
    "approval": {"tools": [search], "approval": True},
    "steps": {"max_steps": 3},
    "limits": {"limits": Limits(tokens=5)},
    "window": {"window": Window(turns=3)},
    "fallback": {"fallback": ["anthropic/m"]},
    "caller_tools": {"caller_tools": [{"name": "pick", "description": "Pick.", "parameters": {"type": "object"}}]},
    "memory": {"memory": Memory("recollections", WordEmbeddings())},
    "recall": {"memory": Memory("recollections", WordEmbeddings(), recall="start")},
    "label": {"label": "v2"},
    "hooks": {"hooks": [audit]},
}  # fmt: skip


def test_every_change_of_behaviour_is_another_revision():
    found = {"": made().revision} | {name: made(**change).revision for name, change in CHANGES.items()}
    assert len(set(found.values())) == len(found), found


@pytest.mark.parametrize("change", [{"queue": "slow"}, {"retry": Retry(60)}, {"timeouts": Timeouts(step=5)}])
def test_how_turns_reach_the_model_is_no_part_of_a_revision(change):
    assert made(**change).revision == made().revision


def test_an_app_adds_what_it_has_for_all_its_agents():
    agent = made(provider="scripted")
    assert App(agents=[agent]).revisions["support"].id == agent.revision
    memory = Memory("recollections", WordEmbeddings())
    apps = [
        App(agents=[agent]),
        App(agents=[agent], limits=Limits(tokens=5)),
        App(agents=[agent], memory=memory),
        App(agents=[agent], hooks=[audit]),
    ]
    assert len({app.revisions["support"].id for app in apps}) == 4


def test_the_label_is_kept_beside_the_revision():
    found = App(agents=[made(provider="scripted", label="v7")]).revisions["support"]
    assert found.label == "v7"


@pytest.mark.parametrize("label", ["", "a b", 7, "x" * 65])
def test_a_label_must_be_a_short_word(label):
    with pytest.raises(UsageError, match="label="):
        made(label=label)


def test_parameters_may_be_anything_that_is_json():
    assert made(extra={"b": [1, None], "a": "é"}).revision == made(extra={"a": "é", "b": [1, None]}).revision
