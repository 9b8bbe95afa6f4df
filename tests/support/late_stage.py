"""The stage, but a process that is to run a turn alone claims it no sooner than the gate ``alone`` opens."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from support import stage

from antiphon_worker import alone

__all__ = ["app"]

here = stage.Stage(Path(os.environ["STAGE"]))
claim_and_run = alone.run_one_turn


async def late(*arguments: Any) -> Any:
    here.note("waits", gate="alone")
    while not here.is_open("alone"):  # noqa: ASYNC110 - the gate is a file
        await asyncio.sleep(0.01)
    return await claim_and_run(*arguments)


alone.run_one_turn = late
app = stage.app
