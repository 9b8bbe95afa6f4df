"""The stage, where a process that runs a turn alone waits twice: at the gate ``alone`` before it claims the turn, and
at the gate ``claimed`` afterwards."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from support import stage

from antiphon_worker.process import isolated_turn as alone

here = stage.Stage(Path(os.environ["STAGE"]))


def behind(gate: str, go_on: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return a function that does the same once the gate is open."""

    async def late(*arguments: Any) -> Any:
        here.note("waits", gate=gate)
        print("what is printed goes to the log, and is no answer to the worker", flush=True)
        while not here.is_open(gate):  # noqa: ASYNC110 - the gate is a file
            await asyncio.sleep(0.01)
        return await go_on(*arguments)

    return late


alone.run_turn_alone = behind("alone", alone.run_turn_alone)
alone._run_held = behind("claimed", alone._run_held)
app = stage.app
