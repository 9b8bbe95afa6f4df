"""``WordEmbeddings``: embeddings without a model, for tests and demonstrations."""

from __future__ import annotations

from langchain_core.embeddings import Embeddings

from antiphon.memory.word_vectors import word_vector


class WordEmbeddings(Embeddings):
    """Embeds a text by its words and their trigrams. The same text has the same vector in every process.

    It ignores meaning: texts are near each other if they share words, or parts of words. Long words count more than
    short ones. ``size`` is the number of dimensions.

    >>> words = WordEmbeddings()
    >>> asked, near, far = words.embed_documents(["green tea", "I drink green tea.", "Trains run late."])
    >>> sum(a * b for a, b in zip(asked, near)) > sum(a * b for a, b in zip(asked, far))
    True
    """

    def __init__(self, size: int = 512) -> None:
        self.size = size

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors of texts.

        >>> [len(vector) for vector in words.embed_documents(["one", "two"])]
        [512, 512]
        """
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a text, of length 1.

        >>> round(sum(value * value for value in words.embed_query("one")), 6)
        1.0
        """
        return word_vector(text, self.size)

    async def aembed_query(self, text: str) -> list[float]:
        """``embed_query``, without a thread.

        >>> await words.aembed_query("one") == words.embed_query("one")
        True
        """
        return self.embed_query(text)
