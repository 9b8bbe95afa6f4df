"""``FactModel``: the model that distils facts from finished turns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from antiphon.errors import UsageError
from antiphon.input.values import is_a

__all__ = ["FactModel", "checked_fact_name", "fact_cursor"]

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class FactModel:
    """The model that distils what lasts about a user: ``Memory(…, facts=FactModel("openai", "gpt-4o-mini"))``.

    ``provider`` is one of the App's or a built-in one. ``params`` go with each of its calls, and ``instructions`` say
    what else to keep or to leave out. At most ``most`` facts are kept in a scope. They stand in Redis under ``name``:
    a memory that replaces another one keeps its facts if both have this name here.

    Raises ``UsageError``.

    >>> from antiphon.memory import FactModel, Memory, WordEmbeddings
    >>> facts = FactModel("scripted", "any", instructions="Keep diets and allergies.")
    >>> memory = Memory("recollections", WordEmbeddings(), scope="tenant", facts=facts)
    """

    def __init__(
        self,
        provider: str,
        model: str,
        *,
        name: str = "memory",
        instructions: str = "",
        params: Mapping[str, Any] | None = None,
        most: int = 100,
    ) -> None:
        for option, value in (("provider", provider), ("model", model)):
            if not is_a(value, str) or not value:
                raise UsageError(f"{option}= must be a name, not {value!r}.")
        if not is_a(most, int) or not 1 <= most <= 1000:
            raise UsageError(f"most= must be a number from 1 to 1000, not {most!r}.")
        self.provider, self.model, self.most = provider, model, most
        self.name = checked_fact_name(name)
        self.instructions = instructions
        self.params: dict[str, Any] = dict(params or {})


def checked_fact_name(name: Any) -> str:
    """Check the name of facts. Raises ``UsageError``."""
    if not is_a(name, str) or not _NAME.fullmatch(name):
        raise UsageError(f"name= must be 1 to 64 letters, digits, '_', '.' and '-', not {name!r}.")
    return name


def fact_cursor(name: str) -> str:
    """Return the name under which the turns wait whose facts are to be distilled. No memory can have it."""
    return f"+{name}"
