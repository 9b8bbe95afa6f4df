"""Vectors of texts without a model, from their words and the trigrams of the words."""

from __future__ import annotations

import hashlib
import math
import re
from functools import lru_cache

_WORD = re.compile(r"\w+")
TRIGRAM_WEIGHT = 0.3


def word_vector(text: str, size: int) -> list[float]:
    """Return the vector of a text, of length 1. The same text has the same vector in every process."""
    vector = [0.0] * size
    for word in _WORD.findall(text.lower()):
        _add(vector, word, 1.0 if len(word) > 3 else 0.2)
        padded = f"^{word}$"
        for start in range(len(padded) - 2):
            _add(vector, padded[start : start + 3], TRIGRAM_WEIGHT)
    length = math.hypot(*vector)
    if not length:
        vector[0] = length = 1.0
    return [value / length for value in vector]


def _add(vector: list[float], token: str, weight: float) -> None:
    place, sign = _hashed(token)
    vector[place % len(vector)] += sign * weight


@lru_cache(maxsize=100_000)
def _hashed(token: str) -> tuple[int, int]:
    digest = int.from_bytes(hashlib.blake2b(token.encode(errors="replace"), digest_size=8).digest())
    return digest >> 1, 1 if digest & 1 else -1
