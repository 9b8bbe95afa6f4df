"""examples/memory.py: what is said in one session is recalled in another one."""

import pytest
from redis import Redis
from support.eventually import wait_until
from support.models import ModelProcess
from support.source_tree import ROOT

EXAMPLES = ROOT / "examples"


@pytest.mark.one_server
@pytest.mark.lasting_keys("ant:remembered:*", "ant:unindexed:*")
def test_what_was_said_in_one_session_is_recalled_in_another(redis_url, processes, tmp_path):
    env = {
        "ANTIPHON_REDIS_URL": redis_url, "ANTIPHON_APP": "memory:app", "PYTHONPATH": str(EXAMPLES),
        "MEMORY_FOLDER": str(tmp_path / "recollections"), **ModelProcess(processes).environment,
    }  # fmt: skip
    processes.worker(redis_url, env=env)

    def said(text):
        program = processes.python(str(EXAMPLES / "memory.py"), text, env=env, name="memory")
        assert program.wait(60) == 0
        return program.output

    said("My dog is called Rex.")
    with Redis.from_url(redis_url) as redis:
        wait_until(lambda: redis.keys("ant:remembered:*") and not redis.exists("ant:unindexed:memory"), 20)
    assert "My dog is called Rex." in said('What is my dog called? call:recall {"query": "dog"}')
