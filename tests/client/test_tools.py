"""Functions become tools: schema from the signature, arguments by it, results for the model."""

import dataclasses
import datetime as dt
import enum
import functools
import uuid
from typing import Annotated, Any, Literal, NotRequired, Optional, TypedDict

import msgspec
import pydantic
import pytest

from antiphon.errors import InvalidTool, ToolArgumentsInvalid, ToolRaised
from antiphon.model import File, Image, Text
from antiphon.tools import Context, Tool, tool
from antiphon.tools.functions import read_docstring

HERE = Context("session", "turn", "call")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0


class Filter(TypedDict):
    field: str
    value: NotRequired[int]


class Line(msgspec.Struct):
    start: Point
    end: Point


class Address(pydantic.BaseModel):
    street: str = pydantic.Field(min_length=1)
    zip_code: int


def called(made, **arguments):
    """What the function returns for the arguments of a model."""
    args, kwargs = made.bind(arguments, HERE)
    return made.function(*args, **kwargs)


def schema_of(annotation):
    def function(value): ...

    function.__annotations__["value"] = annotation
    return tool(function).parameters["properties"]["value"]


def test_the_signature_becomes_the_schema_and_the_docstring_the_description():
    @tool
    def get_weather(city: str, unit: Literal["c", "f"] = "c") -> str:
        """Say what the weather is like.

        Args:
            city: The city's name,
                in English.
            unit: Celsius or Fahrenheit.

        Returns:
            One sentence.
        """
        return f"{city} {unit}"

    assert get_weather.name == "get_weather"
    assert get_weather.description == "Say what the weather is like.\n\nReturns:\n    One sentence."
    assert get_weather.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "The city's name, in English."},
            "unit": {"enum": ["c", "f"], "description": "Celsius or Fahrenheit.", "default": "c"},
        },
        "required": ["city"],
        "additionalProperties": False,
    }


def test_a_tool_is_still_the_function():
    @tool
    def double(n: int) -> int:
        "Twice as much."
        return 2 * n

    assert double(4) == 8
    assert double.__name__ == "double"
    assert double.__doc__ == "Twice as much."


async def test_an_async_tool_is_still_awaited():
    @tool(timeout=3)
    async def double(n: int) -> int:
        return 2 * n

    assert await double(4) == 8
    assert double.is_async
    assert double.timeout == 3


def test_the_decorator_takes_what_the_function_does_not_say():
    @tool(name="find", description="Finds things.", timeout=1.5, at_most_once=True)
    def search(text: str) -> str:
        "Something else."
        return text

    assert isinstance(search, Tool)
    assert (search.name, search.description, search.timeout, search.at_most_once) == (
        "find",
        "Finds things.",
        1.5,
        True,
    )


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (bool, {"type": "boolean"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Literal["a", 1], {"enum": [1, "a"]}),
        (Annotated[int, msgspec.Meta(ge=1)], {"type": "integer", "minimum": 1}),
        (Annotated[int, pydantic.Field(ge=1)], {"type": "integer", "minimum": 1}),
        (Any, {}),
    ],
)
def test_types_have_their_schema(annotation, schema):
    made = {key: value for key, value in schema_of(annotation).items() if key != "title"}
    assert made == schema


def test_types_with_fields_are_defined_once():
    @tool
    def draw(line: Line, points: list[Point], filter_: Filter, address: Address) -> str:
        return ""

    assert set(draw.parameters["$defs"]) == {"Line", "Point", "Filter", "Address"} - {"Address"}
    assert draw.parameters["properties"]["line"] == {"$ref": "#/$defs/Line"}
    assert draw.parameters["properties"]["address"]["properties"]["zip_code"]["type"] == "integer"


@pytest.mark.parametrize(
    ("annotation", "given", "value"),
    [
        (float, 1, 1.0),
        (int, "5", 5),
        (int, 5.0, 5),
        (str | int, "5", "5"),
        (bool, "true", True),
        (Colour, "red", Colour.RED),
        (Point, {"x": 1}, Point(1.0)),
        (Filter, {"field": "a"}, {"field": "a"}),
        (Line, {"start": {"x": 1}, "end": {"x": 2, "y": 3}}, Line(Point(1.0), Point(2.0, 3.0))),
        (Address, {"street": "a", "zip_code": "12"}, Address(street="a", zip_code=12)),
        (
            list[Address] | None,
            [{"street": "a", "zip_code": 1}],
            [Address(street="a", zip_code=1)],
        ),
        (dict[int, str], {"1": "a"}, {1: "a"}),
        (set[int], [1, 2, 1], {1, 2}),
        (tuple[int, str], [1, "a"], (1, "a")),
        (dt.date, "2024-02-29", dt.date(2024, 2, 29)),
        (uuid.UUID, "12345678-1234-5678-1234-567812345678", uuid.UUID("12345678123456781234567812345678")),
        (Any, {"free": [1]}, {"free": [1]}),
        (int | None, None, None),
    ],
)
def test_arguments_are_converted_to_their_types(annotation, given, value):
    def function(value):
        return value

    function.__annotations__["value"] = annotation
    assert called(tool(function), value=given) == value


@pytest.mark.parametrize(
    ("annotation", "given", "reason"),
    [
        (int, "many", "Expected `int`, got `str`"),
        (list[int], [1, None], r"at `\$\[1\]`"),
        (Colour, "green", "'green'"),
        (Line, {"start": {"x": 1}}, "missing required field `end`"),
        (Address, {"street": "", "zip_code": 1}, r"at `\$.street`"),
        (Literal["a", "b"], "c", "'c'"),
        (Annotated[int, pydantic.Field(ge=1)], 0, "greater than or equal to 1"),
    ],
)
def test_arguments_that_do_not_fit_say_where_and_why(annotation, given, reason):
    def function(value):
        return value

    function.__annotations__["value"] = annotation
    with pytest.raises(ToolArgumentsInvalid, match=reason) as caught:
        called(tool(function), value=given)
    assert "'value'" in str(caught.value)


def test_defaults_stay_with_the_function_and_show_in_the_schema():
    @tool
    def page(at: Point = Point(1, 2), size: int = 10, after: object | None = None) -> tuple:  # noqa: B008
        return at, size, after

    properties = page.parameters["properties"]
    assert properties["size"]["default"] == 10
    assert properties["at"]["default"] == {"x": 1, "y": 2}
    assert page.parameters["required"] == []
    assert called(page, size=3) == (Point(1, 2), 3, None)


def test_a_default_that_json_cannot_say_is_left_out():
    marker = object()

    @tool
    def page(after: Any = marker) -> bool:
        return after is marker

    assert page.parameters["properties"]["after"] == {}
    assert called(page) is True


@pytest.mark.parametrize("annotation", [Context, Context | None, Optional[Context]])  # noqa: UP045
def test_the_context_is_filled_and_not_offered(annotation):
    def who(name, here=None):
        return f"{name} in {here.session_id}"

    who.__annotations__.update(name=str, here=annotation)
    made = tool(who)
    assert list(made.parameters["properties"]) == ["name"]
    assert called(made, name="Ann") == "Ann in session"
    with pytest.raises(ToolArgumentsInvalid, match="no argument 'here'"):
        called(made, name="Ann", here={"session_id": "other"})


def test_keyword_only_and_positional_only_parameters_are_filled():
    @tool
    def add(a: int, /, b: int, *, c: int = 5) -> tuple:
        return a, b, c

    assert called(add, b=2, a=1) == (1, 2, 5)


def test_null_for_an_argument_with_a_default_means_the_default():
    @tool
    def page(size: int = 10, after: str | None = "x") -> tuple:
        return size, after

    assert called(page, size=None, after=None) == (10, None)


def test_a_positional_default_is_used_when_a_later_one_is_given():
    @tool
    def add(a: int = 1, b: int = 2, /) -> tuple:
        return a, b

    assert called(add, b=5) == (1, 5)


class Shop:
    def __init__(self, owner):
        self.owner = owner

    @tool
    def price(self, item: str) -> str:
        "What an item costs."
        return f"{item} at {self.owner}"

    def plain(self, item: str) -> str:
        return f"{item} of {self.owner}"

    @staticmethod
    @tool
    def open(day: str) -> str:
        return day


def test_methods_belong_to_their_instance():
    ann, bob = Shop("Ann"), Shop("Bob")
    assert list(ann.price.parameters["properties"]) == ["item"]
    assert ann.price.description == "What an item costs."
    assert called(ann.price, item="tea") == "tea at Ann"
    assert bob.price("tea") == "tea at Bob"
    assert called(tool(ann.plain), item="tea") == "tea of Ann"
    assert called(Shop.open, day="Monday") == "Monday"


def test_a_method_without_its_instance_says_so():
    with pytest.raises(ToolArgumentsInvalid, match="method"):
        Shop.price.bind({"item": "tea"}, HERE)


def test_what_a_partial_has_bound_is_not_offered():
    def send(to: str, text: str, *, urgent: bool = False) -> tuple:
        "Send a message."
        return to, text, urgent

    made = tool(functools.partial(send, "ann", urgent=True))
    assert list(made.parameters["properties"]) == ["text"]
    assert (made.name, made.description) == ("send", "Send a message.")
    assert called(made, text="hi") == ("ann", "hi", True)


def test_an_object_that_can_be_called_is_a_tool():
    class Adder:
        async def __call__(self, a: int) -> int:
            return a + 1

    made = tool(name="add")(Adder())
    assert made.is_async
    assert list(made.parameters["properties"]) == ["a"]


def yields(a: int):
    yield a


def takes_any(*args: int): ...


def takes_keywords(**kwargs: int): ...


def untyped(a): ...


class Odd: ...


def custom(a: int, b: Odd): ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (yields, ["yields"]),
        (takes_any, ["takes_any", "'args'"]),
        (takes_keywords, ["takes_keywords", "'kwargs'"]),
        (untyped, ["untyped", "'a'", "annotation"]),
        (custom, ["custom", "'b'", "Odd"]),
        (lambda: None, ["<lambda>", "name="]),
        (Odd, ["class"]),
        ("look", ["str"]),
    ],
)
def test_what_cannot_be_a_tool_names_the_function_and_the_parameter(function, words):
    with pytest.raises(InvalidTool) as caught:
        Tool(function)
    for word in words:
        assert word in str(caught.value)


def test_an_annotation_that_is_not_defined_is_named():
    def strange(a: int, b: "Missing"): ...  # noqa: F821

    with pytest.raises(InvalidTool, match=r"'b' of the tool strange .*Missing"):
        tool(strange)


def test_a_tool_of_a_tool_and_bad_options_are_refused():
    @tool
    def look() -> str:
        return ""

    with pytest.raises(InvalidTool, match="look is already a tool"):
        tool(look)
    with pytest.raises(InvalidTool, match="name"):
        tool(name="no spaces")(lambda: None)
    with pytest.raises(InvalidTool, match="timeout"):
        tool(name="x", timeout=0)(lambda: None)


def test_two_different_types_of_one_name_are_refused():
    first = msgspec.defstruct("Thing", [("a", int)])
    second = msgspec.defstruct("Thing", [("b", str)])

    def compare(one, other): ...

    compare.__annotations__.update(one=first, other=second)
    with pytest.raises(InvalidTool, match=r"Thing.*'other'"):
        tool(compare)


def test_a_strict_tool_requires_everything_and_says_the_defaults():
    @tool(strict=True)
    def search(text: str, limit: Annotated[int, msgspec.Meta(le=50)] = 10) -> str:
        return text

    assert search.parameters == {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "limit": {"type": "integer", "description": "{maximum: 50, default: 10}"},
        },
        "required": ["text", "limit"],
        "additionalProperties": False,
    }


def test_a_tool_that_cannot_be_strict_says_why():
    with pytest.raises(InvalidTool, match="find cannot be strict: a dictionary with free keys"):

        @tool(strict=True)
        def find(where: dict[str, int]) -> str:
            return ""


def test_a_text_in_annotated_describes_the_parameter():
    @tool
    def look(at: Annotated[str, "Where to look."]) -> str:
        return at

    assert look.parameters["properties"]["at"] == {"type": "string", "description": "Where to look."}


@tool
def nothing() -> None: ...


class Text2(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("text", "text"),
        (Text2("text"), "text"),
        ("", ""),
        (None, ""),
        (3, "3"),
        (True, "true"),
        ([], "[]"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        ({1: "a"}, '{"1":"a"}'),
        (Point(1.0), '{"x":1.0,"y":0.0}'),
        (Colour.RED, "red"),
        (dt.date(2024, 2, 29), "2024-02-29"),
        (Address(street="a", zip_code=1), '{"street":"a","zip_code":1}'),
        ([Address(street="a", zip_code=1)], '[{"street":"a","zip_code":1}]'),
        (Image(url="https://u"), [Image(url="https://u")]),
        ([Text("a"), File(file_id="f")], [Text("a"), File(file_id="f")]),
        ((Text("a"), "b"), '[{"type":"text","text":"a"},"b"]'),
    ],
)
def test_results_become_what_a_model_reads(value, content):
    assert nothing.content_of(value) == content


def cyclic():
    value = []
    value.append(value)
    return value


@pytest.mark.parametrize("value", [object(), cyclic(), {(1, 2): 3}, (n for n in "ab")])
def test_a_result_that_json_cannot_say_is_an_error_for_the_model(value):
    with pytest.raises(ToolRaised, match=type(value).__name__):
        nothing.content_of(value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ("", {})),
        ("One.", ("One.", {})),
        ("Args:\n    a: First.", ("", {"a": "First."})),
        (
            "One.\n\nArgs:\n    a (int): First.\n    *b: Second: really.\n\n    c: Third.\nMore.",
            ("One.\n\nMore.", {"a": "First.", "b": "Second: really.", "c": "Third."}),
        ),
        (
            "One.\n\nParameters:\n  a:\n      First\n      of all.\n\nRaises:\n  E: x",
            ("One.\n\nRaises:\n  E: x", {"a": "First of all."}),
        ),
    ],
)
def test_docstrings_are_read(text, expected):
    assert read_docstring(text) == expected


CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}


def test_a_tool_may_be_declared_by_a_schema():
    @tool(name="forecast", description="Forecast.", parameters=CITY)
    def call(context: Context, **arguments):
        return [context.call_id, arguments]

    assert (call.parameters, call.description) == (CITY, "Forecast.")
    assert called(call, city="Paris", days=2) == ["call", {"city": "Paris", "days": 2}]
    with pytest.raises(ToolArgumentsInvalid, match=r"forecast: .*city"):
        called(call, days=2)
    with pytest.raises(ToolArgumentsInvalid, match="days"):
        called(call, city="Paris", days="two")
    assert called(call, city="Paris", context="forged")[0] == "call"


@pytest.mark.parametrize(
    ("function", "parameters", "says"),
    [
        (lambda **arguments: 0, {"type": "string"}, "schema of an object"),
        (lambda **arguments: 0, {"type": "object", "properties": []}, "schema of an object"),
        (lambda **arguments: 0, "an object", "is not a JSON schema"),
        (lambda **arguments: 0, {"type": object}, "is not a JSON schema"),
        (lambda city: 0, CITY, "does not accept 'days'"),
    ],
)
def test_a_schema_that_no_tool_can_have_is_refused(function, parameters, says):
    with pytest.raises(InvalidTool, match=says):
        Tool(function, name="forecast", parameters=parameters)


def test_a_method_may_be_declared_by_a_schema():
    class Shop:
        city = "Rome"

        @tool(parameters=CITY)
        def forecast(self, city, days=1):
            return [self.city, city, days]

    assert called(Shop().forecast, city="Paris") == ["Rome", "Paris", 1]
