"""A gate at which a step of a script, or a tool, waits until the test goes on."""

import threading

from support.eventually import patience, wait_until_async


class Gate:
    """Lets one step of a script, or a tool, wait until the test goes on."""

    def __init__(self):
        self.reached = threading.Event()
        self.opened = threading.Event()

    async def __call__(self):
        self.reached.set()
        await wait_until_async(self.opened.is_set, timeout=20, description="the test opens the gate")

    def wait(self):
        assert self.reached.wait(patience(10))
