"""Two releases share a Redis during every deploy: each runs its own scripts, and a turn goes from one to the other."""

import hashlib
import signal

import pytest
from redis import Redis
from support.ensemble import open_ensemble, signal_process

from antiphon.wire.scripts import load_script


@pytest.mark.main_path
async def test_a_turn_of_one_release_goes_on_in_the_other(redis_url, tmp_path, processes):
    with Redis.from_url(redis_url) as redis:
        redis.script_flush()  # the server outlives the tests, and so do their scripts
    async with open_ensemble(redis_url, tmp_path / "stage", processes) as ensemble:
        old = ensemble.supervisor()
        old.ready()
        turns = [await ensemble.submit(f"s{n}", f"words:3 gate:g{n}") for n in range(4)]
        waiting = [await ensemble.submit(f"s{n}", "words:3") for n in range(4)]
        for n in range(4):
            await ensemble.waits(f"g{n}")
        new = ensemble.supervisor(app="support.newer_stage:app")
        new.ready()
        signal_process(old.workers[0], signal.SIGKILL)
        signal_process(old.process.pid, signal.SIGTERM)
        for n in range(4):
            ensemble.stage.open(f"g{n}")
        for turn in [*turns, *waiting]:
            assert (await turn.result(60)).text
        await ensemble.whole(*(f"s{n}" for n in range(4)))
        with Redis.from_url(redis_url) as redis:
            assert redis.script_exists(other_sha("finish")) == [True]
        assert new.process.terminate() == 0


def other_sha(name: str) -> str:
    return hashlib.sha1(f"{load_script(name).source}\n-- another release".encode()).hexdigest()
