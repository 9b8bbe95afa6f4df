"""Words of texts, as a full-text search compares them, and the excerpt of a text that shows a match.

Case and accents are ignored. In scripts without spaces (Chinese, Japanese, Thai), each character is a word.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct

LONGEST_WORD = 100
MOST_WORDS = 32
"""The most words of a query; further ones are ignored."""
BEFORE, EXCERPT = 60, 240  # characters of an excerpt: before the match, and in all

_RUN = re.compile(r"[^\s]+")
_SINGLE = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)


class Word(NamedTuple):
    """A word and its place in the text. ``run`` numbers the stretch of text without spaces that contains it."""

    text: str
    start: int
    end: int
    run: int


class Excerpt(Struct, frozen=True):
    """A part of an excerpt. ``match`` is true for a word of the query."""

    text: str
    match: bool = False


def words_of(text: str) -> Iterator[Word]:
    """Iterate over the words of a text."""
    for number, run in enumerate(_RUN.finditer(text)):
        start = None
        for place in range(run.start(), run.end() + 1):
            sign = text[place] if place < run.end() else " "
            single = _SINGLE.match(sign) is not None
            inside = not single and unicodedata.category(sign)[0] in "LNM"
            if start is not None and not inside:
                yield from _word(text, start, place, number)
                start = None
            if single:
                yield from _word(text, place, place + 1, number)
            elif inside and start is None:
                start = place


def _word(text: str, start: int, end: int, run: int) -> Iterator[Word]:
    whole = unicodedata.normalize("NFKD", text[start:end]).casefold()
    plain = "".join(
        one for one in whole if not unicodedata.combining(one) and unicodedata.category(one)[0] in "LNM"
    )
    if plain:
        yield Word(plain[:LONGEST_WORD], start, end, run)


class Query(Struct, frozen=True):
    """A search for texts with all of these phrases. With ``prefix``, the last word matches longer words, too."""

    phrases: tuple[tuple[str, ...], ...]
    prefix: bool = True

    def finds(self, word: str) -> bool:
        """Return whether a word of a text matches the query."""
        if self.prefix and word.startswith(self.phrases[-1][-1]):
            return True
        return any(word in phrase for phrase in self.phrases)


def query_of(text: str) -> Query | None:
    """Read a query: words, and phrases in double quotes. Return None if it has no words."""
    phrases: list[tuple[str, ...]] = []
    left, prefix = MOST_WORDS, not text.rstrip().endswith('"')
    for number, part in enumerate(text.split('"')):
        runs: dict[int, list[str]] = {}
        for word in words_of(part):
            runs.setdefault(0 if number % 2 else word.run, []).append(word.text)
        for words in runs.values():
            phrases += [tuple(words[:left])] if left > 0 else []
            left -= len(words)
    return Query(tuple(phrases), prefix) if phrases else None


def excerpt_of(text: str, query: Query) -> list[Excerpt]:
    """Return the part of a text that matches the most words of the query."""
    found = [word for word in words_of(text) if query.finds(word.text)][:200]
    if not found:
        return [Excerpt(text[:EXCERPT])]
    best = max(found, key=lambda first: _together(found, first))
    start = max(0, best.start - BEFORE)
    start = 0 if start == 0 else text.find(" ", start, best.start) + 1 or start
    end = min(len(text), max(start + EXCERPT, best.end))
    parts, place = [Excerpt("…")] if start else [], start
    for word in found:
        if place <= word.start and word.end <= end:
            parts += [Excerpt(text[place : word.start]), Excerpt(text[word.start : word.end], match=True)]
            place = word.end
    parts.append(Excerpt(text[place:end] + ("…" if end < len(text) else "")))
    return [part for part in parts if part.text]


def _together(found: list[Word], first: Word) -> int:
    """Count the distinct words in the excerpt that begins with this one."""
    return len({one.text for one in found if first.start <= one.start < first.start + EXCERPT - BEFORE})
