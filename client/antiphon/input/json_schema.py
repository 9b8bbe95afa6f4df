"""Checks a value against a JSON schema: structured output, and the arguments of tools declared by a schema.

Supports the keywords of schemas for structured output: types, literals, objects, arrays, unions, references within the
schema, bounds, sizes and the formats of ``FORMATS``. Other keywords (conditions, references to elsewhere) are not
checked. Because clients supply schemas, patterns are matched in linear time and the number of checks is limited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date, datetime, time
from functools import lru_cache
from itertools import islice
from typing import Any, cast
from uuid import UUID

Schema = dict[str, Any]

MOST_DEPTH = 100
MOST_LOOKS = 100_000
MOST_REASONS = 5


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return _is_number(value) and (isinstance(value, int) or value.is_integer())


@lru_cache(maxsize=256)
def _pattern(pattern: str) -> Any:
    """Return a linear-time matcher for the pattern, or None if it needs look-around or back-references."""
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError:
        return None


def _matches(value: str, pattern: str) -> bool:
    found = _pattern(pattern)
    return found is None or bool(found.isinstance_python(value))


def _is_multiple(value: float, step: float) -> bool:
    times = value / step
    return abs(times - round(times)) < 1e-9


def _distinct(items: list[Any]) -> bool:
    return len({repr(item) for item in items}) == len(items)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": _is_number,
    "integer": _is_whole,
}
# Keywords with a bound, by the type of value that they apply to.
_BOUNDS: dict[str, dict[str, Callable[[Any, Any], bool]]] = {
    "number": {
        "minimum": lambda value, bound: value >= bound,
        "maximum": lambda value, bound: value <= bound,
        "exclusiveMinimum": lambda value, bound: value > bound,
        "exclusiveMaximum": lambda value, bound: value < bound,
        "multipleOf": _is_multiple,
    },
    "string": {
        "minLength": lambda value, bound: len(value) >= bound,
        "maxLength": lambda value, bound: len(value) <= bound,
        "pattern": _matches,
    },
    "array": {
        "minItems": lambda value, bound: len(value) >= bound,
        "maxItems": lambda value, bound: len(value) <= bound,
        "uniqueItems": lambda value, unique: not unique or _distinct(value),
    },
    "object": {
        "minProperties": lambda value, bound: len(value) >= bound,
        "maxProperties": lambda value, bound: len(value) <= bound,
    },
}
FORMATS: dict[str, Callable[[str], Any]] = {
    "date": date.fromisoformat,
    "date-time": datetime.fromisoformat,
    "time": time.fromisoformat,
    "uuid": UUID,
}


def misfits(value: Any, schema: Schema) -> list[str]:
    """Return the first reasons why the value does not match the schema, and where. Empty if it matches.

    A keyword with an invalid value counts as not matched, except for a pattern: one that needs look-around or
    back-references, or is no pattern, counts as matched.
    """
    try:
        return list(islice(_Look(schema).at(value, schema, "$", 0), MOST_REASONS))
    except _TooMuchError as exc:
        return [str(exc)]
    except (TypeError, ValueError, AttributeError, ArithmeticError) as exc:
        return [f"the schema cannot be read: {type(exc).__name__}: {exc}"]


class _TooMuchError(Exception):
    """The value is nested too deeply, or the schema refers to itself endlessly or too often."""


class _Look:
    """One check of one value. ``root`` is the whole schema, for its references."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._looks = 0

    def at(self, value: Any, schema: Any, at: str, depth: int) -> Iterator[str]:
        self._looks += 1
        if depth > MOST_DEPTH:
            raise _TooMuchError(f"nested too deeply - at `{at}`")
        if self._looks > MOST_LOOKS:
            raise _TooMuchError(f"too much to check against this schema - at `{at}`")
        if not isinstance(schema, dict):
            if schema is False:
                yield f"not expected - at `{at}`"
            return
        schema = cast("Schema", schema)
        yield from self._joined(value, schema, at, depth)
        yield from _itself(value, schema, at)
        if isinstance(value, dict):
            yield from self._in_object(cast("Schema", value), schema, at, depth)
        elif isinstance(value, list):
            yield from self._in_list(cast("list[Any]", value), schema, at, depth)

    def _joined(self, value: Any, schema: Schema, at: str, depth: int) -> Iterator[str]:
        """Check the value against the other schemas that apply to it."""
        if "$ref" in schema:
            yield from self.at(value, _referred(self._root, schema["$ref"]), at, depth + 1)
        for each in schema.get("allOf", []):
            yield from self.at(value, each, at, depth + 1)
        for union in ("anyOf", "oneOf"):
            variants = schema.get(union)
            if variants and all(any(self.at(value, each, at, depth + 1)) for each in variants):
                yield f"matches none of the variants - at `{at}`"

    def _in_object(self, value: Schema, schema: Schema, at: str, depth: int) -> Iterator[str]:
        properties: Schema = schema.get("properties", {})
        patterns: Schema = schema.get("patternProperties", {})
        for name in schema.get("required", []):
            if name not in value:
                yield f"{name!r} is missing - at `{at}`"
        for name, item in value.items():
            if "propertyNames" in schema:
                yield from self.at(name, schema["propertyNames"], at, depth + 1)
            inner = [properties[name]] if name in properties else []
            inner += [each for pattern, each in patterns.items() if _matches(name, pattern)]
            for each in inner or [schema.get("additionalProperties", True)]:
                yield from self.at(item, each, f"{at}.{name}", depth + 1)

    def _in_list(self, value: list[Any], schema: Schema, at: str, depth: int) -> Iterator[str]:
        first: list[Any] = schema.get("prefixItems", [])
        for index, item in enumerate(value):
            inner = first[index] if index < len(first) else schema.get("items", True)
            yield from self.at(item, inner, f"{at}[{index}]", depth + 1)


def _itself(value: Any, schema: Schema, at: str) -> Iterator[str]:
    kinds: list[str] = [schema["type"]] if isinstance(schema.get("type"), str) else schema.get("type", [])
    if kinds and not any(_TYPES[kind](value) for kind in kinds if kind in _TYPES):
        yield f"expected {' or '.join(kinds)} - at `{at}`"
    if ("enum" in schema and value not in schema["enum"]) or value != schema.get("const", value):
        yield f"{value!r:.80} is not an allowed value - at `{at}`"
    for kind, bounds in _BOUNDS.items():
        if bounds.keys().isdisjoint(schema) or not _TYPES[kind](value):
            continue
        for keyword, fits in bounds.items():
            if keyword in schema and not fits(value, schema[keyword]):
                yield f"violates {keyword} {schema[keyword]} - at `{at}`"
    if isinstance(value, str) and not _has_format(value, schema.get("format")):
        yield f"is no {schema['format']} - at `{at}`"


def _has_format(value: str, name: Any) -> bool:
    try:
        FORMATS.get(name, str)(value)
    except ValueError:
        return False
    return True


def _referred(root: Schema, reference: str) -> Any:
    node: Any = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        if step:
            node = node.get(step.replace("~1", "/").replace("~0", "~"), {}) if isinstance(node, dict) else {}
    return node
