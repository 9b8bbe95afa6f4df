"""Measures how the work for a text grows with its length, for everything that reads text from outside.

Growth is measured because seconds depend on the machine. A text is made longer until reading it takes a measurable
time; then it is doubled twice. Linear work takes four times as long, quadratic work sixteen times. Reading that takes
no measurable time for a hundred thousand characters is linear on any machine.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import product

FEW = (12, 16, 20, 24, 28)  # lengths at which exponential work is already visible, and still ends
MANY = 4_096
MOST = 131_072
MEASURABLE_SECONDS = 0.001
BETWEEN_LINEAR_AND_QUADRATIC = 9.0  # 4 and 16, for four times the length
TRIES = 3

Text = Callable[[int], str]
"""Returns a text of about this many characters."""


def superlinear(read: Callable[[str], object], text: Text) -> bool:
    """Return whether the time to read grows faster than the length of the text."""
    for size in FEW:
        if _seconds(read, text(size)) > 0.05:  # for a few characters
            return True
    if _seconds(read, text(MANY)) < MEASURABLE_SECONDS:  # quadratic work would be millions of steps
        return False
    return all(_ratio(read, text) > BETWEEN_LINEAR_AND_QUADRATIC for _ in range(TRIES))


def adversarial(pieces: Iterable[str], signs: Iterable[str]) -> Iterator[Text]:
    """Yield texts that cause backtracking: a piece, then a piece or 1 or 2 characters repeated, and an odd end."""
    pieces, signs = list(dict.fromkeys(pieces)), list(dict.fromkeys(signs))
    pairs = [a + b for a, b in product(signs, repeat=2)]
    bodies = [(start, sign) for start in ["", *pieces, *signs] for sign in signs]
    bodies += [("", body) for body in [*pieces, *pairs]]
    for start, body in dict.fromkeys(bodies):
        for end in ("", "\0"):
            yield _repeated(start, body, end)


def _repeated(start: str, body: str, end: str) -> Text:
    return lambda size: start + body * (size // len(body) + 1) + end


def _ratio(read: Callable[[str], object], text: Text) -> float:
    size = FEW[-1]
    while _seconds(read, text(size)) < MEASURABLE_SECONDS and size < MOST:
        size *= 2
    short, long = text(size), text(4 * size)
    return min(_seconds(read, long) for _ in range(2)) / max(
        min(_seconds(read, short) for _ in range(3)), 1e-9
    )


def _seconds(read: Callable[[str], object], text: str) -> float:
    """Return the CPU seconds of this thread: other work of the machine does not count."""
    began = time.thread_time()
    read(text)
    return time.thread_time() - began
