"""The stage, whose workers die ``JOB_DEATHS`` times while they read a job that is not a turn yet."""

import os
import signal
from typing import Any

from support import stage

from antiphon_worker.rq import foreign_jobs as foreign

app = stage.app
_submit_job = foreign.submit_job


async def _die_at_first(*arguments: Any) -> None:
    here = stage.Stage(stage.Path(os.environ["STAGE"]))
    if len(here.notes("dies")) < int(os.environ["JOB_DEATHS"]):
        here.note("dies", worker=os.environ["ANTIPHON_WORKER_NAME"])
        os.kill(os.getpid(), signal.SIGKILL)
    await _submit_job(*arguments)


foreign.submit_job = _die_at_first
