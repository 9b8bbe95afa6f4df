"""``WordEmbeddings``: embeddings without a model, for tests and demonstrations."""

from __future__ import annotations

import hashlib
import math
import re
from functools import lru_cache

from langchain_core.embeddings import Embeddings

__all__ = ["WordEmbeddings"]

_WORD = re.compile(r"\w+")
TRIGRAM_WEIGHT = 0.3


class WordEmbeddings(Embeddings):
    """Embeds a text by its words and their trigrams. The same text has the same vector, in every process.

    It knows no meaning: texts are near each other if they share words, or parts of words. Rare words count more than
    short ones. ``size`` is the number of dimensions.

    >>> words = WordEmbeddings()
    >>> asked, near, far = words.embed_documents(["green tea", "I drink green tea.", "Trains run late."])
    >>> sum(a * b for a, b in zip(asked, near)) > sum(a * b for a, b in zip(asked, far))
    True
    """

    def __init__(self, size: int = 512) -> None:
        self.size = size

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors of these texts.

        >>> [len(vector) for vector in words.embed_documents(["one", "two"])]
        [512, 512]
        """
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a text, of length 1.

        >>> round(sum(value * value for value in words.embed_query("one")), 6)
        1.0
        """
        vector = [0.0] * self.size
        for word in _WORD.findall(text.lower()):
            self._add(vector, word, 1.0 if len(word) > 3 else 0.2)
            padded = f"^{word}$"
            for start in range(len(padded) - 2):
                self._add(vector, padded[start : start + 3], TRIGRAM_WEIGHT)
        length = math.sqrt(sum(value * value for value in vector))
        if not length:
            vector[0] = length = 1.0
        return [value / length for value in vector]

    def _add(self, vector: list[float], token: str, weight: float) -> None:
        place, sign = _hashed(token)
        vector[place % self.size] += sign * weight


@lru_cache(maxsize=100_000)
def _hashed(token: str) -> tuple[int, int]:
    digest = int.from_bytes(hashlib.blake2b(token.encode(), digest_size=8).digest())
    return digest >> 1, 1 if digest & 1 else -1
