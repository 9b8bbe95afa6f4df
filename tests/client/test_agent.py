"""What an agent cannot be made of is said when it is made, in one sentence."""

import pytest

from antiphon import Agent, tool
from antiphon.errors import AgentError, UsageError
from antiphon.testing import script
from antiphon_worker.providers.scripted import ScriptedProvider


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def agent(**options):
    return Agent(**{"provider": "scripted", "model": "any", **options})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("provider", 5), ("provider", ""), ("provider", None), ("model", ""), ("model", 5), ("name", 5), ("system", 5),
        ("tools", print), ("tools", add), ("tools", None), ("max_steps", "5"), ("max_steps", 0), ("max_steps", 1.5),
        ("max_steps", True),
    ],
)  # fmt: skip
def test_a_wrong_argument_of_an_agent_is_named(name, value):
    with pytest.raises(UsageError, match=f"^{name}= "):
        agent(**{name: value})


def test_a_tool_that_is_none_is_refused():
    with pytest.raises(AgentError):
        agent(tools=[5])


def test_providers_by_name_scripts_and_objects_make_agents():
    for provider in ("openai", script("a"), ScriptedProvider()):
        assert agent(provider=provider, max_steps=3, tools=(add,), system="").max_steps == 3


@pytest.mark.parametrize("call", ["run", "stream", "submit"])
def test_a_turn_is_worked_on_by_an_agent_or_a_name(call):
    with pytest.raises(UsageError, match="agent= must be an Agent or an agent's name, not int"):
        getattr(agent().session(), call)("x", agent=5)
