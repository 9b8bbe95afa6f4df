"""A value that does not fit its type is described in a sentence."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta, Struct

from antiphon.input.wrong_values import wrong_value

FIELDS = "count, inner, many, name, share, short"


class Inner(Struct, forbid_unknown_fields=True):
    effort: Literal["low", "high"] | None = None


class Outer(Struct, forbid_unknown_fields=True):
    name: str
    count: Annotated[int, Meta(ge=1)] | None = None
    share: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    short: Annotated[str, Meta(max_length=3)] = ""
    inner: Inner | None = None
    many: list[dict[str, Any]] | None = None


@pytest.mark.parametrize(
    ("body", "sentence", "field"),
    [
        ({"name": "a", "cuont": 1}, "The field 'cuont' is unknown: did you mean 'count'?", "cuont"),
        ({"name": "a", "zz": 1}, f"The field 'zz' is unknown: the fields are {FIELDS}.", "zz"),
        ({}, "The field 'name' is missing: add it.", "name"),
        ({"name": 7}, "name must be text, not a whole number.", "name"),
        ({"name": "a", "count": 0}, "count must be a whole number of at least 1.", "count"),
        ({"name": "a", "count": True}, "count must be a whole number or null, not true or false.", "count"),
        ({"name": "a", "share": 0}, "share must be a number above 0.", "share"),
        ({"name": "a", "short": "long"}, "short must be text with a length of at most 3.", "short"),
        ({"name": "a", "inner": {"efort": 1}}, "The field 'inner.efort' is unknown: did you mean 'effort'?", "inner"),
        (
            {"name": "a", "inner": {"effort": "x"}},
            "inner.effort must be one of high, low, not 'x'.", "inner",
        ),
        ({"name": "a", "many": [{}, 7]}, "many[1] must be an object, not a whole number.", "many"),
        ([], "The body must be an object, not a list.", ""),
    ],
)  # fmt: skip
def test_a_sentence_names_the_field_what_was_expected_and_what_was_found(body, sentence, field):
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(msgspec.json.encode(body), type=Outer)
    assert wrong_value(caught.value, Outer) == (sentence, field)
