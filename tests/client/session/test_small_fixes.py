"""Calls that are nearly right work, or answer with what to write instead."""

import pytest

from antiphon import Agent, AsyncClient, Client, Session
from antiphon.errors import TurnNotFound, UsageError

DATA = {"version": 1, "session_id": "old", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize("agent", ["support", None])
def test_a_session_is_restored_with_an_agent_and_not_with_its_name(agent):
    with pytest.raises(
        UsageError, match=r"needs an Agent, not .*Session.from_dict\(data, Agent\(…, redis=url\)\)"
    ):
        Session.from_dict(DATA, agent)


def test_a_parameter_of_the_model_is_told_where_to_go(redis_url):
    with Client(redis_url) as client:
        with pytest.raises(
            TypeError, match=r"keyword argument 'temperature': .* params=\{'temperature': …\}"
        ):
            client.submit("s", "hello", temperature=0.2)
        turn = client.submit("s", "hello", params={"temperature": 0.2}, queue="nowhere")
        turn.cancel()


@pytest.mark.parametrize("how", ["agent", "run", "submit"])
def test_the_documented_pause_of_a_script_works(how, runtime):
    script = ["one two three"]
    if how == "agent":
        response = Agent("scripted", "any", script=script, pause=0.001, **on(runtime)).session().run("x")
    else:
        session = Agent("scripted", "any", **on(runtime)).session()
        turn = {"run": session.run, "submit": lambda *a, **o: session.submit(*a, **o).result(60)}[how]
        response = turn("x", script=script, pause=0.001)
    assert response.text == "one two three"


def on(runtime):
    return {"redis": runtime.url} if runtime.name == "redis" else {}


def test_turns_that_end_are_found_by_their_ids(workers_runtime):
    with Client(workers_runtime.url) as client:
        turns = [client.submit(f"s{n}", "hello", agent=workers_runtime.agent()) for n in range(3)]
        mixed = [turns[0], turns[1].id, turns[2].id]
        done = list(client.as_completed(mixed))
        assert {turn.id for turn in done} == {turn.id for turn in turns}
        assert turns[0] in done
        assert [turn.result(60).text for turn in done] == ["You said: hello"] * 3
        with pytest.raises(TurnNotFound):
            list(client.as_completed(["none"]))


async def test_an_asynchronous_client_finds_them_too(workers_runtime):
    async with AsyncClient(workers_runtime.url) as client:
        turn = await client.submit("s", "hello", agent=workers_runtime.agent())
        assert [done.id async for done in client.as_completed([turn.id])] == [turn.id]
