"""Each revision of an agent has figures of its ended turns, and of what people say of them."""

import asyncio
import json

import pytest
from support.eventually import wait_until_async
from support.gateway import keys, programs, stand
from support.here import running_worker
from support.processes import COMMAND
from support.revisions import client_of
from support.stage import Stage, make_app

from antiphon import Agent, tool
from antiphon.cli.main import main
from antiphon.errors import TurnNotFound, UsageError
from antiphon.metrics import families
from antiphon.model.feedback import Figures, checked_feedback
from antiphon.redis.deployment import cell_states
from antiphon.testing import script, tool_call
from antiphon.wire.feedback import figures_of
from antiphon_gateway import Access
from antiphon_worker.app import App

pytestmark = pytest.mark.one_server


@tool
def lookup() -> str:
    """Look it up."""
    raise ValueError("not there")


@tool(approval=True)
def refund() -> str:
    """Refund it."""
    return "refunded"


SUPPORT = Agent(
    script(tool_call("lookup"), "Gone.", repeat=True), "any", name="support", tools=[lookup], label="v1"
)
APP = App(agents=[SUPPORT])


async def figures(client, agent="support") -> Figures:
    found = [one.figures async for one in client.agents() if one.agent == agent]
    return sum(found, Figures())


async def ended(client, number: int, agent="support") -> None:
    async def written() -> bool:
        return (await figures(client, agent)).turns == number

    await wait_until_async(written, 30, "the figures are written")


async def answered(client, session="s"):
    turn = await client.submit(session, "Where is it?", agent="support")
    assert (await turn.result(30)).text == "Gone."
    return turn


async def test_ended_turns_are_counted_by_their_revision(redis_url):
    async with client_of(redis_url) as client:
        async with running_worker(redis_url, APP):
            for session in ("s", "s", "t"):
                await answered(client, session)
            await ended(client, 3)
            found = await figures(client)
            assert (found.finished, found.tool_calls, found.tool_errors) == (3, 3, 3)
            assert found.tokens > 0
            assert found.mean_seconds > 0
            (state,) = await cell_states([redis_url], "ant")
            told = {one.name: one.samples for one in families([state])}
            (sample,) = told["antiphon_revision_tool_errors"]
            assert (sample.labels["agent"], sample.labels["revision"], sample.value) == (
                "support",
                SUPPORT.revision,
                3,
            )
        async with running_worker(redis_url, APP):
            await answered(client)
            await ended(client, 4)


async def test_what_a_turn_did_before_it_was_suspended_counts_once(redis_url):
    agent = Agent(
        script(tool_call("lookup"), tool_call("refund"), "Gone."),
        "any",
        name="support",
        tools=[lookup, refund],
    )
    async with client_of(redis_url) as client, running_worker(redis_url, App(agents=[agent])):
        turn = await client.submit("s", "Where is it?", agent="support")

        async def waits() -> bool:
            return bool((await turn.info()).calls)

        await wait_until_async(waits, 30, "the call waits for approval")
        [call] = (await turn.info()).calls
        await turn.approve(call.call_id)
        response = await turn.result(30)
        await ended(client, 1)
        found = await figures(client)
        assert (found.tool_calls, found.tokens) == (2, response.usage.tokens)


async def test_a_turn_in_a_process_of_its_own_is_counted(redis_url, processes, tmp_path):
    stage = Stage(tmp_path / "stage")
    worker = processes.worker(redis_url, "--lease", "1", env=stage.env)
    async with client_of(redis_url) as client:
        turn = await client.submit("s", "die*2", agent="stage")
        assert (await turn.result(60)).text
        await ended(client, 1, "stage")
        assert (await turn.info()).attempt == 3
    worker.terminate()


@pytest.mark.parametrize("kind", ["rq.Worker", "rq.worker.SimpleWorker"])
async def test_a_turn_of_rqs_own_worker_is_counted(kind, redis_url, processes, tmp_path):
    stage = Stage(tmp_path / "stage")
    async with client_of(redis_url) as client:
        async with running_worker(redis_url, make_app(stage)):
            await answered_by_the_stage(client, "s", "Hello")  # so that it is known what the App has
            await ended(client, 1, "stage")
        turns = [await client.submit(f"s{number}", "Hello", agent="stage") for number in range(2)]
        turns.append(await client.submit("f", "fail:rejected", agent="stage"))
        flags = ("--serializer", "json", "--burst", "--worker-class", kind, "antiphon")
        worker = processes.start(
            COMMAND.with_name("rq"), "worker", "-u", redis_url, *flags, name="rq", env=stage.env
        )
        assert await asyncio.to_thread(worker.wait, 60) == 0
        (state,) = await cell_states([redis_url], "ant")
        assert not state.revisions, "no worker advertises the revision"
        found = await figures_of(client.connections.cell_of_session("s"), [("stage", revision_of(stage))])
        assert (found[0].finished, found[0].failed, found[0].rated) == (3, 1, 0)
        assert found[0].tokens > 0


def revision_of(stage) -> str:
    return make_app(stage).revisions["stage"].id


async def answered_by_the_stage(client, session, text):
    assert (await (await client.submit(session, text, agent="stage")).result(30)).text


async def test_a_tenants_feedback_is_listed_without_reading_that_of_others(redis_url, monkeypatch):
    async with client_of(redis_url) as client, running_worker(redis_url, APP):
        for number in range(6):
            turn = await client.submit(
                f"s{number}", "Hello", agent="support", tenant="a" if number == 3 else "b"
            )
            await turn.result(30)
            await turn.feedback(1)
        cell, read = client.connections.cell_of_session("s"), []
        plain = type(cell).turn

        async def counted(self, turn):
            read.append(turn)
            return await plain(self, turn)

        monkeypatch.setattr(type(cell), "turn", counted)
        found = [one.session_id async for one in client.agents().feedback(tenant="a")]
        assert (found, len(read)) == (["s3"], 1)


async def test_feedback_is_kept_with_its_turn_and_counted_for_its_revision(redis_url):
    async with client_of(redis_url) as client, running_worker(redis_url, APP):
        first, second = await answered(client), await answered(client)
        assert (await first.info()).feedback is None
        await first.feedback(1, "Right.", by="ada")
        await second.feedback(-1)
        await second.feedback(0)
        said = (await first.info()).feedback
        assert (said.score, said.note, said.by) == (1.0, "Right.", "ada")
        found = await figures(client)
        assert (found.rated, found.score) == (2, 0.5)
        rated = [one async for one in client.agents().feedback("support", conversation=True)]
        assert [one.feedback.at for one in rated] == sorted((one.feedback.at for one in rated), reverse=True)
        of = {one.turn_id: one for one in rated}  # both may have been given in one millisecond
        assert {turn: one.revision for turn, one in of.items()} == {
            first.id: SUPPORT.revision, second.id: SUPPORT.revision,
        }  # fmt: skip
        assert [one.role for one in of[second.id].conversation] == ["user", "assistant", "tool", "assistant"]
        assert of[first.id].conversation == []
        assert [one async for one in client.agents().feedback("sales")] == []
        assert [one async for one in client.agents().feedback(since=rated[0].feedback.at + 1)] == []
        await client.session("s").delete()
        assert [one async for one in client.agents().feedback()] == []
        with pytest.raises(TurnNotFound):
            await first.feedback(1)


@pytest.mark.parametrize(
    "given", [(2,), (True,), ("up",), (float("nan"),), (1, 5), (1, "x" * 4001), (1, None, ""), (1, None, 5)]
)
def test_feedback_is_checked(given):
    score, note, by = (*given, None, None)[:3]
    with pytest.raises(UsageError, match=r"score|note|by"):
        checked_feedback(score, note, by)


def test_a_turn_without_redis_takes_feedback():
    agent = Agent(script("Hello."), "any")
    turn = agent.session("s").submit("Hello")
    assert turn.result(30).text == "Hello."
    turn.feedback(0.5, "Fine.")
    assert turn.info().feedback.score == 0.5


async def served(client):
    return [one async for one in client.agents() if one.agent == "support" and one.workers]


async def test_feedback_over_http_and_from_the_shell(redis_url, tmp_path, capsys):
    known, secrets = keys(a={"tenant": "a"}, b={"tenant": "b"})
    access = Access(known, secret="a secret that every replica has, 32 bytes")

    async def shell(*argv, code=0):
        assert await asyncio.to_thread(main, [*argv, "--redis-url", redis_url]) == code
        return capsys.readouterr()

    async with (
        stand(redis_url, tmp_path, access=access) as (_, api, _), programs(api, secrets) as all_,
        client_of(redis_url) as client, running_worker(redis_url, APP),
    ):  # fmt: skip
        await wait_until_async(
            lambda: served(client), 30, "the worker beside that of the stage has its agent"
        )
        turn = await client.submit("mine", "Where is it?", agent="support", tenant="a")
        await turn.result(30)
        await all_["a"].call("PUT", f"/turns/{turn.id}/feedback", 204, json={"score": 1, "note": "Right."})
        await all_["a"].call("PUT", f"/turns/{turn.id}/feedback", 400, json={"score": 2})
        await all_["b"].call("PUT", f"/turns/{turn.id}/feedback", 404, json={"score": 1})
        (rated,) = (await all_["a"].get("/feedback?conversation=true&agent=support"))["turns"]
        assert (rated["turn_id"], rated["feedback"]["score"], rated["feedback"]["by"]) == (
            turn.id,
            1.0,
            "key a",
        )
        assert (await all_["b"].get("/feedback"))["turns"] == []
        told = json.loads((await shell("feedback", "add", turn.id, "down", "--note", "Wrong.", "--json")).out)
        assert (told["score"], told["note"]) == (-1.0, "Wrong.")
        assert "Wrong." in (await shell("feedback")).out
        line = json.loads((await shell("feedback", "--json", "--conversation", "--tenant", "a")).out)
        assert (line["turn_id"], line["revision"]) == (turn.id, SUPPORT.revision)
        assert "must be up, down" in (await shell("feedback", "add", turn.id, "meh", code=2)).err
        assert "-1.00 (1)" in (await shell("agents")).out
