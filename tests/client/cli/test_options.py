"""The options of a turn on the command line: numbers, words and JSON, checked as in Python."""

import asyncio
import json

import pytest

from antiphon.cli.batch import read_lines
from antiphon.cli.main import main
from antiphon.client import AsyncClient, Client

pytestmark = [pytest.mark.one_server, pytest.mark.lasting_keys("ant:*")]


def submitted(redis_url, *options):
    return main(["submit", "s", "Hello", "--agent", "any", "--json", *options, "--redis-url", redis_url])


def test_numbers_words_and_json_become_options_of_the_turn(redis_url, tmp_path, capsys):
    (tmp_path / "schema.json").write_text('{"type": "object", "properties": {}}')
    given = [
        "--metadata",
        '{"a": 1}',
        "--schema",
        f"@{tmp_path}/schema.json",
        "--delay",
        "3600",
        "--ttl",
        "none",
    ]
    assert submitted(redis_url, *given, "--timeout", "1.5", "--while-suspended", "continue") == 0
    turn = json.loads(capsys.readouterr().out)["turn_id"]

    async def look():
        async with AsyncClient(redis_url) as client:
            cell = client.connections.cell_of_turn(turn)
            record = await cell.turn(turn)
            info = await (await client.turn(turn)).info()
            await cell.cancel(turn, "seen", "nothing")
            return (
                info,
                json.loads(record.fields["request"]),
                await cell.redis.hget(cell.keys.session("s"), "ttl"),
            )

    info, request, ttl = asyncio.run(look())
    assert (info.metadata, info.due is not None, ttl) == ({"a": 1}, True, b"0")
    assert (request["timeout"], request["while_suspended"]) == (1.5, "continue")
    assert request["output"]["schema"]["type"] == "object"


def test_a_batch_that_gives_no_further_options_keeps_the_keys_of_its_lines(tmp_path):
    """An interrupted batch of the release before goes on with this one."""
    (tmp_path / "in").write_text('{"text": "Hello"}\n')
    (line,) = read_lines(tmp_path / "in", ["", "agent", None, None])
    assert line.key == "feda94668e174f81af39067287c31aca"


def test_sessions_are_listed_by_their_metadata(redis_url, capsys):
    with Client(redis_url) as client:
        for session, plan in (("a", "free"), ("b", "paid")):
            client.session(session, metadata={"plan": plan}).set_variables({"n": 1})
    found = ["sessions", "--metadata", '{"plan": "paid"}', "--json", "--redis-url", redis_url]
    assert main(found) == 0
    assert [json.loads(line)["session_id"] for line in capsys.readouterr().out.splitlines()] == ["b"]
