"""Workers that die before or after each of their first calls leave no key without its time to live."""

import pytest
from support.dying import APP
from support.eventually import wait_until
from support.leaks import leaked_keys
from support.stage import Stage

from antiphon import Client
from antiphon.errors import AgentError

pytestmark = [pytest.mark.one_server, pytest.mark.short]
DEATHS = 30


def test_no_key_outlives_its_turns(redis_url, processes, tmp_path):
    stage = Stage(tmp_path / "stage")
    env = stage.env | {"ANTIPHON_APP": APP, "DEATHS": str(DEATHS)}
    worker = processes.worker(redis_url, "--processes", "2", "--lease", "2", env=env)
    died = tmp_path / "stage" / "processes"
    with Client(redis_url) as client:
        turns = []

        def all_have_died():
            number = len(turns)
            turns.extend(turns_of_every_kind(client, number))
            for turn in turns[number:]:
                wait_until(lambda turn=turn: turn.status() in ENDED, 30, "it ends")
            return died.exists() and died.stat().st_size > DEATHS

        wait_until(all_have_died, 60, "all have died")
        assert {turn.status() for turn in turns} == ENDED
        wait_until(lambda: leaked_keys(redis_url) == [], 10, "each key has its time to live")
        assert worker.terminate() == 0
        assert leaked_keys(redis_url) == []


ENDED = {"finished", "failed", "cancelled"}


def turns_of_every_kind(client, number):
    """Of several priorities: with a tool, failing, cancelled, and waiting for a decision."""
    session = f"s{number}"
    yield client.submit(session, "Hello", agent="stage", tenant="a", ttl=60)
    yield client.submit(session, "tool:note", agent="stage", tenant="a", priority="high")
    yield client.submit(f"{session}-fails", "fail:unauthorized", agent="stage", priority="low")
    delayed = client.submit(f"{session}-later", "Later", agent="stage", delay=3600)
    delayed.cancel()
    yield delayed
    waits = client.submit(f"{session}-waits", "tool:guarded", agent="stage")
    wait_until(lambda: waits.status() in {"suspended", *ENDED}, 30, "it waits for a decision")
    try:
        waits.approve("call_1")
    except AgentError:  # its workers died too often
        waits.cancel()
    yield waits
