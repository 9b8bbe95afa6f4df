"""What may go to a model as a parameter: no keys, and no keyword that is meant for a call of ours."""

import pytest

from antiphon import Agent, Client
from antiphon.errors import UsageError
from antiphon.input.messages import to_input
from antiphon.input.request import AgentSpec, TurnRequest, encode_request

SECRETS = [
    {"api_key": "sk-SECRET"},
    {"base_url": "http://h/v1"},
    {"extra_headers": {"Authorization": "sk-SECRET"}},
    {"extra_headers": {"x-goog-api-key": "sk-SECRET"}},
    {"extra_query": {"key": "sk-SECRET"}},
]

UNSENT = [
    {"extra_headers": {"Content-Length": "0"}},
    {"extra_headers": {"Transfer-Encoding": "chunked"}},
    {"extra_headers": {"Host": "other.example"}},
    {"extra_headers": {"x-trace": "a\r\nx-b: c"}},
    {"extra_headers": ["x-trace"]},
    {"extra_query": {"a": [1]}},
    {"extra_body": {"stream": False}},
    {"extra_body": {"model": "other"}},
]


def agent(**options):
    return Agent(provider="scripted", model="any", **options)


@pytest.mark.parametrize("params", SECRETS)
def test_a_key_of_a_service_is_no_parameter_of_an_agent_or_a_turn(params):
    with pytest.raises(UsageError, match=r"environment.*App\(providers=") as caught:
        agent(**params)
    assert "sk-SECRET" not in str(caught.value)
    for call in (agent().session().run, agent().session().stream, agent().session().submit):
        with pytest.raises(UsageError, match="environment"):
            call("hi", **params)


@pytest.mark.parametrize("params", SECRETS)
def test_a_key_of_a_service_does_not_travel_whoever_wrote_the_request(params):
    for request in (
        TurnRequest(to_input("hi"), params=params),
        TurnRequest(to_input("hi"), agent=AgentSpec("openai", "gpt-4o", params=params)),
    ):
        with pytest.raises(UsageError, match="environment"):
            encode_request(request)


@pytest.mark.parametrize("params", UNSENT, ids=str)
def test_a_turn_does_not_say_how_or_where_its_request_is_sent(params):
    (name,) = params
    for call in (
        agent,
        agent().session().run,
        lambda *_, **given: encode_request(TurnRequest([], params=given)),
    ):
        with pytest.raises(UsageError, match=name):
            call(*(["hi"] if call is not agent else []), **params)


def test_a_client_hands_no_key_to_redis():
    with Client("redis://localhost:1/0") as client, pytest.raises(UsageError, match="environment"):
        client.submit("s", "hi", agent="support", params={"api_key": "sk-SECRET"})


def test_a_keyword_of_a_turn_is_no_parameter_of_an_agent():
    with pytest.raises(UsageError, match=r"session\.run\(…, schema=…\)"):
        agent(schema=int)


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("key", "session.submit"), ("delay", "session.submit"), ("ttl", "agent.session"),
        ("tenant", "agent.session"), ("system", "Agent(system="), ("max_steps", "Agent(max_steps="),
        ("tiemout", "did you mean timeout="),
    ],
)  # fmt: skip
def test_a_keyword_of_another_call_says_which(name, where):
    with pytest.raises(UsageError) as caught:
        agent().session().run("hi", **{name: "x"})
    assert where in str(caught.value)


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("instructions", "Agent(system="), ("system_prompt", "Agent(system="), ("tool", "Agent(tools="),
        ("ttl", "agent.session"), ("key", "session.submit"), ("max_step", "did you mean max_steps="),
        ("mcp_servers", "Agent(mcp=[MCP.http(…)])"), ("output_type", "schema=…"),
        ("handoff", "did you mean handoffs="), ("guardrail", "did you mean guardrails="),
        ("temprature", "did you mean temperature="), ("max_token", "did you mean max_tokens="),
        ("api_base", "OPENAI_BASE_URL"),
    ],
)  # fmt: skip
def test_a_keyword_that_an_agent_does_not_have_says_where_it_belongs(name, where):
    with pytest.raises(UsageError) as caught:
        agent(**{name: "x"})
    assert where in str(caught.value)


def test_parameters_of_models_pass():
    params = {
        "temperature": 0.2, "max_tokens": 5, "stop": ["x"], "top_p": 1, "seed": 1, "tool_choice": "auto", "user": "u",
        "reasoning": "high", "models": ["a"], "prompt": {}, "extra_body": {"key": 1}, "extra_headers": {"X-Trace": "1"},
        "metadata": {"a": "b"},
    }  # fmt: skip
    assert agent(**params, timeout=5).params == {**params, "timeout": 5}
    params.pop("metadata")
    assert agent().session().run("hi", **params).text == "You said: hi"
