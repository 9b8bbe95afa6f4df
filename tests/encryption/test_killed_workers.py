"""Workers that are killed while they run sealed turns: every turn ends, and nothing was written in the clear."""

import os
import signal

import pytest
from redis import Redis
from support.eventually import wait_until
from support.leaks import MARKER, Recorder, dumped, holds
from support.models import ModelProcess

from antiphon import Agent, Client

pytestmark = [pytest.mark.short, pytest.mark.one_server]


def test_a_worker_is_killed_in_the_middle_of_sealed_answers(redis_url, keys, processes):
    models = ModelProcess(processes, "--pace", "40", "--length", "60")
    recorder = Recorder(redis_url)
    worker = processes.worker(redis_url, "--processes", "2", "--lease", "1", env=models.environment)
    worker.wait_for_output("takes turns")
    agent = Agent("openai", "gpt-4o")
    with Client(redis_url) as client:
        turns = [client.submit(f"s-{n}", f"{MARKER} {n}", agent=agent) for n in range(6)]
        events = turns[0].stream()
        assert any(event.type == "text_delta" for event in events)
        os.kill(worker.workers()[0], signal.SIGKILL)
        texts = [turn.result(60).text for turn in turns]
        assert all(texts)
        for turn, text in zip(turns, texts, strict=True):
            last = max(event.attempt for event in turn.stream())
            said = [e.text for e in turn.stream() if e.type == "text_delta" and e.attempt == last]
            assert "".join(said) == text
    with Redis.from_url(redis_url) as redis:
        assert [key for key, data in dumped(redis).items() if holds(data)] == []
    assert [command[:200] for command in recorder.stop() if holds(command)] == []
    wait_until(lambda: worker.running, description="the supervisor goes on")
