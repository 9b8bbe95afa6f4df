"""The OpenAPI document, made from the operations and the structs of their bodies."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import msgspec

from antiphon.events import KnownEvent
from antiphon_gateway.http.operations import Operation
from antiphon_gateway.interface.bodies import REF
from antiphon_gateway.problems import Problem

BINARY = {"type": "string", "format": "binary"}


def openapi(operations: Iterable[Operation]) -> dict[str, Any]:
    """Return the document that describes these operations (OpenAPI 3.1)."""
    known = list(operations)
    types = [kind for one in known for kind in (one.query, one.body, one.answer) if kind is not None]
    shapes, components = msgspec.json.schema_components([*types, Problem, KnownEvent], ref_template=REF)
    schemas = dict(zip(map(repr, types), shapes, strict=False))
    components["Event"] = shapes[-1]
    paths: dict[str, dict[str, Any]] = {}
    for one in known:
        paths.setdefault(one.route, {})[one.method.lower()] = _operation(one, schemas, components)
    for kind in {one.query for one in known if one.query is not None}:
        del components[kind.__name__]  # they are parameters
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Antiphon",
            "version": version("antiphon"),
            "description": "Sessions of turns between users and language models.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key, or a JSON web token.",
                },
                "stream": {
                    "type": "apiKey",
                    "in": "query",
                    "name": "token",
                    "description": "For streams only.",
                },
            },
        },
    }


def _operation(one: Operation, schemas: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    summary, _, description = one.doc.partition("\n")
    found: dict[str, Any] = {"operationId": one.name, "summary": summary.rstrip(".")}
    if description.strip():
        found["description"] = description.strip()
    parameters = [
        _parameter(name, "path", {"type": "string"}, True) for name in re.findall(r"{(\w+)}", one.route)
    ]
    if one.query is not None:
        shape = components[one.query.__name__]
        parameters += [
            _parameter(
                name + "[]" * (schema.get("type") == "array"),
                "query",
                schema,
                name in shape.get("required", ()),
            )
            for name, schema in shape["properties"].items()
        ]
    if one.streams:
        parameters.append(_parameter("Last-Event-ID", "header", {"type": "string"}, False))
    if one.method == "POST" and one.body is not None:
        parameters.append(_parameter("Idempotency-Key", "header", {"type": "string"}, False))
    if parameters:
        found["parameters"] = parameters
    if one.body is not None:
        found["requestBody"] = {"required": True, "content": _json(schemas[repr(one.body)])}
    if one.content == "body":
        parts = {"type": "object", "properties": {"file": BINARY}}
        forms = {"*/*": {"schema": BINARY}, "multipart/form-data": {"schema": parts}}
        found["requestBody"] = {"required": True, "content": forms}
    found["responses"] = {str(one.status): _answer(one, schemas), "default": _problem()}
    found["security"] = [] if one.right is None else [{"key": []}, *([{"stream": []}] if one.streams else [])]
    return found


def _answer(one: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    if one.streams:
        text = "Server-sent events: the id is the event's `seq`, the data is an `Event`."
        return {"description": text, "content": {"text/event-stream": {"schema": {"type": "string"}}}}
    if one.content == "answer":
        return {"description": "The content.", "content": {"*/*": {"schema": BINARY}}}
    if one.answer is None:
        return {"description": "Done."}
    return {"description": "The answer.", "content": _json(schemas[repr(one.answer)])}


def _problem() -> dict[str, Any]:
    schema = {"$ref": REF.format(name="Problem")}
    return {"description": "A problem.", "content": {"application/problem+json": {"schema": schema}}}


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _parameter(name: str, where: str, schema: Any, required: bool) -> dict[str, Any]:
    return {"name": name, "in": where, "required": required, "schema": schema}
