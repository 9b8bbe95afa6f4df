"""Prepares docstrings for the API reference: examples become code blocks."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

# From a prompt to the next blank line; examples that follow each other are one block.
ONE = r">>> .*(?:\n(?![ \t]*(?:\n|\Z)).*)*"
EXAMPLE = re.compile(rf"^{ONE}(?:\n\n{ONE})*", re.MULTILINE)
DRAWN = re.compile(r"^ {4}.*``.*$", re.MULTILINE)


class Doctests(Extension):
    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called for every object that is read, and again for those that a class inherits."""
        if obj.docstring is not None and "```pycon" not in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text with its examples between fences.

    >>> print(fenced("Add.\\n\\n>>> 1 + 1\\n2"))
    Add.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    text = EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```", text)
    return DRAWN.sub(lambda line: line[0].replace("``", ""), text)  # an indented block is code already
