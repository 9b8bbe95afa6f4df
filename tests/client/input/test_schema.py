"""Structured output: schemas from types, values from answers."""

import contextlib
import dataclasses
import subprocess
import sys
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import InvalidOutput, UsageError
from antiphon.input.schema import NotStrict, is_strict, output_schema, parse_output, strict_schema, typed
from antiphon.model import Response


class Person(msgspec.Struct):
    """Somebody."""

    name: str
    age: Annotated[int, msgspec.Meta(ge=0, description="In years.")] = 30
    friends: list["Person"] = []


@dataclasses.dataclass
class Place:
    name: str
    kind: Literal["town", "village"] = "town"


class Row(TypedDict):
    key: str
    value: NotRequired[float]


class Model(pydantic.BaseModel):
    key_points: list[str]
    conclusion: str = pydantic.Field(max_length=20, description="In one sentence.")
    place: Place | None = None
    again: "Model | None" = None


class Cat(msgspec.Struct, tag="cat"):
    lives: int


class Dog(msgspec.Struct, tag="dog"):
    bark: str


def test_a_struct_becomes_a_strict_schema():
    spec = output_schema(Person)
    assert (spec.name, spec.strict) == ("Person", True)
    properties = {
        "name": {"type": "string"},
        "age": {"type": "integer", "description": "In years.\n\n{minimum: 0, default: 30}"},
        "friends": {
            "type": "array",
            "items": {"$ref": "#/$defs/Person"},
            "description": "{default: []}",
        },
    }
    person = {
        "type": "object",
        "properties": properties,
        "required": ["name", "age", "friends"],
        "additionalProperties": False,
        "description": "Somebody.",
    }
    assert spec.schema == {**person, "$defs": {"Person": person}}


TYPES = [
    Person,
    Place,
    Row,
    Model,
    list[Place],
    Cat | Dog,
    Person | None,
    int,
    Literal["a", "b"],
    list[Model],
]


@pytest.mark.parametrize("type_", TYPES)
def test_every_object_of_a_strict_schema_requires_all_and_allows_no_more(type_):
    spec = output_schema(type_)
    assert spec.strict
    assert spec.schema["type"] == "object"
    assert is_strict(spec.schema)
    allowed = {"type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "$ref"}

    def look(node):
        assert node.keys() <= allowed | {"description", "format", "$defs"}
        assert "$ref" not in node or node.keys() == {"$ref"}
        nodes = [*node.get("properties", {}).values(), *node.get("$defs", {}).values()]
        for inner in [*nodes, *node.get("anyOf", []), *([node["items"]] if "items" in node else [])]:
            look(inner)

    look(spec.schema)


@pytest.mark.parametrize(
    "type_",
    [dict[str, int], msgspec.defstruct("Free", [("a", dict[str, Any])]), tuple[int, str], list[Any]],
)
def test_what_strict_rules_cannot_say_is_asked_for_without_them(type_):
    spec = output_schema(type_)
    assert not spec.strict
    assert spec.schema["type"] == "object"


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (Person, '{"name":"Ann","age":3,"friends":[]}', Person("Ann", 3)),
        (Place, '{"name":"Ulm"}', Place("Ulm")),
        (Row, '{"key":"a","value":1}', {"key": "a", "value": 1.0}),
        (Model, '{"key_points":["a"],"conclusion":"b"}', Model(key_points=["a"], conclusion="b")),
        (list[Place], '{"value":[{"name":"Ulm"}]}', [Place("Ulm")]),
        (list[Place], '[{"name":"Ulm"}]', [Place("Ulm")]),
        (Cat | Dog, '{"value":{"type":"dog","bark":"w"}}', Dog("w")),
        (Person | None, '{"value":null}', None),
        (int, '{"value":3}', 3),
        (dict[str, int], '{"value":3}', {"value": 3}),
        ({"type": "object"}, '{"free":[1]}', {"free": [1]}),
        (Place, '```json\n{"name":"Ulm"}\n```', Place("Ulm")),
        (Place, '  ```\n{"name":"Ulm"}```\n', Place("Ulm")),
    ],
)
def test_answers_are_read_as_their_type(type_, text, value):
    assert parse_output(type_, text) == value


@pytest.mark.parametrize(
    ("type_", "text", "reason"),
    [
        (Person, "Ann is three.", "not JSON"),
        (Person, "", "not JSON"),
        (Person, '{"name":', "not JSON"),
        (Person, "[" * 100_000, "not JSON"),
        (Person, '{"name":"Ann","age":-1}', r"does not match Person: .* at `\$.age`"),
        (Model, '{"key_points":[1],"conclusion":"b"}', r"at `\$.key_points\[0\]`"),
        (Model, '{"key_points":[],"conclusion":"' + "b" * 30 + '"}', "at most 20 characters"),
        (list[int], '{"value":["a"]}', "does not match list"),
    ],
)
def test_an_answer_that_does_not_fit_carries_its_text(type_, text, reason):
    with pytest.raises(InvalidOutput, match=reason) as caught:
        parse_output(type_, text)
    assert caught.value.raw == text


def test_what_a_strict_schema_cannot_say_is_sent_for_the_check():
    spec = output_schema(Person)
    assert "minimum" not in spec.schema["properties"]["age"]
    assert spec.whole["properties"]["age"]["minimum"] == 0
    assert spec.whole["required"] == ["name"]
    assert not spec.wrapped
    assert output_schema({"type": "object"}).whole is None
    assert output_schema(list[Person]).wrapped


def test_a_response_without_a_type_stays_as_it_is():
    response = Response(text="no JSON", output={"a": 1}, turn_id="t", session_id="s")
    assert typed(response, None) is response
    with pytest.raises(InvalidOutput) as caught:
        typed(response, Person)
    assert (caught.value.raw, caught.value.turn_id, caught.value.session_id) == ("no JSON", "t", "s")
    assert typed(Response(text='{"name":"Ann"}', output={"name": "Ann"}), Person).output == Person("Ann")


def test_a_schema_given_as_a_dictionary_is_sent_as_it_stands():
    strict = {
        "title": "My Answer",
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": "x+"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    spec = output_schema(strict)
    assert (spec.name, spec.strict) == ("My_Answer", True)
    assert spec.schema is strict
    assert not output_schema({**strict, "required": []}).strict
    assert not output_schema(
        {key: value for key, value in strict.items() if key != "additionalProperties"}
    ).strict


def test_what_has_no_schema_is_refused_by_name():
    class Odd:
        pass

    with pytest.raises(UsageError, match="Odd"):
        output_schema(Odd)
    with pytest.raises(UsageError, match="object"):
        output_schema({"type": "array"})


def test_the_name_can_be_given_and_is_fit_for_the_services():
    assert output_schema(Place, name="place").name == "place"
    assert output_schema(int | None).name == "int_None"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": "object"},
        {"type": "object", "properties": {"a": {}}},
        {"type": "object", "properties": {"a": {"type": "array"}}},
        {"type": "object", "properties": {"a": {"type": "object", "patternProperties": {}}}},
        {"type": "object", "properties": {"a": {"not": {"type": "string"}}}},
        {"type": "object", "properties": {"a": {"allOf": [{"type": "string"}, {"type": "string"}]}}},
        {"type": "object", "properties": {"a": {"enum": [[1]]}}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/missing"}}},
    ],
)
def test_what_the_strict_subset_lacks_is_refused(schema):
    with pytest.raises(NotStrict):
        strict_schema(schema)


def test_unions_literals_and_references_are_written_in_the_strict_subset():
    schema = {
        "type": "object",
        "properties": {
            "one": {"oneOf": [{"type": "string"}, {"const": 3}]},
            "two": {"type": ["integer", "null"], "minimum": 1},
            "three": {"$ref": "#/$defs/T", "description": "Third."},
            "four": {"allOf": [{"$ref": "#/$defs/T"}]},
            "five": {"type": "string", "format": "date", "title": "Five"},
            "title": {"enum": ["a", None]},
        },
        "$defs": {"T": {"type": "boolean"}, "Unused": {"type": "string"}},
    }
    strict = strict_schema(schema)
    assert strict["properties"] == {
        "one": {"anyOf": [{"type": "string"}, {"type": "integer", "enum": [3]}]},
        "two": {"anyOf": [{"type": "integer"}, {"type": "null"}], "description": "{minimum: 1}"},
        "three": {"anyOf": [{"$ref": "#/$defs/T"}], "description": "Third."},
        "four": {"$ref": "#/$defs/T"},
        "five": {"type": "string", "format": "date"},
        "title": {"type": ["null", "string"], "enum": ["a", None]},
    }
    assert strict["$defs"] == {"T": {"type": "boolean"}}
    assert strict["required"] == list(schema["properties"])


@given(st.text())
def test_any_answer_is_read_or_refused(text):
    for type_ in (Person, list[int], Model):
        with contextlib.suppress(InvalidOutput):
            parse_output(type_, text)


def test_pydantic_is_not_imported_for_types_that_are_not_its_own():
    code = (
        "import sys, dataclasses\n"
        "from antiphon.input.schema import output_schema, parse_output\n"
        "from antiphon.tools import tool\n"
        "P = dataclasses.make_dataclass('P', [('a', int)])\n"
        "assert output_schema(P).strict and parse_output(P, '{\"a\":1}') == P(1)\n"
        "assert 'pydantic' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
