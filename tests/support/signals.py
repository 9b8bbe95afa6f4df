"""Signal handlers: if a test left one behind, it would determine how later tests of its process are interrupted."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def kept_handlers() -> Iterator[list[str]]:
    """Restore changed handlers at the end; afterwards the list has the names of their signals."""
    before = {number: signal.getsignal(number) for number in ENDING}
    changed: list[str] = []
    try:
        yield changed
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is not handler:
                changed.append(number.name)
                signal.signal(number, handler)
