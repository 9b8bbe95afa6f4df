"""When the supervisor fills the place of a process that has ended, and how soon."""

import asyncio
import signal
import threading
from types import SimpleNamespace

import pytest

from antiphon_worker.settings import Settings
from antiphon_worker.supervisor import supervisor as module
from antiphon_worker.supervisor.supervisor import Supervisor
from antiphon_worker.supervisor.watchdog import State


class Kept:
    """What is kept ready, as a number."""

    def __init__(self):
        self.times = 0

    def keep(self):
        self.times += 1


class Lives(Supervisor):
    """Its processes end as the test says: with these exit codes, and with so many turns in their hands."""

    def __init__(self, codes, held=0):
        super().__init__(Settings())
        self._codes = list(codes)
        self._held = held
        self.handed_back = 0
        self._spares = self.kept = Kept()

    async def _run_one(self, url):
        code = self._codes.pop(0)
        if isinstance(code, OSError):
            raise code
        states = {0: State.DONE, 2: State.LOADING}
        return SimpleNamespace(name="any", stalled=False, state=states.get(code, State.SERVING)), code

    async def _end_all(self, drain_seconds):
        return

    async def _hand_back(self, url, name, child):
        self.handed_back += 1
        return self._held


@pytest.fixture
def pauses(monkeypatch):
    found = []
    real = asyncio.sleep

    async def sleep(seconds):
        if threading.current_thread() is not threading.main_thread():
            return await real(seconds)  # of a client that another test has left
        found.append(seconds)
        return await real(0)

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    return found


async def test_a_process_that_had_turns_in_its_hands_is_followed_at_once_however_often_it_dies(pauses):
    lives = Lives([-9, -9, -9, -9, 0], held=3)
    await lives._keep_one("redis://any")
    assert pauses == []
    assert lives.kept.times == 4


async def test_a_process_that_a_signal_without_a_name_ended_is_followed(pauses, caplog):
    await Lives([-signal.SIGRTMIN - 6, 0], held=1)._keep_one("redis://any")
    assert "died (signal 40)" in caplog.text


async def test_one_that_dies_before_it_can_work_is_followed_later_and_later(pauses):
    lives = Lives([1] * 8 + [0])
    await lives._keep_one("redis://any")
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    assert (lives.handed_back, lives.kept.times) == (8, 0)


async def test_one_that_cannot_be_started_is_tried_again_later_and_later(pauses, caplog):
    out_of_processes = BlockingIOError(11, "Resource temporarily unavailable")
    lives = Lives(
        [OSError(12, "Cannot allocate memory"), out_of_processes, FileNotFoundError(2, "No such file"), 0]
    )
    await lives._keep_one("redis://any")
    assert pauses == [0.2, 0.4, 0.8]
    assert caplog.text.count("cannot start a worker process") == 3


async def test_one_that_can_never_start_is_not_followed(pauses):
    await Lives([2])._keep_one("redis://any")
    assert pauses == []


@pytest.mark.parametrize(("code", "died"), [(-signal.SIGTERM, 0), (-signal.SIGKILL, 1)])
async def test_one_that_is_stopped_while_it_starts_has_not_died(code, died, caplog, pauses):
    class Stopped(Lives):
        async def _run_one(self, url):
            self.drain()
            return await super()._run_one(url)

    lives = Stopped([code])
    await lives._keep_one("redis://any")
    assert (lives.handed_back, "died" in caplog.text) == (died, bool(died))
