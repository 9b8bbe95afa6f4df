"""A journal and events in memory for the agent loop, whose worker may die at any write."""

from antiphon.events import TextDelta
from antiphon_worker.loop.steps import decode_entry, encode_entry
from antiphon_worker.loop.toolbox import TurnStopped


class Crash(TurnStopped):
    """The worker dies here."""


class Journal:
    """What a turn has written, as a store keeps it. The worker dies at operation number ``crash``."""

    full = False

    def __init__(self, entries=(), *, crash=0):
        self.stored = [encode_entry(entry) for entry in entries]
        self.events = []
        self.crash = crash
        self.operations = 0

    def operation(self):
        self.operations += 1
        if self.operations == self.crash:
            raise Crash

    @property
    def entries(self):
        return [decode_entry(data) for data in self.stored]

    async def append(self, entries, events):
        self.operation()  # dies before it is stored
        self.stored += [encode_entry(entry) for entry in entries]
        self.events += events
        self.operation()  # dies before it learns that

    async def now(self):
        return 0

    async def checkpoint(self):
        self.operation()

    async def steered(self, step):
        return []

    def put(self, event):
        self.events.append(event)

    def text(self, step, text):
        self.put(TextDelta(step=step, text=text))

    async def drain(self):
        """Do nothing: there is always room."""

    def read_from(self, source):
        """Do nothing: nothing waits for what is read."""
