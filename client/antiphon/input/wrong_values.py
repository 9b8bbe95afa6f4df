"""Describes values that do not fit their type: what was expected, what was found, and what to do."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any

import msgspec
from msgspec.inspect import LiteralType, Metadata, StructType, UnionType, type_info

KINDS = {
    "str": "text", "int": "a whole number", "float": "a number", "bool": "true or false", "array": "a list",
    "object": "an object", "null": "null",
}  # fmt: skip
FIELD = re.compile(r"Object (contains unknown|missing required) field `(.*)`")
EXPECTED = re.compile(r"Expected `([\w |]+)`(?:, got `(\w+)`)?(.*)")
ALIKE = 0.7  # as difflib measures it
BOUNDS = {">=": "of at least", "<=": "of at most", ">": "above", "<": "below"}


def wrong_value(error: msgspec.ValidationError, kind: Any) -> tuple[str, str]:
    """Return a sentence about a value that does not fit a type, and the field of the body that caused the error."""
    text, _, place = str(error).partition(" - at `")
    path = re.sub(r"^(?:key in )?\$\.?", "", place.rstrip("`"))
    if match := FIELD.fullmatch(text):
        name = f"{path}.{match[2]}" if path else match[2]
        if match[1] == "missing required":
            return f"The field {name!r} is missing: add it.", _first(name)
        known = _fields(kind, path)
        near = get_close_matches(match[2], known, 1, ALIKE)
        advice = f"did you mean {near[0]!r}?" if near else f"the fields are {', '.join(sorted(known))}."
        return f"The field {name[:100]!r} is unknown: {advice}", _first(name)
    subject = path or "The body"
    if match := EXPECTED.fullmatch(text):
        wanted = " or ".join(KINDS.get(one, one) for one in match[1].split(" | "))
        found = f", not {KINDS.get(match[2], match[2])}" if match[2] else ""
        return f"{subject} must be {wanted}{_bound(match[3])}{found}.", _first(path)
    found = re.sub(r"^Invalid (?:enum )?value ", "", text)
    values = ", ".join(str(one) for one in _values(_at(kind, path)))
    return f"{subject} must be {f'one of {values}' if values else 'a valid value'}, not {found}.", _first(
        path
    )


def _first(path: str) -> str:
    return re.split(r"[.\[]", path)[0]


def _bound(text: str) -> str:
    """Return the limit of a value in words."""
    words = text.split()
    of = " with a length" if words[:2] == ["of", "length"] else ""
    sign, number = [*words, "", ""][2 * bool(of) :][:2]
    return f"{of} {BOUNDS[sign]} {number.removesuffix('.0')}" if sign in BOUNDS else text


def _fields(kind: Any, path: str) -> list[str]:
    return [
        field.encode_name for one in _at(kind, path) if isinstance(one, StructType) for field in one.fields
    ]


def _values(kinds: list[Any]) -> list[Any]:
    return [value for one in kinds if isinstance(one, LiteralType) for value in one.values]


def _at(kind: Any, path: str) -> list[Any]:
    """Return the types of the value at a path of fields, as far as these are structs."""
    found = _plain(type_info(kind))
    for name in filter(None, path.split(".")):
        found = [
            part
            for one in found
            if isinstance(one, StructType)
            for field in one.fields
            if field.encode_name == name
            for part in _plain(field.type)
        ]
    return found


def _plain(kind: Any) -> list[Any]:
    """Return the types of a union, without their descriptions."""
    if isinstance(kind, Metadata):
        return _plain(kind.type)
    if isinstance(kind, UnionType):
        return [part for one in kind.types for part in _plain(one)]
    return [kind]
