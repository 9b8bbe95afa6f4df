"""Reads invalid JSON of services: lone surrogates, NaN, and values of unusual types."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from math import isfinite
from types import NoneType
from typing import Any, NewType, TypeGuard, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

S = TypeVar("S", bound=Struct)

Torn = NewType("Torn", str)
"""A piece of text that may begin or end with half a character, whose other half is in another piece."""


def read_any(data: bytes) -> Any:
    """Decode JSON that the strict decoder refuses. Raises ``ValueError`` or ``RecursionError``."""
    return json.loads(data)


def lenient(kind: type[S], value: object) -> S:
    """Return a struct of a JSON object whose fields may have unusual types, without its invalid values."""
    if not is_object(value):
        raise ValueError("an event is not a JSON object")
    found = {name: read(value[name]) for name, read in _readers(kind).items() if name in value}
    return kind(**{name: field for name, field in found.items() if field is not None})


@lru_cache
def _readers(kind: type[Struct]) -> dict[str, Callable[[Any], Any]]:
    hints = get_type_hints(kind, include_extras=True)
    return {name: _reader_of(hints[name]) for name in kind.__struct_fields__}


def _reader_of(hint: Any) -> Callable[[Any], Any]:
    """Return the reader of a field: of an object, of a list, or of text and numbers, whichever the value is."""
    if hint in _READERS:
        return _READERS[hint]
    if isinstance(hint, type) and issubclass(hint, Struct):
        return lambda value: lenient(hint, value) if is_object(value) else None
    kinds = [one for one in get_args(hint) if one is not NoneType]
    if get_origin(hint) is list:
        return lambda value: (
            [lenient(kinds[0], one) for one in value if is_object(one)] if is_list(value) else None
        )
    readers = [_reader_of(one) for one in kinds]
    return lambda value: next((found for read in readers if (found := read(value)) is not None), None)


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    """Return whether a decoded value is a JSON object."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Return whether a decoded value is a JSON list."""
    return isinstance(value, list)


def as_text(value: object) -> str | None:
    """Return text that can be encoded, numbers and booleans as text, and None for anything else."""
    text = as_torn_text(value)
    return None if text is None else valid(text)


def as_torn_text(value: object) -> str | None:
    """Do the same as ``as_text``, but keep half characters at both ends, whose other half may be in the next piece."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    return None


def as_said(value: object) -> str | None:
    """Do the same as ``as_torn_text``, and return an object as JSON: some services decode an answer that is JSON."""
    return msgspec.json.encode(_clean(value)).decode() if is_object(value) else as_torn_text(value)


def as_int(value: object) -> int | None:
    if value is None:
        return None
    if type(value) is int:
        return value if -(2**63) < value < 2**63 else None
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = float(value)
    if isinstance(value, float):
        return int(value) if abs(value) < 2**53 else None
    return value if isinstance(value, bool) else None


def as_dict(value: object) -> dict[str, Any] | None:
    """Return an object whose values can all be encoded, or None."""
    return _clean(value) if is_object(value) else None


def as_dicts(value: object) -> list[dict[str, Any]]:
    """Return the objects of a list."""
    return [_clean(entry) for entry in value if is_object(entry)] if is_list(value) else []


def as_list(value: object) -> list[Any] | None:
    """Return a list whose values can all be encoded, or None."""
    return _clean(value) if is_list(value) else None


_READERS: dict[Any, Callable[[Any], Any]] = {
    str: as_text,
    Torn: as_said,
    int: as_int,
    Any: lambda value: value,
    dict[str, Any]: as_dict,
    list[Any]: as_list,
    list[dict[str, Any]]: as_dicts,
}


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return valid(value)
    if is_object(value):
        return {valid(name): _clean(entry) for name, entry in value.items()}
    if is_list(value):
        return [_clean(entry) for entry in value]
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, int) and abs(value) >= 2**63:
        return str(value) if abs(value) < 10**40 else None
    return value


class Mending:
    """Joins pieces of text that were cut between two surrogates. A surrogate without a partner becomes U+FFFD."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = ""

    def piece(self, text: str) -> str:
        """Return the text that is complete with this piece."""
        text = self.held + text
        self.held = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self.held = text[:-1], text[-1]
        return valid(text)

    def rest(self) -> str:
        """Return the replacement of a half character whose other half never came."""
        held, self.held = self.held, ""
        return valid(held)


def valid(text: str) -> str:
    """Return text that can be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
