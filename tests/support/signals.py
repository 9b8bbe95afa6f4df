"""Handlers of signals: one that a test leaves behind would decide how later tests of its process are interrupted."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def kept_handlers() -> Iterator[list[str]]:
    """Put back the handlers that have changed at the end; the list names their signals afterwards."""
    before = {number: signal.getsignal(number) for number in ENDING}
    changed: list[str] = []
    try:
        yield changed
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is not handler:
                changed.append(number.name)
                signal.signal(number, handler)
