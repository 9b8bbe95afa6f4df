"""A gate at which a script step or a tool waits until the test opens it."""

import threading

from support.eventually import patience, wait_until_async


class Gate:
    """Makes a script step or a tool wait until the test sets ``opened``."""

    def __init__(self):
        self.reached = threading.Event()
        self.opened = threading.Event()

    async def __call__(self):
        self.reached.set()
        await wait_until_async(self.opened.is_set, timeout=20, description="the test opens the gate")

    def wait(self):
        assert self.reached.wait(patience(10))
