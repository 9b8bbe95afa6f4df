"""OpenAI's embeddings in the model server: word vectors, the same for the same text."""

from __future__ import annotations

import base64
import struct
from typing import Any, cast

from antiphon.memory.word_vectors import word_vector

EMBEDDINGS_PATHS = ("/v1/embeddings", "/embeddings")
DIMENSIONS = 512


def embeddings(body: dict[str, Any]) -> dict[str, Any] | None:
    """Answer a request of ``/v1/embeddings``, or return None if its input is not text. A list of numbers is text."""
    asked: Any = body.get("input")
    texts: list[Any] = [asked] if _is_text(asked) or not isinstance(asked, list) else cast("list[Any]", asked)
    if not texts or not all(map(_is_text, texts)):
        return None
    size = body.get("dimensions") or DIMENSIONS
    vectors = [word_vector(one if isinstance(one, str) else " ".join(map(str, one)), size) for one in texts]
    tokens = sum(len(one) // 4 + 1 if isinstance(one, str) else len(one) for one in texts)
    packed = body.get("encoding_format") == "base64"
    return {
        "object": "list",
        "model": body["model"],
        "data": [
            {"object": "embedding", "index": index, "embedding": _packed(vector) if packed else vector}
            for index, vector in enumerate(vectors)
        ],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _is_text(value: Any) -> bool:
    if isinstance(value, str):
        return value != ""
    numbers = cast("list[Any]", value) if isinstance(value, list) else []
    return bool(numbers) and all(type(one) is int for one in numbers)


def _packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
