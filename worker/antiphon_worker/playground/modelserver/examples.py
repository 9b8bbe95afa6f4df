"""Makes a value that matches a JSON schema, for requests with structured output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antiphon_worker.providers.stream.json_text import is_list


def example_of(schema: Mapping[str, Any], text: str) -> Any:
    """Return the same value every time. Strings without restrictions are ``text``."""
    return _example(schema, text, schema)


def _example(schema: Mapping[str, Any], text: str, root: Mapping[str, Any]) -> Any:
    if "$ref" in schema:
        return _example(_resolve(schema["$ref"], root), text, root)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            return _example(schema[choice][0], text, root)
    kinds = schema.get("type")
    kind = kinds[0] if is_list(kinds) else kinds
    return _of_kind(kind, schema, text, root)


def _of_kind(kind: object, schema: Mapping[str, Any], text: str, root: Mapping[str, Any]) -> Any:
    match kind:
        case "object":
            properties: Mapping[str, Any] = schema.get("properties", {})
            return {name: _example(inner, text, root) for name, inner in properties.items()}
        case "array":
            return [_example(schema.get("items", {}), text, root)] * max(1, schema.get("minItems", 1))
        case "integer" | "number":
            return schema.get("minimum", len(text.split()))
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return text


def _resolve(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Resolve ``#/$defs/Name``."""
    found: Any = root
    for step in reference.removeprefix("#/").split("/"):
        found = found[step]
    return found
