"""What a recording has of turns with hand-offs, sub-agents, steps, sleeps, events, files and servers, and what not."""

from __future__ import annotations

import asyncio
import json
import runpy
import sys

import msgspec
import pytest
from support.eventually import wait_until
from support.here import running_worker
from support.revisions import client_of

from antiphon import Agent, tool
from antiphon.cli.main import main
from antiphon.errors import UsageError
from antiphon.handoffs import Handoff
from antiphon.input.secrets import REMOVED
from antiphon.mcp import MCP
from antiphon.model import Decision, Message, ToolCall, ToolResult
from antiphon.model.recording import Recording
from antiphon.replaying import Replay, ReplayDiffers
from antiphon.testing import replay, script, tool_call
from antiphon.tools import Context
from antiphon_worker.app import App
from antiphon_worker.loop.variants import run_variant

RAN: list[str] = []


@tool
def find(name: str) -> str:
    """Find an invoice."""
    RAN.append(name)
    return f"invoice 7 of {name}"


def billing(*said, **options) -> Agent:
    return Agent(script(*said, repeat=True), "any", name="billing", tools=[find], **options)


def support(target, *said, **options) -> Agent:
    lines = script(*(said or [tool_call("transfer_to_billing", reason="an invoice")]), repeat=True)
    return Agent(lines, "any", name="support", handoffs=[target], **options)


def recorded(session, text: str = "Why?") -> Recording:
    """A turn of a session, as a file has it."""
    turn = session.submit(text)
    turn.result(30)
    RAN.clear()
    return msgspec.json.decode(msgspec.json.encode(turn.recording()), type=Recording)


def test_a_turn_that_was_handed_over_is_replayed_with_the_tools_of_both_agents():
    one = support(billing(tool_call("find", name="Ada"), "It is paid."))
    found = recorded(one.session())
    assert Replay(found).check(one).text == "It is paid."
    assert RAN == []
    with pytest.raises(ReplayDiffers, match=r"the tool find has the result .*no tool named"):
        Replay(found).check(support(Agent("scripted", "any", name="billing")))
    with pytest.raises(ReplayDiffers, match="the tool transfer_to_billing has the result"):
        Replay(found).check(support(Agent("scripted", "any", name="other")))


def test_the_next_turn_of_a_session_is_replayed_with_the_agent_that_stays():
    one = support(Handoff(billing("It is paid."), after="stay"))
    session = one.session()
    recorded(session)
    found = recorded(session, "And now?")
    assert [message.role for message in found.messages] == ["assistant"]
    assert Replay(found).check(one).messages[-1].agent == "billing"


def test_an_agent_that_is_only_named_is_passed_to_the_check():
    target = billing("It is paid.")
    target.session().run("known in this process")
    found = recorded(support("billing").session())
    with pytest.raises(UsageError, match=r"check\(support, billing\)"):
        Replay(found).check(support("billing"))
    assert Replay(found).check(support("billing"), target).text == "It is paid."
    assert len(target.provider.requests) == 2  # those of the turns themselves


async def test_a_variant_of_a_turn_that_was_handed_over_runs_no_tool_of_the_other_agent():
    one = support(billing(tool_call("find", name="Ada"), "It is paid."))
    turn = await one.session_async().submit("Why?")
    await turn.result(30)
    found = await turn.recording()
    RAN.clear()
    assert (await run_variant(found, one)).text == "It is paid."
    assert RAN == []
    forked = await run_variant(found, one, step=3)
    assert [part.text for part in forked.messages[-1].parts] == ["It is paid."]


def test_a_turn_with_a_sub_agent_is_replayed_without_it():
    research = Agent(script("Kyoto is old.", repeat=True), "any", name="research")
    lines = script(tool_call("research", input="Kyoto"), "A guide.", repeat=True)
    writer = Agent(lines, "any", name="writer", tools=[research.as_tool()])
    found = recorded(writer.session())
    made = len(research.provider.requests)
    assert Replay(found).check(writer).tool_calls[0].result == "Kyoto is old."
    assert len(research.provider.requests) == made


def test_a_turn_that_slept_with_steps_and_events_is_replayed_at_once():
    @tool
    async def pay(context: Context) -> str:
        """Pay."""
        RAN.append("pay")
        receipt = await context.step("charge", lambda: "receipt 7")
        await context.sleep(1)
        paid = await context.wait_for_event("paid", timeout=60)
        return f"{receipt}, {paid['by']}"

    one = Agent(script(tool_call("pay"), "Paid.", repeat=True), "any", name="shop", tools=[pay])
    session = one.session()
    turn = session.submit("Pay")
    wait_until(lambda: any(wait.event == "paid" for wait in turn.info().waits), 30)
    session.send_event("paid", {"by": "ada"})
    assert turn.result(30).text == "Paid."
    RAN.clear()
    assert Replay(turn.recording()).check(one).tool_calls[0].result == "receipt 7, ada"
    assert RAN == []


def test_the_stored_files_of_a_turn_are_recorded_and_sent_again():
    picture = b"\x89PNG" + bytes(40_000)
    one = Agent(script("A picture.", repeat=True), "any")
    session = one.session()
    turn = session.submit([session.add_file(picture, name="a.png"), "What is it?"])
    turn.result(30)
    found = msgspec.json.decode(msgspec.json.encode(turn.recording()), type=Recording)
    assert [(file.name, file.data) for file in found.files] == [("a.png", picture)]
    again = Agent(lines := script("unused"), "any")
    assert Replay(found).check(again).text == "A picture."
    assert lines.requests == []


def test_calls_of_a_server_are_replayed_without_it():
    called = ToolCall("c1", "github__close_issue", {"number": 7})
    decided = [Decision("c1", "approve", by="ada")]
    found = Recording(
        "t1", "s", "finished", [Message.user("Close it.")],
        [
            Message("assistant", [called]),
            Message("tool", [ToolResult("c1", "closed", "github__close_issue")], decisions=decided),
            Message.assistant("It is closed."),
        ],
    )  # fmt: skip
    server = MCP.http("http://127.0.0.1:1/mcp", name="github", approval=True)
    one = Agent("openai", "any", name="support", mcp=[server])
    assert Replay(found).check(one).text == "It is closed."
    open_to_all = MCP.http("http://127.0.0.1:1/mcp", name="github")
    with pytest.raises(ReplayDiffers, match="github__close_issue ran without the decision"):
        Replay(found).check(Agent("openai", "any", name="support", mcp=[open_to_all]))


KEYS = {
    "OPENAI_API_KEY": "sk-proj-abcdefghijklmnop0123",
    "SHOP_TOKEN": "0123-of-no-known-form",
    "ANTIPHON_ENCRYPTION_KEYS": "k1:MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
}
TOLD = [
    "sk-" + "ant-api03-abcdefghijklmnop", "ghp_abcdefghijklmnopqrstuvwxyz", "xoxb-1234567890-abc",
    "AKIAABCDEFGHIJKLMNOP",
    "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl", "antk_abcdefghijklmnopqrstuvwxyz",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIabc\n-----END RSA PRIVATE KEY-----",
]  # fmt: skip
NAMED = {"password": "pass-of-ada", "apiKey": "key-of-ada", "client_secret": "secret-of-ada"}


def test_a_recording_has_no_keys_wherever_they_were(monkeypatch):
    for name, value in KEYS.items():
        if name != "ANTIPHON_ENCRYPTION_KEYS":
            monkeypatch.setenv(name, value)

    @tool
    def settings(password: str, headers: dict[str, str]) -> str:
        """Return the settings."""
        return json.dumps({**KEYS, **NAMED, "url": "redis://default:pass-of-redis@host:6379"})

    @tool
    def fails(text: str) -> str:
        """Fail."""
        raise ConnectionError(f"Authorization: Bearer abcdef0123456789 {text}")

    called = tool_call(
        "settings", password="pass-of-call", headers={"Authorization": "Bearer header-0123456789"}
    )
    one = Agent(
        script(called, tool_call("fails", text=" ".join(TOLD)), f"It is {KEYS['SHOP_TOKEN']}.", repeat=True),
        "any", name="shop", tools=[settings, fails],
    )  # fmt: skip
    session = one.session(
        variables={"token": "token-of-session", "nested": [{"secret": "deep-in-there"}]},
        system=f"Use {TOLD[0]}.", metadata={"note": "of-the-metadata"},
    )  # fmt: skip
    session.run(" ".join(TOLD))
    monkeypatch.setenv("ANTIPHON_ENCRYPTION_KEYS", KEYS["ANTIPHON_ENCRYPTION_KEYS"])
    turn = session.submit(f"My key is {TOLD[1]}.", metadata={"note": "of-the-metadata"})
    turn.result(30)
    found = turn.recording()
    text = msgspec.json.encode(found).decode()
    secrets = [
        *KEYS.values(), KEYS["ANTIPHON_ENCRYPTION_KEYS"][3:],
        *(one.split("\n")[1] if "\n" in one else one for one in TOLD),
        *NAMED.values(), "pass-of-redis", "abcdef0123456789 ", "pass-of-call", "header-0123456789", "token-of-session",
        "deep-in-there", "of-the-metadata",
    ]  # fmt: skip
    assert [one for one in secrets if one in text] == []
    assert f"It is {REMOVED}." in text
    assert Replay(found).check(one) is not None


@pytest.mark.parametrize("value", ["assistant", "finished-turn", "1234"])
def test_a_variable_that_is_a_word_removes_nothing(monkeypatch, value):
    monkeypatch.setenv("SHOP_KEY", value)
    one = Agent(script("The assistant has finished-turn 1234."), "any")
    assert recorded(one.session()).messages[-1].text == "The assistant has finished-turn 1234."


def test_a_recording_with_files_is_encrypted_as_a_whole(tmp_path, monkeypatch):
    from antiphon.encryption import KEYS_VARIABLE, new_key
    from antiphon.replaying import encoded

    one = Agent(script("A picture.", repeat=True), "any")
    session = one.session()
    turn = session.submit([session.add_file(b"MARK" + bytes(40_000), name="mark.png"), "What is it?"])
    turn.result(30)
    monkeypatch.setenv(KEYS_VARIABLE, new_key("k1"))
    file = tmp_path / "turn.json"
    file.write_bytes(encoded(turn.recording()))
    assert b"mark.png" not in file.read_bytes()
    assert b"What is it" not in file.read_bytes()
    assert replay(file).check(one).text == "A picture."


SHOP = """
from antiphon import Agent

support = Agent("openai", "any", name="support", handoffs=["billing"])
billing = Agent("openai", "any", name="billing")
"""


@pytest.mark.one_server
async def test_the_command_writes_a_test_with_the_agents_that_hand_offs_name(
    redis_url, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "handing.py").write_text(SHOP)
    app = App(agents=[support("billing"), billing("It is paid.")])
    async with client_of(redis_url) as client, running_worker(redis_url, app):
        turn = await client.submit("s", "Why?", agent="support")
        await turn.result(30)
    file, agents = tmp_path / "test_paid.py", ["--agent", "handing:support", "--agent", "handing:billing"]
    argv = ["record", turn.id, "--test", str(file), *agents, "--redis-url", redis_url]
    assert await asyncio.to_thread(main, argv) == 0
    written = runpy.run_path(str(file))
    await asyncio.to_thread(written[f"test_turn_{turn.id[:8]}"])
    wrong = await asyncio.to_thread(
        main, [*argv[:4], "--agent", "handing", *agents, "--redis-url", redis_url]
    )
    assert (wrong, "module:name" in capsys.readouterr().err) == (2, True)
