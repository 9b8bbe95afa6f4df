"""Converts what a tool, or the caller in its place, returns to what a model is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from antiphon.errors import ToolRaised
from antiphon.model import File, Image, Text

__all__ = ["content_of", "plain_value"]


def content_of(value: Any) -> str | list[Text | Image | File]:
    """Return the content for the model from a returned value. Raises ``ToolRaised`` if it has no JSON form."""
    if value is None:
        return ""
    if type(value) is str:
        return value
    if isinstance(value, Text | Image | File):
        return [value]
    if isinstance(value, list | tuple) and value:
        parts = list(cast("list[Any]", value))
        if all(isinstance(part, Text | Image | File) for part in parts):
            return parts
    try:
        plain = msgspec.to_builtins(value, enc_hook=plain_value, str_keys=True)
        return plain if isinstance(plain, str) else msgspec.json.encode(plain).decode()
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as exc:
        kind = type(cast("object", value)).__name__
        raise ToolRaised(f"The tool returned a {kind} that cannot be written as JSON: {exc}.") from exc


def plain_value(value: Any) -> Any:
    """Convert types that msgspec does not encode: pydantic models and subclasses of plain types."""
    if callable(dump := getattr(value, "model_dump", None)):
        return dump(mode="json")
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int | float):
        return value + 0
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    if isinstance(value, list):
        return list(cast("list[Any]", value))
    raise TypeError(f"a {type(value).__name__} has no JSON form")
