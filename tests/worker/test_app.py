"""What an App is made of is checked when it is made."""

import pytest
from support.here import running_worker

from antiphon import Agent, AsyncClient, tool
from antiphon.errors import AgentError, SettingsError, UnknownProvider
from antiphon.input.request import AgentSpec
from antiphon.testing import script
from antiphon_worker.app import App, load_app
from antiphon_worker.providers.openai_chat import OpenAIChat
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


async def test_agents_may_bring_scripts_as_their_providers(redis_url):
    agents = [agent("one", provider=script("I am one.")), agent("two", provider=script("I am two."))]
    agents.append(agent("three", provider="mine"))
    app = App(agents=agents, providers={"mine": script("I am three.")})
    async with running_worker(redis_url, app), AsyncClient(redis_url) as client:
        said = [(await client.session().run("Who?", agent=one.name)).text for one in agents]
    assert said == ["I am one.", "I am two.", "I am three."]


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


class OfAnotherKind:
    """An agent that names tools without bringing them."""

    tools = ()
    limits = None

    def __init__(self, spec):
        self.spec = lambda: spec


@pytest.fixture
def _no_keys(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(tmp_path))
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("_no_keys")
async def test_an_app_says_what_its_agents_lack(monkeypatch):
    app = App(
        agents=[
            agent("ready", tools=[add]),
            agent("gpt", provider="openai"),
            agent("chat", provider="openai-chat"),
            agent("claude", provider="anthropic"),
            agent("own", provider="ours"),
            agent("local", provider="ours-without"),
            OfAnotherKind(AgentSpec("scripted", "any", name="clerk", tools=["add", "refund"])),
        ],
        providers={
            "ours": OpenAIChat(api_key="k"),
            "ours-without": OpenAIChat(base_url="http://127.0.0.1:1/v1"),
        },
    )
    lacking = await app.lacks()
    assert set(lacking) == {"gpt", "chat", "claude", "clerk"}
    assert "set OPENAI_API_KEY" in lacking["gpt"][0]
    assert lacking["chat"] == lacking["gpt"]
    assert "set ANTHROPIC_API_KEY" in lacking["claude"][0]
    assert lacking["clerk"] == ["The App has no tool 'refund': add it to App(tools=[…])."]
    await app.aclose()
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "k")
    await app.preload()
    assert set(app.lacking) == {"clerk"}
    await app.aclose()
