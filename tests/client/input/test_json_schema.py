"""Answers checked against the JSON schema of their turn, in bounded time."""

from __future__ import annotations

from typing import Literal

import msgspec
import pydantic
import pytest

from antiphon.input.json_schema import MOST_REASONS, misfits
from antiphon.input.schema import output_schema

SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["a", "b"]},
        "size": {"type": "integer", "minimum": 1, "exclusiveMaximum": 9},
        "code": {"type": ["string", "null"], "pattern": "^x", "maxLength": 3},
        "list": {"type": "array", "items": {"$ref": "#/$defs/point"}, "maxItems": 2},
        "either": {"anyOf": [{"type": "boolean"}, {"const": 3}]},
    },
    "required": ["kind"],
    "additionalProperties": False,
    "$defs": {"point": {"type": "object", "required": ["x"], "properties": {"x": {"type": "number"}}}},
}


@pytest.mark.parametrize(
    ("value", "reasons"),
    [
        ({"kind": "a"}, []),
        ({"kind": "a", "size": 8.0, "code": None, "list": [{"x": 1, "y": 2}], "either": True}, []),
        ([], ["expected object - at `$`"]),
        ({}, ["'kind' is missing - at `$`"]),
        ({"kind": "c"}, ["'c' is not an allowed value - at `$.kind`"]),
        ({"kind": "a", "size": 9}, ["violates exclusiveMaximum 9 - at `$.size`"]),
        ({"kind": "a", "size": True}, ["expected integer - at `$.size`"]),
        ({"kind": "a", "size": 1.5}, ["expected integer - at `$.size`"]),
        (
            {"kind": "a", "code": "yyyy"},
            ["violates maxLength 3 - at `$.code`", "violates pattern ^x - at `$.code`"],
        ),
        ({"kind": "a", "list": [{}]}, ["'x' is missing - at `$.list[0]`"]),
        ({"kind": "a", "list": [{"x": 1}] * 3}, ["violates maxItems 2 - at `$.list`"]),
        ({"kind": "a", "either": 4}, ["matches none of the variants - at `$.either`"]),
        ({"kind": "a", "more": 1}, ["not expected - at `$.more`"]),
    ],
)
def test_a_value_is_checked_against_a_schema(value, reasons):
    assert misfits(value, SCHEMA) == reasons


def test_a_schema_that_refers_to_itself_without_end_is_not_followed_for_ever():
    assert misfits(1, {"$ref": "#"}) == ["nested too deeply - at `$`"]
    assert misfits(1, {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}) == ["nested too deeply - at `$`"]


@pytest.mark.parametrize(
    ("value", "schema", "fits"),
    [
        ([1, "a"], {"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False}, True),
        (["a", 1], {"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False}, False),
        ([1, "a", 2], {"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False}, False),
        ([1, 2], {"uniqueItems": True}, True),
        ([1, 1], {"uniqueItems": True}, False),
        ([1, 1], {"uniqueItems": False}, True),
        (0.3, {"multipleOf": 0.1}, True),
        (0.35, {"multipleOf": 0.1}, False),
        ({"a": 1}, {"minProperties": 1, "maxProperties": 1}, True),
        ({}, {"minProperties": 1}, False),
        ({"a": 1, "b": 1}, {"maxProperties": 1}, False),
        ({"a1": 1}, {"patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": False}, True),
        ({"a1": "x"}, {"patternProperties": {"^a": {"type": "integer"}}}, False),
        ({"b1": 1}, {"patternProperties": {"^a": {}}, "additionalProperties": False}, False),
        ({"abc": 1}, {"propertyNames": {"maxLength": 2}}, False),
        ("2026-02-30", {"format": "date"}, False),
        ("2026-02-28", {"format": "date"}, True),
        ("2026-02-28T10:00:00Z", {"format": "date-time"}, True),
        ("yesterday", {"format": "date-time"}, False),
        ("10:00", {"format": "time"}, True),
        ("x", {"format": "uuid"}, False),
        ("x", {"format": "one of their own"}, True),
        (3, {"format": "date", "minLength": 9, "pattern": "x", "minItems": 4}, True),
        (1, {"allOf": [{"minimum": 1}, {"maximum": 0}]}, False),
        ("x", {"not a keyword": 1}, True),
    ],
    ids=str,
)
def test_a_keyword_is_checked_where_it_applies(value, schema, fits):
    assert (misfits(value, schema) == []) is fits


class Cat(msgspec.Struct, tag="cat"):
    lives: int


class Dog(msgspec.Struct, tag="dog"):
    bark: str


class Model(pydantic.BaseModel):
    pair: tuple[int, str]
    tags: set[str] = set()
    kind: Literal["a", "b"] = "a"
    by_name: dict[str, float] = {}


@pytest.mark.parametrize(
    ("type_", "value", "fits"),
    [
        (Cat | Dog, {"value": {"type": "dog", "bark": "w"}}, True),
        (Cat | Dog, {"value": {"type": "dog", "lives": 3}}, False),
        (Model, {"pair": [1, "a"], "tags": ["x"], "by_name": {"a": 1}}, True),
        (Model, {"pair": ["a", 1]}, False),
        (Model, {"pair": [1, "a"], "tags": ["x", "x"]}, False),
        (Model, {"pair": [1, "a"], "kind": "c"}, False),
    ],
)
def test_the_schemas_of_types_are_understood(type_, value, fits):
    spec = output_schema(type_)
    assert (misfits(value, spec.whole or spec.schema) == []) is fits


def test_a_pattern_takes_time_in_proportion_to_the_text():
    assert misfits("a" * 100_000 + "!", {"pattern": "^(a+)+$"})
    assert misfits("a" * 100_000, {"pattern": "^(a+)+$"}) == []


def test_a_pattern_that_cannot_be_read_in_linear_time_is_left_to_the_callers_type():
    assert misfits("anything", {"pattern": "^(?!x)a"}) == []


def test_a_schema_whose_variants_multiply_is_given_up():
    doubling = {f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(40)}
    (reason,) = misfits(1, {"$ref": "#/$defs/a0", "$defs": {**doubling, "a40": {"type": "string"}}})
    assert "too much to check" in reason


def test_only_the_first_reasons_are_told():
    assert len(misfits(["x"] * 100, {"items": {"type": "integer"}})) == MOST_REASONS


@pytest.mark.parametrize(
    "schema",
    [
        {"minimum": "three"}, {"multipleOf": 0}, {"required": 7}, {"properties": []}, {"$ref": 7}, {"enum": 3},
        {"type": 7}, {"type": "objekt"}, {"allOf": 1},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("value", [1, {"a": 1}])
def test_a_schema_that_makes_no_sense_raises_nothing(schema, value):
    assert isinstance(misfits(value, schema), list)
