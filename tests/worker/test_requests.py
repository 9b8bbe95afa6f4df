"""An App that asks for it keeps what its models receive; no other one does."""

import asyncio
import json

import pytest
from support.gateway import keys, programs, stand
from support.here import running_worker
from support.revisions import client_of
from support.services.conversation import KINDS, said, serve
from support.services.wire_server import WireServer

from antiphon import Agent, tool
from antiphon.cli.main import main
from antiphon.errors import ProviderOverloaded, SettingsError
from antiphon.hooks import ModelStart, Replace, hook
from antiphon.model import FallbackModel, Retry
from antiphon.model.budget import Budget
from antiphon.model.recording import KeptRequest
from antiphon.testing import script, tool_call
from antiphon.window import Summary
from antiphon_gateway import Access
from antiphon_worker.app import App
from antiphon_worker.process import requests

pytestmark = pytest.mark.one_server

KEY = "sk-test-of-a-key"


@tool
def look(at: str) -> str:
    """Look."""
    return f"{at} is green"


def scripted(*lines, **options) -> Agent:
    return Agent(script(*lines, repeat=True), "any", name="support", system="Be kind.", **options)


async def ended(url, app: App, *texts: str) -> list[KeptRequest]:
    """The kept requests of the last of these turns."""
    async with client_of(url) as client, running_worker(url, app):
        turn = None
        for text in texts:
            turn = await client.submit("s", text, agent="support")
            await turn.ended()
        return await turn.requests()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_kept_request_is_the_body_that_the_service_received_and_has_no_key(redis_url, kind):
    async with WireServer(said(kind, "Yes.")) as server:
        agent = Agent(serve(kind, server.url), "a-model", name="support", system="Be kind.", tools=[look])
        found = await ended(redis_url, App(agents=[agent], keep_requests=True), "Hello")
    [seen] = server.seen
    [one] = found
    assert one.body == seen.body
    assert (one.step, one.run, one.attempt, one.model) == (1, 1, 1, "a-model")
    assert KEY in json.dumps(seen.headers)
    assert KEY not in str(one)


async def test_each_step_is_kept_as_hooks_and_budgets_let_it_pass(redis_url):
    @hook
    def shout(moment: ModelStart) -> Replace:
        return Replace(system=f"{moment.system}!")

    agent = scripted(
        tool_call("look", at="it"), "Green.", tools=[look], hooks=[shout], budgets=[Budget(tokens=10**6)]
    )
    first, second = await ended(redis_url, App(agents=[agent], keep_requests=True), "What colour?")
    assert (first.step, second.step) == (1, 2)
    assert first.body["system"] == "Be kind.!"
    assert "it is green" in json.dumps(second.body["messages"])
    assert first.body["params"]["max_tokens"] > 0  # what budgets add


async def test_what_a_fallback_receives_is_kept(redis_url):
    agent = scripted(
        ProviderOverloaded("busy"), retry=Retry(seconds=0), fallback=[FallbackModel("other", "another")]
    )
    app = App(agents=[agent], providers={"other": script("Yes.", repeat=True)}, keep_requests=True)
    found = await ended(redis_url, app, "One")
    assert [(one.step, one.attempt, one.model) for one in found] == [(1, 1, "any"), (1, 1, "another")]


async def test_the_request_of_a_summary_is_no_step(redis_url):
    app = App(agents=[scripted("Yes.", window=Summary(turns=1))], keep_requests=True)
    found = await ended(redis_url, app, "One", "Two", "Three")
    assert [one.step for one in found] == [0, 1]


async def test_an_app_that_does_not_ask_keeps_nothing(redis_url, redis):
    assert await ended(redis_url, App(agents=[scripted("Yes.")]), "Hello") == []
    assert not redis.keys("*requests*")


async def test_a_secret_in_a_message_is_removed(redis_url):
    app = App(agents=[scripted("Yes.")], keep_requests=True)
    [one] = await ended(redis_url, app, "My key is sk-abcdefghijklmnopqrstuvwx.")
    assert one.body["messages"][0]["parts"][0]["text"] == "My key is [removed]."


async def test_a_request_that_cannot_be_kept_is_sent_all_the_same(redis_url, monkeypatch):
    """Redis does not answer: the model is called once, without the request."""
    hung, seen = asyncio.Event(), []

    async def hangs(*_):
        hung.set()
        await asyncio.Event().wait()

    def answer(request):
        seen.append(request)
        return "Yes."

    monkeypatch.setattr(requests, "keep_request", hangs)
    monkeypatch.setattr(requests, "SECONDS", 0.05)
    app = App(agents=[scripted(answer)], keep_requests=True)
    async with client_of(redis_url) as client, running_worker(redis_url, app):
        turn = await client.submit("s", "Hello", agent="support")
        assert (await turn.result(timeout=20)).text == "Yes."
        assert await turn.requests() == []
    assert hung.is_set()
    assert len(seen) == 1


async def test_a_long_request_is_listed_without_its_body(redis_url, monkeypatch):
    monkeypatch.setattr(requests, "MOST_BYTES", 100)
    [one] = await ended(redis_url, App(agents=[scripted("Yes.")], keep_requests=True), "Hello " * 50)
    assert (one.step, one.body) == (1, None)
    assert one.size > 300


async def test_keep_requests_is_true_or_false():
    with pytest.raises(SettingsError, match="keep_requests= must be True or False"):
        App(keep_requests="yes")


async def test_only_an_admin_reads_requests_over_http(redis_url, tmp_path):
    known, secrets = keys(
        user={"tenant": "a", "rights": ["read", "write"]},
        admin={"tenant": "a", "rights": ["admin"]},
        other={"tenant": "b", "rights": ["admin"]},
    )
    access = Access(known, secret="a secret that every replica has, 32 bytes")
    app = App(agents=[scripted("Yes.")], keep_requests=True)
    async with (
        client_of(redis_url) as client, running_worker(redis_url, app),
        stand(redis_url, tmp_path, access=access) as (_, api, _), programs(api, secrets) as all_,
    ):  # fmt: skip
        turn = await client.submit("s", "Hello", agent="support", tenant="a")
        await turn.ended()
        where = f"/turns/{turn.id}/requests"
        await all_["user"].call("GET", where, 403)
        await all_["other"].call("GET", where, 404)
        [one] = await all_["admin"].get(where)
        assert (one["step"], one["body"]["system"]) == (1, "Be kind.")


async def test_the_command_prints_the_requests_or_that_none_are_kept(redis_url, capsys):
    async def shown(*flags) -> str:
        assert await asyncio.to_thread(main, ["requests", turn.id, "--redis-url", redis_url, *flags]) == 0
        return capsys.readouterr().out

    async with client_of(redis_url) as client:
        async with running_worker(redis_url, App(agents=[scripted("Yes.")])):
            turn = await client.submit("s", "Hello", agent="support")
            await turn.ended()
        assert "App(keep_requests=True)" in await shown()
        async with running_worker(redis_url, App(agents=[scripted("Yes.")], keep_requests=True)):
            turn = await client.submit("s", "Hello", agent="support")
            await turn.ended()
        text = await shown()
        assert "Step 1: scripted/any, run 1, attempt 1" in text
        assert '"system": "Be kind."' in text
        assert json.loads(await shown("--json"))["body"]["system"] == "Be kind."
