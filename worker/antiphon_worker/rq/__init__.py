"""Integration with RQ: jobs that its tools put into our queues, and our workers in those tools."""

from __future__ import annotations

import importlib
from typing import Any

PUBLIC = {
    "Worker": "antiphon_worker.jobs:TurnWorker",
    "CellConnection": "antiphon_worker.rq.cell_connection:CellConnection",
}
"""The classes for RQ's ``--worker-class antiphon_worker.rq.Worker`` and, on a cluster, ``--connection-class``."""


def __getattr__(name: str) -> Any:
    """Return one of ``PUBLIC``, imported on first use."""
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = PUBLIC[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
