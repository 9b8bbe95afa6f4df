"""The tasks of examples/tasks wait for turns with one worker slot, and go on exactly once after any process died."""

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis
from support.eventually import wait_until
from support.source_tree import ROOT
from support.stage import FIRST_WORDS, Stage

pytestmark = [pytest.mark.one_server, pytest.mark.timeout(180)]

TASKS = ROOT / "examples" / "tasks"
BIN = Path(sys.executable).parent
CELERY_COMMAND = "celery --app celery_tasks worker --concurrency 1"
RQ_COMMAND = "rq worker --with-scheduler --worker-ttl 30 --maintenance-interval 10 tickets"
SCHEDULED = "rq:scheduled:tickets"
SCHEDULER_LOCK = "rq:scheduler-lock:tickets"


class Office:
    """Workers of a queue with one slot each, and workers of ours whose assistant is on the stage."""

    def __init__(self, queue, redis_url, processes, directory):
        self.stage = Stage(directory / "stage")
        self._queue, self._redis_url, self._processes = queue, redis_url, processes
        self._redis = Redis.from_url(redis_url)
        self._database = directory / "tickets.db"
        self.env = {
            "ANTIPHON_REDIS_URL": redis_url, "RQ_REDIS_URL": redis_url, "TICKETS": str(self._database),
            "SECONDS_UNTIL_LOST": "2", "PYTHONPATH": str(TASKS), "TEST_FORKS": "no",
        }  # fmt: skip
        self.started = []

    def close(self):
        self._redis.close()

    def clerk(self):
        """A worker of the queue."""
        if self._queue == "celery":
            flags = (*CELERY_COMMAND.split()[1:], "--loglevel", "info")
            started = self._processes.start(BIN / "celery", *flags, name="celery", env=self.env)
            started.wait_for_output("ready.", 40)
        else:
            flags = RQ_COMMAND.split()[1:]
            started = self._processes.start(BIN / "rq", *flags, name="rq", env=self.env)
            started.wait_for_output("istening on", 40)
        self.started.append(started)
        return started

    def worker(self):
        flags = ("--app", "support.chat:app", "--lease", "2")
        worker = self._processes.worker(self._redis_url, *flags, env=self.stage.env)
        worker.wait_for_output("takes turns")
        return worker

    def kill_while_the_task_waits(self, clerk):
        """Stop it whole until the task stands in no queue and is in no hands, then kill it."""

        def waits():
            clerk.freeze()
            if self._queue == "celery" or self._redis.zcard(SCHEDULED):
                return True
            clerk.thaw()
            return False

        wait_until(waits, 40, "the task waits to be scheduled", interval=0.05)
        clerk.kill()

    def a_minute_passes(self):
        """The lock of RQ's scheduler outlives a worker that was killed by up to a minute, which no test waits for."""
        self._redis.delete(SCHEDULER_LOCK)

    def submit(self, ticket, question):
        file = TASKS / f"{self._queue}_tasks.py"
        assert self._processes.python(file, str(ticket), question, env=self.env).wait() == 0

    def answers(self):
        if not self._database.exists():
            return {}
        with closing(sqlite3.connect(self._database)) as database:
            try:
                return dict(database.execute("SELECT ticket, answer FROM answers"))
            except sqlite3.OperationalError:  # the first task is about to make the table
                return {}

    def printed(self, text):
        return sum(process.output.count(text) for process in self.started)


@pytest.fixture(params=["celery", "rq"])
def office(request, redis_url, processes, tmp_path):
    with closing(Office(request.param, redis_url, processes, tmp_path)) as office:
        yield office


def test_a_task_waits_without_its_worker_and_goes_on_once(office):
    worker, clerk = office.worker(), office.clerk()
    office.submit(1, "gate:g Hello")
    wait_until(lambda: office.stage.notes("waits", gate="g"), 40, "the first ticket's turn runs")
    office.submit(2, "Hi")
    wait_until(lambda: 2 in office.answers(), 40, "the only slot is free for another ticket")
    assert 1 not in office.answers()
    office.kill_while_the_task_waits(clerk)
    worker.kill()
    office.worker()
    office.stage.open("g")
    office.clerk()
    office.clerk()
    office.a_minute_passes()
    wait_until(lambda: 1 in office.answers(), 60, "the first ticket is answered")
    assert office.answers()[1].startswith(FIRST_WORDS + "I was shown 1 messages")
    wait_until(lambda: office.printed("Ticket 1 is answered") == 1, 10)
    assert office.printed("Ticket 2 is answered") == 1


@pytest.mark.short
def test_of_two_runs_of_a_task_one_goes_on(tmp_path, monkeypatch, redis_url, processes):
    monkeypatch.setenv("ANTIPHON_REDIS_URL", redis_url)
    monkeypatch.setenv("TICKETS", str(tmp_path / "tickets.db"))
    monkeypatch.syspath_prepend(str(TASKS))
    processes.worker(redis_url, "--app", "agents:app", env={"PYTHONPATH": str(TASKS)}).wait_for_output(
        "takes turns"
    )
    import tickets

    for _ in range(2):
        wait_until(lambda: tickets.ask(1, "Hi"), 30)
    assert [tickets.store(1, "one"), tickets.store(1, "two")] == [True, False]
    assert len(list(tickets.client.turns("ticket-1"))) == 1
    tickets.client.close()
    monkeypatch.delitem(sys.modules, "tickets")


def test_the_commands_of_the_page_are_those_of_the_test():
    page = (ROOT / "docs" / "tasks.md").read_text()
    for command in (CELERY_COMMAND, RQ_COMMAND):
        assert f"$ {command} &" in page
