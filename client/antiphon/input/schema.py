"""JSON schemas of Python types, their strict form, and Python values from a model's answer.

A worker checks the answer against the schema; the type itself stays with the caller, who converts the answer to it.

Supported types are msgspec structs, dataclasses, TypedDicts and all other types that msgspec reads, and pydantic models
and types that contain them. pydantic is imported only for its own types. A ``dict`` is used as a JSON schema.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any, cast, get_args

import msgspec

from antiphon.errors import InvalidOutput, UsageError
from antiphon.input.request import OutputSpec
from antiphon.model import Response

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
        raise NotStrict("it allows any value")
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
        raise NotStrict("it allows any value")
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
    """Add the description, with the keywords that are not strict. A reference is wrapped: it cannot have one."""
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


WRAPPED = "value"  # the property that contains a value that is not an object
_NOT_NAME = re.compile(r"[^a-zA-Z0-9_-]+")


class Shape:
    """The JSON form of a type: its ``schema``, the ``definitions`` that the schema refers to, and ``read``.

    Raises ``TypeError`` for a type without a JSON schema.
    """

    def __init__(self, annotation: Any) -> None:
        if _is_pydantic(annotation):
            self.schema, self.definitions, self.read = _pydantic_shape(annotation)
            return
        try:
            self.schema, self.definitions, self.read = _msgspec_shape(annotation)
        except TypeError:
            if "pydantic" not in sys.modules:
                raise
            self.schema, self.definitions, self.read = _pydantic_shape(annotation)

    schema: dict[str, Any]
    definitions: dict[str, Any]
    read: Callable[[Any], Any]
    """Converts a decoded JSON value to the Python value. Raises ``ValueError`` with what does not match and
    where."""


_Shape = tuple[dict[str, Any], dict[str, Any], Callable[[Any], Any]]


def _msgspec_shape(annotation: Any) -> _Shape:
    (schema,), definitions = msgspec.json.schema_components([annotation], ref_template="#/$defs/{name}")

    def read(value: Any) -> Any:
        try:
            return msgspec.convert(value, annotation, str_keys=True)
        except msgspec.ValidationError as exc:
            try:
                return msgspec.convert(value, annotation, strict=False, str_keys=True)
            except msgspec.ValidationError:
                raise ValueError(str(exc)) from exc

    return schema, definitions, read


def _pydantic_shape(annotation: Any) -> _Shape:
    import pydantic

    try:
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(annotation)
        schema = adapter.json_schema()
    except pydantic.errors.PydanticUserError as exc:
        raise TypeError(str(exc).split("\n", 1)[0]) from exc

    def read(value: Any) -> Any:
        try:
            return adapter.validate_json(msgspec.json.encode(value))
        except pydantic.ValidationError as exc:
            raise ValueError("; ".join(_pydantic_reason(error) for error in exc.errors())) from exc

    return schema, schema.pop("$defs", {}), read


def _pydantic_reason(error: Any) -> str:
    where = "".join(f"[{at}]" if isinstance(at, int) else f".{at}" for at in error["loc"])
    return f"{error['msg']} - at `${where}`" if where else str(error["msg"])


def _is_pydantic(annotation: Any) -> bool:
    """Return True for pydantic's models and dataclasses, for its ``Field`` metadata, and for types that use them."""
    if "pydantic" not in sys.modules:
        return False
    if hasattr(annotation, "__pydantic_core_schema__") or hasattr(annotation, "__pydantic_validator__"):
        return True
    metadata = getattr(annotation, "__metadata__", ())
    if any(type(extra).__module__.partition(".")[0] == "pydantic" for extra in metadata):
        return True
    return any(_is_pydantic(arg) for arg in get_args(annotation))


def output_schema(type_: Any, *, name: str | None = None) -> OutputSpec:
    """Return the schema that a model must follow so that its answer can be read as ``type_``.

    The schema is strict (all properties required, no others allowed) if the type allows it. A free-form dictionary, a
    tuple or ``Any`` makes the whole schema non-strict. A type that is not a JSON object is wrapped into one. A
    dictionary is sent unchanged, as strict if it follows the rules. Raises ``UsageError``.
    """
    if isinstance(type_, dict):
        return _output_of_schema(cast("dict[str, Any]", type_), name)
    whole, wrapped = _whole_schema(type_)
    name = name or _name_of(type_)
    try:
        return OutputSpec(name, strict_schema(whole), strict=True, whole=whole, wrapped=wrapped)
    except NotStrict:
        return OutputSpec(name, whole, strict=False, wrapped=wrapped)


def typed(response: Response, type_: Any) -> Response:
    """Return the response with its answer read as ``type_``, or unchanged if that is None. Raises ``InvalidOutput``."""
    if type_ is None:
        return response
    try:
        return msgspec.structs.replace(response, output=parse_output(type_, response.text))
    except InvalidOutput as exc:
        exc.session_id, exc.turn_id = response.session_id or None, response.turn_id or None
        raise


def parse_output(type_: Any, text: str) -> Any:
    """Read a model's answer as ``type_``, with or without a Markdown fence. Raises ``InvalidOutput``.

    A schema that is a dictionary is not checked here, because the worker has checked it.
    """
    value = read_json(text)
    if isinstance(type_, dict):
        return value
    shape = _shape(type_)
    if _root(shape).get("type") != "object" and isinstance(value, dict) and value.keys() == {WRAPPED}:
        value = value[WRAPPED]
    try:
        return shape.read(value)
    except ValueError as exc:
        raise InvalidOutput(f"The answer does not match {_name_of(type_)}: {exc}.", raw=text) from exc


def read_json(text: str) -> Any:
    """Read an answer as JSON, with or without a Markdown fence. Raises ``InvalidOutput``."""
    try:
        return msgspec.json.decode(_unfenced(text))
    except (msgspec.DecodeError, RecursionError, UnicodeError) as exc:
        raise InvalidOutput(f"The answer is not JSON: {exc}.", raw=text) from exc


def _unfenced(text: str) -> str:
    """Return the text inside a fenced Markdown block, or the whole text if it is not one."""
    block = text.strip()
    first, _, rest = block.partition("\n")
    language = first[3:].rstrip()
    fenced = len(block) > 6 and block.startswith("```") and block.endswith("```") and "\n" in block
    return rest[:-3] if fenced and _NOT_NAME.search(language) is None else text


def _shape(type_: Any) -> Shape:
    if isinstance(type_, str | int | float | list | tuple | set):
        raise UsageError(f"schema= must be a type or a JSON schema as a dictionary, not {type_!r}.")
    try:
        return Shape(type_)
    except TypeError as exc:
        reason = str(exc).strip().rsplit("\n", 1)[-1].partition(". ")[0].rstrip(".")
        raise UsageError(f"{_name_of(type_)} cannot be used for structured output: {reason}.") from exc


def _root(shape: Shape) -> dict[str, Any]:
    """Return the schema of the type. If it is a reference, return the definition."""
    reference = shape.schema.get("$ref")
    return shape.definitions[reference.rsplit("/", 1)[-1]] if reference else shape.schema


def _whole_schema(type_: Any) -> tuple[dict[str, Any], bool]:
    """Return the schema with every constraint of the type, and whether it wraps the value into an object."""
    shape = _shape(type_)
    root = _root(shape)
    wrapped = root.get("type") != "object"
    if wrapped:
        root = {"type": "object", "properties": {WRAPPED: shape.schema}, "required": [WRAPPED]}
    return {**root, "$defs": shape.definitions} if shape.definitions else root, wrapped


def _output_of_schema(schema: dict[str, Any], name: str | None) -> OutputSpec:
    if schema.get("type") != "object" and "$ref" not in schema:
        raise UsageError("A JSON schema for structured output must have the type 'object' at its root.")
    name = _cleaned(name or str(schema.get("title") or ""))
    return OutputSpec(name, schema, strict=is_strict(schema))


def _name_of(type_: Any) -> str:
    return _cleaned(getattr(type_, "__name__", "") or str(type_))


def _cleaned(name: str) -> str:
    return _NOT_NAME.sub("_", name).strip("_")[:64] or "output"
