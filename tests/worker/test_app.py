"""What an App is made of is checked when it is made."""

import pytest

from antiphon import Agent, tool
from antiphon.errors import AgentError, SettingsError, UnknownProvider
from antiphon_worker.app import App, load_app
from antiphon_worker.providers.scripted import ScriptedProvider


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def plain(a: int) -> int:
    """Give it back."""
    return a


def other():
    @tool(name="add")
    def minus(a: int, b: int) -> int:
        """Subtract."""
        return a - b

    return minus


def agent(name="support", **options):
    return Agent(**{"provider": "scripted", "model": "any", "name": name, **options})


def test_two_agents_of_one_name_are_refused():
    with pytest.raises(SettingsError, match=r"Two agents .* 'support'"):
        App(agents=[agent(), agent(system="another")])


def test_two_tools_of_one_name_are_refused_wherever_they_come_from():
    for make in (
        lambda: App(tools=[add, other()]),
        lambda: App(agents=[agent("a", tools=[add]), agent("b", tools=[other()])]),
        lambda: App(agents=[agent(tools=[add])], tools=[other()]),
    ):
        with pytest.raises(SettingsError, match=r"Two tools .* 'add'"):
            make()


def test_agents_may_share_a_tool():
    app = App(agents=[agent("a", tools=[add, plain]), agent("b", tools=[add, plain])], tools=[add, plain])
    assert sorted(app.toolbox.tools) == ["add", "plain"]


def test_tools_may_be_plain_functions_as_in_agents():
    assert App(tools=[plain]).tools(["plain"])[0](3) == 3


@pytest.mark.parametrize(
    "given",
    [
        {"providers": {"x": "y"}}, {"providers": ["x"]}, {"agents": [5]}, {"agents": agent()}, {"tools": [5]},
        {"tools": add}, {"agents": "support"},
    ],
)  # fmt: skip
def test_what_an_app_cannot_be_made_of_is_refused(given):
    with pytest.raises(AgentError):
        App(**given)


def test_an_agent_whose_provider_nobody_knows_is_refused():
    with pytest.raises(UnknownProvider, match=r"'grok'.*anthropic, mine, openai"):
        App(agents=[agent(provider="grok")], providers={"mine": ScriptedProvider()})
    assert (
        App(agents=[agent(provider="mine")], providers={"mine": ScriptedProvider()}).agent(None).name
        == "support"
    )


def test_a_worker_does_not_start_with_such_an_app(tmp_path, monkeypatch):
    (tmp_path / "unknown_provider_app.py").write_text(
        "from antiphon import Agent\nfrom antiphon_worker import App\n"
        "app = App(agents=[Agent(provider='grok', model='m', name='a')])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnknownProvider):
        load_app("unknown_provider_app:app")
