"""How the work for a text grows with its length: the measure for everything that reads text from outside.

Growth, because seconds depend on the machine. A text is made longer until reading it takes long enough to be measured;
then it is doubled twice. Linear work takes four times as long, quadratic work sixteen times. What takes no measurable
time for a hundred thousand signs is linear, whatever the machine.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import product

FEW = (12, 16, 20, 24, 28)  # where exponential work already shows, and still ends
MANY = 4_096
MOST = 131_072
MEASURABLE_SECONDS = 0.001
BETWEEN_LINEAR_AND_QUADRATIC = 9.0  # 4 and 16, for four times the length
TRIES = 3

Text = Callable[[int], str]
"""A text of about so many signs."""


def superlinear(read: Callable[[str], object], text: Text) -> bool:
    """Whether reading takes more than in proportion to the length of the text."""
    for size in FEW:
        if _seconds(read, text(size)) > 0.05:  # for a handful of signs
            return True
    if _seconds(read, text(MANY)) < MEASURABLE_SECONDS:  # quadratic work would be millions of steps
        return False
    return all(_ratio(read, text) > BETWEEN_LINEAR_AND_QUADRATIC for _ in range(TRIES))


def adversarial(pieces: Iterable[str], signs: Iterable[str]) -> Iterator[Text]:
    """Texts that make a reader go back: a piece once, then a piece, a sign or two again and again, and an odd end."""
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
    """Of this thread's own: what else the machine does is not counted."""
    began = time.thread_time()
    read(text)
    return time.thread_time() - began
