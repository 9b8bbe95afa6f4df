"""Rules for the fields of OpenAI's requests, declared with each request: refused, repeated, or a parameter."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, get_args, get_type_hints

from msgspec import Struct

from antiphon_gateway.openai.errors import refused


class Field(Struct, frozen=True, kw_only=True):
    """``param`` is the model parameter that the field sets, and ``echo`` whether the response repeats it.

    ``why`` is the error message for all values except those in ``neutral``, which change nothing.
    """

    param: str = ""
    echo: bool = False
    why: str = ""
    neutral: tuple[Any, ...] = ()


ECHO = Field(echo=True)


def param(name: str) -> Field:
    """Return the rule of a model parameter that the response repeats."""
    return Field(param=name, echo=True)


def refuses(why: str, *neutral: Any) -> Field:
    """Return the rule of a field that is refused with this message."""
    return Field(why=why, neutral=neutral)


NEITHER = "{} is not supported: omit it."
OF_AGENT = "{} is not supported in a request: set it in the parameters of the agent."
Elsewhere = Annotated[Any, refuses(OF_AGENT)]
Unserved = Annotated[Any, refuses(NEITHER)]


@cache
def rules_of(kind: type[Struct]) -> dict[str, Field]:
    """Return the rules of a request, by field. A field without a rule is supported."""
    hints = get_type_hints(kind, include_extras=True)
    found = {name: [one for one in get_args(hint) if isinstance(one, Field)] for name, hint in hints.items()}
    return {name: rules[0] for name, rules in found.items() if rules}


def check_fields(request: Struct, within: str = "") -> None:
    """Refuse the fields that are not supported here. Raises ``Refused``."""
    rules = rules_of(type(request))
    for name in request.__struct_fields__:
        value, rule = getattr(request, name), rules.get(name)
        if isinstance(value, Struct):
            check_fields(value, f"{within}{name}.")
        elif rule is not None and rule.why and value is not None and value not in rule.neutral:
            raise refused(within.partition(".")[0] or name, rule.why.format(within + name))


def params_of(request: Struct) -> dict[str, Any]:
    """Return the model parameters in a request, by the names that our providers use."""
    given = {
        rule.param: getattr(request, name) for name, rule in rules_of(type(request)).items() if rule.param
    }
    return {name: value for name, value in given.items() if value is not None}


def repeated(request: Struct) -> dict[str, Any]:
    """Return the fields of a request that its response repeats."""
    given = {name: getattr(request, name) for name, rule in rules_of(type(request)).items() if rule.echo}
    return {name: value for name, value in given.items() if value is not None}
