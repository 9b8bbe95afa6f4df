"""The memory that the code of a measurement has in use, without that of threads which other tests have left."""

import tracemalloc

from support.source_tree import ROOT

OURS = [tracemalloc.Filter(True, f"{ROOT}/{folder}/*") for folder in ("client", "worker")]
LIBRARIES = [
    tracemalloc.Filter(True, f"*/{name}")
    for name in ("asyncio/*", "contextlib.py", "redis/*", "uvicorn/*", "starlette/*")
]


def in_use(*, libraries: bool = False) -> int:
    """Return how many bytes our code has allocated since the trace began, with the ``libraries`` that it builds on."""
    found = tracemalloc.take_snapshot().filter_traces(OURS + LIBRARIES * libraries)
    return sum(one.size for one in found.statistics("filename"))
