"""A recorded turn is replayed with an agent, without a network, and fails at the first difference."""

import asyncio
import copy
import os
import subprocess
import sys

import msgspec
import pytest
from support.eventually import wait_until_async
from support.gateway import keys, programs, stand
from support.here import running_worker
from support.revisions import client_of

from antiphon import Agent, tool
from antiphon.cli.main import main
from antiphon.encryption import KEYS_VARIABLE, new_key
from antiphon.errors import ProviderRejected, UsageError
from antiphon.model.recording import Recording
from antiphon.replaying import Replay, ReplayDiffers, encoded
from antiphon.testing import replay, script, tool_call
from antiphon_gateway import Access
from antiphon_worker.app import App

pytestmark = pytest.mark.one_server

MODULE = """
from antiphon import Agent, tool

RAN = []

@tool
def find_order(name: str) -> str:
    "Find an order."
    RAN.append(name)
    raise ConnectionError("the orders are in production")

@tool(approval=True)
def refund(order: str, cents: int) -> dict:
    "Refund an order."
    RAN.append(order)
    return {"refunded": cents}

support = Agent("openai", "gpt-5.4-mini", name="support", system="Be kind.", tools=[find_order, refund])
"""


@tool
def find_order(name: str) -> str:
    """Find an order."""
    return f"order 7 of {name}"


@tool(approval=True)
def refund(order: str, cents: int) -> dict:
    """Refund an order."""
    return {"refunded": cents}


TOOLS = [find_order, refund]
SAID = [
    ["Let me see.", tool_call("find_order", name="Ada")], tool_call("refund", order="7", cents=500), "It is refunded.",
]  # fmt: skip


def agent(*, tools=TOOLS, said=SAID, **options) -> Agent:
    return Agent(script(*said, repeat=True), "any", name="support", tools=tools, **options)


async def ended(client, url, one: Agent, *, decide="approve", text="Refund my order."):
    """A turn of production: with tools, an approval, and a turn before it."""
    async with running_worker(url, App(agents=[one])):
        first = await client.submit("s", "Hello", agent="support")
        await _decided(first, decide)
        turn = await client.submit("s", text, agent="support")
        await _decided(turn, decide)
    return turn


async def _decided(turn, decide: str) -> None:
    async def stops() -> bool:
        return (await turn.info()).status in ("suspended", "finished", "failed")

    await wait_until_async(stops, 30)
    for call in (await turn.info()).calls:
        await (turn.approve if decide == "approve" else turn.reject)(call.call_id, by="ada")
    await turn.ended()


@pytest.fixture
def recording(redis_url) -> Recording:
    async def made() -> Recording:
        async with client_of(redis_url) as client:
            return await (await ended(client, redis_url, agent())).recording()

    return asyncio.run(made())


async def test_a_recording_has_what_a_replay_needs_and_no_more(recording):
    assert [one.text for one in recording.input] == ["Refund my order."]
    assert [one.role for one in recording.messages] == ["assistant", "tool", "assistant", "tool", "assistant"]
    assert [one.text for one in recording.history][:2] == ["Hello", "Let me see."]
    assert (recording.agent, recording.status, recording.revision) == (
        "support",
        "finished",
        agent().revision,
    )
    (decision,) = [one for message in recording.messages for one in message.decisions]
    assert (decision.kind, decision.by) == ("approve", "ada")


async def test_the_same_agent_passes_and_runs_no_tool(recording):
    ran = []

    @tool(name="find_order")
    def searching(name: str) -> str:
        ran.append(name)
        return "another"

    response = await Replay(recording).check_async(agent(tools=[searching, refund], said=["unused"]))
    assert response.text == "It is refunded."
    assert ran == []


@tool(name="find_order")
def by_number(number: int) -> str:
    """Find an order by its number."""
    return ""


@tool(name="refund")
def unasked(order: str, cents: int) -> dict:
    """Refund."""
    return {}


@tool(name="find_order", approval=True)
def asking(name: str) -> str:
    """Find an order."""
    return ""


@pytest.mark.parametrize(
    ("tools", "how"),
    [
        ([by_number, refund], "model call 2: the tool find_order has the result .*number.* is missing"),
        ([refund], "model call 2: the tool find_order has the result .*no tool named"),
        ([find_order, unasked], "the tool refund ran without the decision"),
        ([asking, refund], "the tool find_order waits for a decision"),
    ],
)
async def test_a_change_of_a_tool_is_named(recording, tools, how):
    with pytest.raises(ReplayDiffers, match=how):
        await Replay(recording).check_async(agent(tools=tools))


async def test_a_turn_with_fewer_or_more_model_calls_differs(recording):
    short = copy.deepcopy(recording)
    del short.messages[-1]
    with pytest.raises(ReplayDiffers, match="model call 3: the recording has 2"):
        await Replay(short).check_async(agent())
    with pytest.raises(ReplayDiffers, match="ends after 1 model calls; the recording has 3"):
        await Replay(recording).check_async(agent(max_steps=1))


async def test_a_rejected_call_is_rejected_again(redis_url):
    async with client_of(redis_url) as client:
        found = await (await ended(client, redis_url, agent(), decide="reject")).recording()
    assert (await Replay(found).check_async(agent())).text == "It is refunded."


async def test_a_failed_turn_is_replayed_to_its_failure(redis_url):
    failing = agent(said=[tool_call("find_order", name="Ada"), ProviderRejected("no")])
    async with client_of(redis_url) as client, running_worker(redis_url, App(agents=[failing])):
        turn = await client.submit("s", "Hello", agent="support")
        await turn.ended()
        found = await turn.recording()
    assert (found.status, found.code) == ("failed", "provider_rejected")
    assert await Replay(found).check_async(agent()) is None


async def test_only_an_ended_turn_is_recorded(redis_url):
    async with client_of(redis_url) as client:
        turn = await client.submit("s", "Hello", agent="support")
        with pytest.raises(UsageError, match="only ended turns"):
            await turn.recording()
        await turn.cancel()


def test_a_turn_without_redis_is_recorded_and_replayed():
    one = Agent(script("Hello."), "any", system="Be kind.")
    turn = one.session("s", variables={"tier": "gold"}).submit("Hi")
    turn.result(30)
    found = turn.recording()
    assert found.variables == {"tier": "gold"}
    assert Replay(found).check(one).text == "Hello."


def test_an_encrypted_recording_needs_its_key(tmp_path, monkeypatch):
    from antiphon.errors import AgentError

    monkeypatch.setenv(KEYS_VARIABLE, new_key("k1"))
    found = Recording("t", "s", "finished", [], [])
    file = tmp_path / "turn.json"
    file.write_bytes(encoded(found))
    assert b"finished" not in file.read_bytes()
    assert replay(file).recording == found
    monkeypatch.setenv(KEYS_VARIABLE, new_key("k1"))
    with pytest.raises(AgentError):
        replay(file)


@pytest.mark.parametrize("data", [b"", b"[]", b"no JSON", b'{"turn_id": 5}'])
def test_another_file_is_refused(tmp_path, data):
    (tmp_path / "turn.json").write_bytes(data)
    with pytest.raises(UsageError, match="not a recording"):
        replay(tmp_path / "turn.json")
    with pytest.raises(UsageError, match="not a recording"):
        replay(tmp_path / "missing.json")


DEEP = b'{"a":' * 5000 + b"1" + b"}" * 5000


@pytest.mark.parametrize(
    ("more", "wrong"),
    [
        (b'"version":2', "of version 2, and this release reads version 1: install the release that wrote it"),
        (b'"request":{"params":[1]}', "Expected `object`, got `array`"),
        (b'"request":{"output":{"name":"x"}}', "missing required field `schema`"),
        (b'"variables":' + DEEP, "recursion"),
    ],
)
def test_a_recording_that_cannot_be_replayed_is_refused_when_it_is_read(tmp_path, more, wrong):
    data = msgspec.json.encode(Recording("t", "s", "finished", [], []))
    (tmp_path / "turn.json").write_bytes(data[:-1] + b"," + more + b"}")
    with pytest.raises(UsageError, match=wrong):
        replay(tmp_path / "turn.json")


def test_a_parameter_of_the_model_is_no_option_of_the_replay():
    """As an option, the recorded parameter would delay the replay by an hour."""
    one = Agent(script("Hello.", repeat=True), "any")
    turn = one.session().submit("Hi")
    turn.result(30)
    found = turn.recording()
    found.request["params"] = {"delay": 3600, "temperature": 0.5}
    assert Replay(found).check(one).text == "Hello."


@pytest.mark.parametrize("encrypted", [False, True])
async def test_one_command_turns_a_turn_of_production_into_a_passing_offline_test(
    redis_url, tmp_path, monkeypatch, encrypted
):
    if encrypted:
        monkeypatch.setenv(KEYS_VARIABLE, new_key("k1"))
    (tmp_path / "production.py").write_text(MODULE)
    async with client_of(redis_url) as client:
        turn = await ended(client, redis_url, agent())
    test = tmp_path / "test_refund.py"
    command = [sys.executable, "-m", "antiphon.cli", "record", turn.id, "--test", str(test)]
    argv = [*command, "--agent", "production:support", "--redis-url", redis_url]
    done = await asyncio.to_thread(
        subprocess.run, argv, check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == str(test)
    assert (b"Refund my order." in test.with_suffix(".json").read_bytes()) is not encrypted

    def run(**keys: str) -> subprocess.CompletedProcess:
        env = {
            **os.environ,
            "PYTHONPATH": str(tmp_path),
            "OPENAI_API_KEY": "",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # those of what is installed here need more than they ask for
            **keys,
        }
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            str(tmp_path),
            str(test),
        ]
        return subprocess.run(
            command, check=False, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
        )

    assert "1 passed" in (passed := run()).stdout, passed.stdout
    if encrypted:
        assert "1 failed" in run(**{KEYS_VARIABLE: new_key("k2")}).stdout
    (tmp_path / "production.py").write_text(MODULE.replace("approval=True", "approval=False"))
    assert "the tool refund ran without the decision" in run().stdout


async def test_a_recording_is_read_over_http_and_printed(redis_url, tmp_path, capsys):
    async with stand(redis_url, tmp_path) as (_, api, _):
        turn = await api.submit("s", "Hello")
        await api.result(turn)
        found = msgspec.convert(await api.get(f"/turns/{turn}/recording"), Recording)
        assert [one.text for one in found.input] == ["Hello"]
        assert await asyncio.to_thread(main, ["record", turn, "--redis-url", redis_url]) == 0
        assert msgspec.json.decode(capsys.readouterr().out, type=Recording) == found


async def test_only_an_admin_reads_over_http_what_a_recording_shows_of_its_session(redis_url, tmp_path):
    known, secrets = keys(
        user={"tenant": "a", "rights": ["read", "write"]}, admin={"tenant": "a", "rights": ["admin"]}
    )
    access = Access(known, secret="a secret that every replica has, 32 bytes")
    async with (
        client_of(redis_url) as client, stand(redis_url, tmp_path, access=access) as (_, api, _),
        programs(api, secrets) as all_,
    ):  # fmt: skip
        session = client.session("s", tenant="a", agent="parrot", variables={"secret": 1})
        turn = await session.submit("Hello")
        await turn.cancel()
        await all_["user"].call("GET", f"/turns/{turn.id}/recording", 403)
        found = await all_["admin"].get(f"/turns/{turn.id}/recording")
        assert found["variables"] == {"secret": 1}
