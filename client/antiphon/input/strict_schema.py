"""Strict JSON schemas: the subset of JSON schema that model services can enforce while they generate.

Each object lists all its properties, requires them and allows no others. Keywords that some services do not accept
(bounds, patterns, defaults) move into the description, where the model still reads them. The value is always checked
against the type afterwards.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

__all__ = ["NotStrict", "is_strict", "strict_schema"]

Schema = dict[str, Any]

FORMATS = frozenset({"date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
BOUNDS = (
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
)
SIZES = ("minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties")
HINTS = (*BOUNDS, *SIZES, "pattern", "format", "contentEncoding", "default")
SILENT = frozenset(
    {"title", "examples", "deprecated", "readOnly", "writeOnly", "discriminator", "$schema", "$id"}
)
UNIONS = frozenset({"anyOf", "oneOf", "allOf"})
OBJECTS = frozenset({"properties", "required", "additionalProperties"})
STRUCTURE = UNIONS | OBJECTS | {"type", "enum", "const", "description", "items", "$ref", "$defs"}
TYPE_NAMES: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}


class NotStrict(ValueError):
    """The schema cannot be written in the strict subset."""


def strict_schema(schema: Schema) -> Schema:
    """Return the schema in its strict form. Raises ``NotStrict`` if it has none."""
    definitions: Schema = schema.get("$defs", {})
    strict = _node({key: value for key, value in schema.items() if key != "$defs"})
    if strict.get("type") != "object":
        raise NotStrict("the root is not an object")
    used = _reachable(strict, {name: _node(definition) for name, definition in definitions.items()})
    return {**strict, "$defs": used} if used else strict


def is_strict(schema: Any) -> bool:
    """Return True if a schema already follows the strict rules for objects."""
    if not isinstance(schema, dict):
        return False
    schema = cast("Schema", schema)
    inner = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
    inner += [variant for union in UNIONS for variant in schema.get(union, [])]
    if schema.get("type") == "array":
        inner.append(schema.get("items"))
    if schema.get("type") == "object":
        closed = schema.get("additionalProperties") is False
        if not closed or set(schema.get("required", [])) != set(schema.get("properties", {})):
            return False
    return all(is_strict(node) for node in inner)


def _node(schema: Any) -> Schema:
    if not isinstance(schema, dict) or not schema:
        raise NotStrict("anything is allowed")
    schema = cast("Schema", schema)
    unknown = schema.keys() - STRUCTURE - SILENT - set(HINTS)
    if unknown:
        raise NotStrict(f"{', '.join(sorted(unknown))} cannot be expressed")
    return _described(_structure(schema), schema)


def _structure(schema: Schema) -> Schema:
    if "$ref" in schema:
        return {"$ref": schema["$ref"]}
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return {"anyOf": [_node(variant) for variant in schema[union]]}
    if "allOf" in schema:
        if len(schema["allOf"]) != 1:
            raise NotStrict("allOf cannot be expressed")
        return _node(schema["allOf"][0])
    if "enum" in schema or "const" in schema:
        return _literal(schema)
    kind = schema.get("type")
    if isinstance(kind, list):
        return {"anyOf": [_structure({**schema, "type": one}) for one in cast("list[str]", kind)]}
    if kind == "object":
        return _object(schema)
    if kind == "array":
        return {"type": "array", "items": _node(schema.get("items"))}
    if not isinstance(kind, str):
        raise NotStrict("anything is allowed")
    return {"type": kind, "format": schema["format"]} if schema.get("format") in FORMATS else {"type": kind}


def _literal(schema: Schema) -> Schema:
    values: list[Any] = schema["enum"] if "enum" in schema else [schema["const"]]
    kinds = sorted({TYPE_NAMES.get(cast("type[Any]", type(value)), "") for value in values})
    if "" in kinds or not values:
        raise NotStrict("a literal is not text, a number, a boolean or null")
    return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": list(values)}


def _object(schema: Schema) -> Schema:
    if "properties" not in schema:
        raise NotStrict("a dictionary with free keys")
    properties = {name: _node(value) for name, value in schema["properties"].items()}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _described(strict: Schema, schema: Schema) -> Schema:
    """Add the description and the keywords that are not strict. A reference is wrapped, because it cannot have
    one."""
    hints = [
        f"{key}: {_json(schema[key])}"
        for key in HINTS
        if schema.get(key) is not None and not (key == "format" and "format" in strict)
    ]
    texts = [schema.get("description"), f"{{{', '.join(hints)}}}" if hints else None]
    description = "\n\n".join(text for text in texts if text)
    if not description:
        return strict
    if "$ref" in strict:
        strict = {"anyOf": [strict]}
    if "description" in strict:
        description = f"{strict['description']}\n\n{description}"
    return {**strict, "description": description}


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _reachable(root: Schema, definitions: Schema) -> Schema:
    """Return the definitions that the root refers to, directly or indirectly, in their original order."""
    used: set[str] = set()
    waiting = _references(root)
    while waiting:
        name = waiting.pop()
        if name not in used:
            if name not in definitions:
                raise NotStrict(f"there is no definition {name}")
            used.add(name)
            waiting |= _references(definitions[name])
    return {name: definition for name, definition in definitions.items() if name in used}


def _references(node: Any) -> set[str]:
    if isinstance(node, dict):
        found = {name for value in cast("Schema", node).values() for name in _references(value)}
        reference = cast("Schema", node).get("$ref")
        return found | {reference.rsplit("/", 1)[-1]} if isinstance(reference, str) else found
    if isinstance(node, list):
        return {name for value in cast("list[Any]", node) for name in _references(value)}
    return set()
