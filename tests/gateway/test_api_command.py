"""`antiphon api`: any operation of the HTTP interface from a shell, straight on Redis."""

import json

import pytest
from support.gateway import open_gateway

from antiphon.cli.main import main
from antiphon_gateway.api import api

pytestmark = pytest.mark.one_server


@pytest.fixture
def called(redis_url, capsys):
    """Call an operation; returns the exit code, the answer and what was written about an error."""

    def call(*argv):
        code = main(["api", *argv, "--redis-url", redis_url])
        told = capsys.readouterr()
        return code, json.loads(told.out) if told.out else None, told.err

    return call


def test_an_operation_takes_its_path_its_query_and_its_body(called):
    assert called("create_session", "--session-id", "a/b c", "--metadata", '{"plan": "paid"}')[:2] == (
        0,
        {"session_id": "a/b c"},
    )
    found = called("list_sessions", "--limit", "5", "--metadata", '{"plan": "paid"}')[1]
    assert [one["session_id"] for one in found["sessions"]] == ["a/b c"]
    turn = called("submit_turn", "a/b c", "--input", "Hello", "--agent", "any", "--priority", "high")[1]
    page = called("show_history", "a/b c", "--pending")[1]
    assert [message["parts"][0]["text"] for message in page["messages"]] == ["Hello"]
    assert called("cancel_turn", turn["turn_id"], "--keep", "nothing")[1] == {"outcome": "cancelled"}
    assert called("close_session", "a/b c") == (0, None, "")


def test_a_refusal_is_one_sentence_with_the_exit_code_of_its_kind(called):
    assert called("show_session", "nothing") == (
        1,
        None,
        "antiphon api: The session does not exist or has expired.\n",
    )
    code, _, told = called("submit_turn", "s", "--input", "x", "--timeout=-1")
    assert (code, "timeout" in told, told.count("\n")) == (2, True, 1)
    code, _, told = called("no_operation")
    assert (code, "no_operation" in told) == (2, True)
    code, _, told = called("rewind_session", "s")
    assert (code, "--to" in told) == (2, True)


def test_all_operations_are_listed(capsys):
    assert api(["--json"]) == 0
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"operation": "rewind_session", "method": "POST", "route": "/sessions/{session}/rewind"} in listed
    assert api([]) == 0
    assert "\nrewind_session " in capsys.readouterr().out


async def test_an_inline_agent_answers_again_and_an_option_of_submit_is_one_of_an_edit(redis_url):
    async with open_gateway(redis_url) as (gateway, _):
        question = {"role": "user", "content": "Why?"}
        await gateway.http.post("/sessions", json={"session_id": "s", "messages": [question]})
        agent = {"provider": "scripted", "model": "any", "name": "inline"}
        asked = {"agent": agent, "key": "k", "retry_failed": True, "priority": "low"}
        made = (await gateway.http.post("/sessions/s/regenerate", json=asked)).json()
        again = (await gateway.http.post("/sessions/s/regenerate", json=asked)).json()
        assert (await gateway.get(f"/turns/{made['turn_id']}"))["agent"] == "inline"
        assert again["turn_id"] == made["turn_id"]
        await gateway.http.post(f"/turns/{made['turn_id']}/cancel", json={})
