"""A time limit for code outside a test function: if it hangs, only its test fails."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def limited(what: str, seconds: int) -> Iterator[None]:
    """Raise ``TimeoutError`` in the main thread after ``seconds``."""

    def ring(*_: object) -> None:
        raise TimeoutError(f"{what} took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
