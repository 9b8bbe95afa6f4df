"""All turns of a session are recorded, replayed and run again."""

import asyncio
import json
import runpy
import shlex

import msgspec
import pytest
from support.gateway import keys, programs, stand
from support.here import running_worker
from support.revisions import client_of

from antiphon import Agent, Message, tool
from antiphon.cli.main import main
from antiphon.encryption import KEYS_VARIABLE, new_key
from antiphon.errors import UsageError
from antiphon.model.recording import Recording, SessionRecording
from antiphon.replaying import Replay, ReplayDiffers, encoded, read_recordings
from antiphon.testing import replay, script, tool_call
from antiphon_gateway import Access
from antiphon_worker.app import App

pytestmark = pytest.mark.one_server


@tool
def look(at: str) -> str:
    """Look."""
    return f"{at} is green"


def agent(**options) -> Agent:
    return Agent(script(*SAID, repeat=True), "any", name="support", tools=[look], **options)


SAID = ["Hello.", tool_call("look", at="the door"), "It is green.", "Bye."]
TEXTS = ["Hi", "Which colour has the door?", "Thanks"]


async def held(client, url, session="s", **options) -> None:
    async with running_worker(url, App(agents=[agent()])):
        for text in TEXTS:
            await (await client.submit(session, text, agent="support", **options)).result(30)


@pytest.fixture
def recording(redis_url) -> SessionRecording:
    async def made() -> SessionRecording:
        async with client_of(redis_url) as client:
            await held(client, redis_url)
            await (await client.submit("s", "Not yet", agent="support")).cancel()
            return await client.session("s").recording()

    return asyncio.run(made())


async def test_a_session_has_its_ended_turns_and_each_message_once(recording):
    assert [one.input[0].text for one in recording.turns][:3] == TEXTS
    assert [len(one.history) for one in recording.turns[:3]] == [0, 2, 4]
    whole = [[message.text for message in one.history] for one in recording.recordings()]
    assert whole[1] == ["Hi", "Hello."]
    assert whole[2][-1] == "It is green."


def test_histories_that_differ_in_their_middle_are_kept_as_they_were():
    histories = [[], [Message.user("a"), Message.user("b")], [Message.user("x")], [Message.user("x")]]
    turns = [Recording(str(n), "s", "finished", [], [], history=one) for n, one in enumerate(histories)]
    assert SessionRecording.of("s", turns).recordings() == turns
    assert SessionRecording.of("s", turns).shared == [0, 0, 0, 1]


async def test_the_same_agent_passes_and_a_change_in_any_turn_is_named(recording, tmp_path):
    file = tmp_path / "session.json"
    file.write_bytes(encoded(recording))
    found = replay(file)
    assert [one.turn_id for one in found.recordings] == [one.turn_id for one in recording.turns]
    await found.check_async(agent())
    without = agent()
    without.tools = []
    with pytest.raises(ReplayDiffers, match=f"{recording.turns[1].turn_id} differs.*the tool look"):
        await found.check_async(without)
    assert (await Replay(recording.recordings()[:1]).check_async(agent())).text == "Hello."


def test_a_session_recording_is_encrypted_and_a_file_that_is_none_is_refused(
    tmp_path, monkeypatch, recording
):
    monkeypatch.setenv(KEYS_VARIABLE, new_key("k1"))
    file = tmp_path / "session.json"
    file.write_bytes(encoded(recording))
    assert b"colour" not in file.read_bytes()
    assert read_recordings(file) == recording.recordings()
    turn = msgspec.json.encode(recording.turns[0])
    for wrong in (
        b'{"turns": 5}',
        b'{"session_id": "s", "turns": [], "shared": [1]}',
        b'{"session_id": "s", "turns": [%b], "shared": [1]}' % turn,
        b'{"session_id": "s", "turns": [%b,%b], "shared": [0,-1]}' % (turn, turn),
        b"{}",
    ):
        file.write_bytes(wrong)
        with pytest.raises(UsageError):
            replay(file)


async def test_a_session_without_ended_turns_is_not_recorded(redis_url):
    async with client_of(redis_url) as client:
        with pytest.raises(UsageError, match="no ended turn"):
            await client.session("nobody").recording()


def test_a_session_without_redis_is_recorded_and_replayed():
    session = agent().session()
    for text in TEXTS:
        session.run(text)
    recording = session.recording()
    assert [one.input[0].text for one in recording.turns] == TEXTS
    assert replay(recording).check(agent()).text == "Bye."
    with pytest.raises(UsageError, match="no ended turn"):
        agent().session().recording()


async def test_the_commands_record_test_and_replay_a_session(redis_url, tmp_path, capsys, monkeypatch):
    async def run(*argv) -> str:
        assert await asyncio.to_thread(main, [*argv, "--redis-url", redis_url]) == 0
        return capsys.readouterr().out

    (tmp_path / "shop.py").write_text(
        'from antiphon import Agent\nsupport = Agent("scripted", "any", name="support")\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    async with client_of(redis_url) as client:
        await held(client, redis_url)
    file = tmp_path / "session.json"
    file.write_text(await run("record", "--session", "s"))
    assert msgspec.json.decode(file.read_bytes(), type=SessionRecording).session_id == "s"
    for flags in (("--session", "s"), (str(file),)):
        told = await run("replay", *flags, "--agent", "shop:support")
        assert (told.count("recorded "), told.count("turn ")) == (3, 3)
        assert "You said: Which colour has the door?" in told
    lines = (await run("replay", "--session", "s", "--agent", "shop:support", "--json")).splitlines()
    assert [json.loads(line)["text"] for line in lines] == [f"You said: {text}" for text in TEXTS]
    test = tmp_path / "test_session.py"
    await run("record", "--session", "s", "--test", str(test), "--agent", "shop:support")
    text = test.read_text()
    assert "def test_session():" in text
    assert "antiphon record --session s --test" in text
    assert len(read_recordings(test.with_suffix(".json"))) == 3
    for wrong in ([], ["t", "--session", "s"]):
        assert main(["record", *wrong, "--redis-url", redis_url]) == 2


async def test_the_id_of_a_session_is_no_code_of_the_test_that_is_written(redis_url, tmp_path, monkeypatch):
    session = """s\\'\"\"\"; raise SystemExit; \"\"\"é"""
    (tmp_path / "store.py").write_text(
        'from antiphon import Agent\nsupport = Agent("scripted", "any", name="support")\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    async with client_of(redis_url) as client:
        await held(client, redis_url, session)
    test = tmp_path / "test_session.py"
    argv = ["record", "--session", session, "--test", str(test), "--agent", "store:support"]
    assert await asyncio.to_thread(main, [*argv, "--redis-url", redis_url]) == 0
    assert shlex.split(runpy.run_path(str(test))["__doc__"].partition("Written by: ")[2])[1:4] == argv[:3]


@pytest.mark.parametrize("name", ["test_shop.py", "test_shop.json"])
async def test_a_file_of_another_origin_is_not_overwritten(redis_url, tmp_path, capsys, name):
    async with client_of(redis_url) as client:
        await held(client, redis_url)
    (tmp_path / name).write_text("mine")
    argv = ["record", "--session", "s", "--test", str(tmp_path / "test_shop.py"), "--agent", "store:support"]
    assert await asyncio.to_thread(main, [*argv, "--redis-url", redis_url]) == 2
    assert f"{name} exists" in capsys.readouterr().err
    assert [one.read_text() for one in tmp_path.iterdir()] == ["mine"]


async def test_only_an_admin_of_the_tenant_reads_it_over_http(redis_url, tmp_path):
    known, secrets = keys(
        user={"tenant": "a", "rights": ["read", "write"]},
        admin={"tenant": "a", "rights": ["admin"]},
        other={"tenant": "b", "rights": ["admin"]},
    )
    access = Access(known, secret="a secret that every replica has, 32 bytes")
    async with (
        client_of(redis_url) as client, stand(redis_url, tmp_path, access=access) as (_, api, _),
        programs(api, secrets) as all_,
    ):  # fmt: skip
        await held(client, redis_url, tenant="a")
        await all_["user"].call("GET", "/sessions/s/recording", 403)
        await all_["other"].call("GET", "/sessions/s/recording", 403)
        found = await all_["admin"].get("/sessions/s/recording")
        assert [one["input"][0]["parts"][0]["text"] for one in found["turns"]] == TEXTS
