"""Checks a value against a JSON schema that was given as a dictionary.

Supports the keywords of schemas for structured output: types, literals, objects, arrays, unions, references within the
schema, bounds and sizes. Other keywords (formats, conditions) are not checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, cast

__all__ = ["misfits"]

Schema = dict[str, Any]

_MOST_DEPTH = 100


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": _is_number,
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or value.is_integer()),
}
_BOUNDS: dict[str, Callable[[Any, Any], bool]] = {
    "minimum": lambda value, bound: not _is_number(value) or value >= bound,
    "maximum": lambda value, bound: not _is_number(value) or value <= bound,
    "exclusiveMinimum": lambda value, bound: not _is_number(value) or value > bound,
    "exclusiveMaximum": lambda value, bound: not _is_number(value) or value < bound,
    "minLength": lambda value, bound: not isinstance(value, str) or len(value) >= bound,
    "maxLength": lambda value, bound: not isinstance(value, str) or len(value) <= bound,
    "pattern": lambda value, bound: not isinstance(value, str) or re.search(bound, value) is not None,
    "minItems": lambda value, bound: not isinstance(value, list) or len(cast("list[Any]", value)) >= bound,
    "maxItems": lambda value, bound: not isinstance(value, list) or len(cast("list[Any]", value)) <= bound,
}


def misfits(value: Any, schema: Schema) -> list[str]:
    """Return what does not match the schema, and where. The list is empty if the value matches."""
    try:
        return list(_look(value, schema, schema, "$", 0))
    except _TooDeepError as exc:
        return [f"nested too deeply - at `{exc}`"]


class _TooDeepError(Exception):
    """The value is nested too deeply, or the schema refers to itself endlessly."""


def _look(value: Any, schema: Any, root: Schema, at: str, depth: int) -> Iterator[str]:
    if depth > _MOST_DEPTH:
        raise _TooDeepError(at)
    if not isinstance(schema, dict):
        if schema is False:
            yield f"not expected - at `{at}`"
        return
    schema = cast("Schema", schema)
    if "$ref" in schema:
        yield from _look(value, _referred(root, schema["$ref"]), root, at, depth + 1)
    for each in schema.get("allOf", []):
        yield from _look(value, each, root, at, depth + 1)
    for union in ("anyOf", "oneOf"):
        variants = schema.get(union)
        if variants and all(any(_look(value, each, root, at, depth + 1)) for each in variants):
            yield f"matches none of the variants - at `{at}`"
    yield from _look_at_itself(value, schema, at)
    if isinstance(value, dict):
        yield from _look_into_object(cast("Schema", value), schema, root, at, depth)
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _look(item, schema["items"], root, f"{at}[{index}]", depth + 1)


def _look_at_itself(value: Any, schema: Schema, at: str) -> Iterator[str]:
    kinds: list[str] = [schema["type"]] if isinstance(schema.get("type"), str) else schema.get("type", [])
    if kinds and not any(_TYPES[kind](value) for kind in kinds if kind in _TYPES):
        yield f"expected {' or '.join(kinds)} - at `{at}`"
    if ("enum" in schema and value not in schema["enum"]) or value != schema.get("const", value):
        yield f"{value!r} is not an allowed value - at `{at}`"
    for keyword, fits in _BOUNDS.items():
        if keyword in schema and not fits(value, schema[keyword]):
            yield f"violates {keyword} {schema[keyword]} - at `{at}`"


def _look_into_object(value: Schema, schema: Schema, root: Schema, at: str, depth: int) -> Iterator[str]:
    properties: Schema = schema.get("properties", {})
    for name in schema.get("required", []):
        if name not in value:
            yield f"{name!r} is missing - at `{at}`"
    for name, item in value.items():
        inner = properties.get(name, schema.get("additionalProperties", True))
        yield from _look(item, inner, root, f"{at}.{name}", depth + 1)


def _referred(root: Schema, reference: str) -> Any:
    node: Any = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        if step:
            node = node.get(step.replace("~1", "/").replace("~0", "~"), {}) if isinstance(node, dict) else {}
    return node
