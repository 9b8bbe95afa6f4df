"""System prompts with the session's variables in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["filled"]

_NAME = re.compile(r"\{([^\W\d]\w*)\}")


def filled(prompt: str, variables: Mapping[str, Any]) -> str:
    """The prompt with ``{name}`` replaced by each variable of that name; every other brace stays as it is.

    >>> filled('Greet {user}. Answer as {"text": …}, not {format}.', {"user": "Alice"})
    'Greet Alice. Answer as {"text": …}, not {format}.'
    """

    def value(found: re.Match[str]) -> str:
        name = found[1]
        return _text(variables[name]) if name in variables else found[0]

    return _NAME.sub(value, prompt) if variables else prompt


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
