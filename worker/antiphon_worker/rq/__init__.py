"""Integration with RQ: jobs that its tools put into our queues, and our workers in those tools."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """``Worker``, for ``rq worker --worker-class antiphon_worker.rq.Worker``: see ``antiphon_worker.jobs``."""
    if name != "Worker":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("antiphon_worker.jobs").TurnWorker
