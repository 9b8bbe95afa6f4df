"""The stage, but its processes for single turns come no further than their start until the gate ``alone`` is open."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from support import stage

__all__ = ["app"]

if "antiphon_worker.alone" in sys.orig_argv:
    here = stage.Stage(Path(os.environ["STAGE"]))
    here.note("waits", gate="alone")
    while not here.is_open("alone"):
        time.sleep(0.01)
app = stage.app
