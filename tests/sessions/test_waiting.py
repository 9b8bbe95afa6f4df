"""Who waits for what: edits of sessions that are never idle, and calls that would wait for themselves."""

from __future__ import annotations

import threading
from contextlib import suppress

from support.eventually import wait_until, wait_until_async

from antiphon import redis_runtime
from antiphon.testing import script


class Gates:
    """A model that waits in each answer until the test lets it go on."""

    def __init__(self, count):
        self.begun = [threading.Event() for _ in range(count)]
        self.opened = [threading.Event() for _ in range(count)]
        self.script = script(*([self._wait(number), f"a{number}"] for number in range(count)))

    def _wait(self, number):
        async def wait():
            self.begun[number].set()
            await wait_until_async(self.opened[number].is_set, description=f"gate {number} opens")

        return wait


def test_an_edit_of_a_session_that_is_never_idle_goes_before_the_turn_after_next(workers_runtime, monkeypatch):
    """Whoever edits hears late of the end of each turn: the next one has begun by then, where it may."""
    gates, waited_for, ended = Gates(3), [], redis_runtime._ended

    async def late(turn, timeout=None):
        waited_for.append(turn.id)
        await ended(turn, timeout)
        with suppress(AssertionError):
            await wait_until_async(gates.begun[len(waited_for)].is_set, timeout=0.3)

    monkeypatch.setattr(redis_runtime, "_ended", late)
    workers_runtime.use(gates.script)
    session = workers_runtime.agent().session("s")
    turns = [session.submit("0")]
    message = {"role": "user", "content": "the edit"}
    thread = threading.Thread(target=session.add_message, args=(message,))
    thread.start()
    wait_until(lambda: len(waited_for) == 1, description="the edit waits for the only turn")
    turns += [session.submit("1"), session.submit("2")]
    gates.opened[0].set()
    wait_until(lambda: len(waited_for) == 2, description="the edit waits for the turn that has begun")
    gates.opened[1].set()
    gates.opened[2].set()
    thread.join(20)
    assert [turn.result(20).text for turn in turns] == ["a0", "a1", "a2"]
    assert waited_for == [turn.id for turn in turns[:2]]
    assert [message.text for message in session.messages] == ["0", "a0", "1", "a1", "the edit", "2", "a2"]
