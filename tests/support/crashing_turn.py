"""A turn whose worker dies at a chosen write to its journal, and which is then repeated until it ends."""

from __future__ import annotations

from support.journals import Crash, Journal

from antiphon.ext.turns import TurnFunction
from antiphon.hooks import hooks_of
from antiphon.input.values import now_ms
from antiphon.model import Decision, Message, Wait
from antiphon.testing import script, tool_call
from antiphon.tools import Context
from antiphon.tools.threads import Threads
from antiphon_worker.loop.function import run_function
from antiphon_worker.loop.hooks import HookedProvider, Hooks
from antiphon_worker.loop.input import LoopInput
from antiphon_worker.loop.loop import LoopResult, run_loop
from antiphon_worker.loop.steps import DurableResult
from antiphon_worker.loop.toolbox import ToolBox
from antiphon_worker.providers.scripted import ScriptedProvider


class Turn(Journal):
    """A turn as a store keeps it. It dies at the operation with the number ``crash_at``, before or after a write."""

    def __init__(self, *tools, lines=None, function=None, crash_at=0, hooks=()):
        super().__init__(crash=crash_at)
        self.tools = tools
        self.lines = lines or script([tool_call(one.name) for one in tools], "Done.")
        self.function = function
        self.decisions: dict[str, Decision] = {}
        self.hooks = hooks_of(hooks)
        self.waited = []  # the waits for which it was suspended
        self.sent = {}  # the data of events by name

    async def now(self):
        return now_ms()

    async def checkpoint(self):
        pass

    def text(self, step, text):
        pass

    async def attempt(self):
        inp, context = (
            LoopInput("any", new_messages=[Message.user("Go")], tools=self.tools),
            Context("s", "t"),
        )
        if self.hooks:
            inp.hooks = Hooks(self.hooks, Threads(), context, "support")
        if self.function is not None:
            function = TurnFunction(self.function)
            return await run_function(function, inp, ToolBox(), self, self, context, self.decisions)
        provider = ScriptedProvider(self.lines)
        if inp.hooks is not None:
            provider = HookedProvider(provider, inp.hooks, inp.meter)
        return await run_loop(provider, inp, ToolBox(), self, self, context, self.decisions)

    async def run(self):
        """Attempt the turn until it ends. Whatever it waits for happens immediately."""
        while True:
            try:
                found = await self.attempt()
            except Crash:
                continue
            if isinstance(found, LoopResult):
                return found
            self.waited += found.calls
            self.decisions = {
                one.id if isinstance(one, Wait) else one.call_id: self._decided(one) for one in found.calls
            }

    def _decided(self, one):
        if isinstance(one, Wait) and one.event in self.sent:
            got = {"position": one.after + 1, "data": self.sent[one.event]}
            return Decision("", "approve", arguments=got)
        return Decision("", "approve", by="ada")

    def recorded(self, kind=DurableResult):
        return [entry.name for entry in self.entries if isinstance(entry, kind)]
