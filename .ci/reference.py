"""Prepares docstrings and generated methods for the API reference.

Examples become code blocks. Methods that decorators generate (the synchronous ones and their ``…_async`` forms) are
shown as ``help`` shows them: with their real signature, and with each keyword of a ``TypedDict`` listed.
"""

from __future__ import annotations

import re
from importlib import import_module
from inspect import getdoc, signature
from typing import Any

from griffe import Attribute, Class, Docstring, Extension, Function, Inspector, Object, inspect

# From a prompt to the next blank line; examples that follow each other are one block.
ONE = r">>> .*(?:\n(?![ \t]*(?:\n|\Z)).*)*"
EXAMPLE = re.compile(rf"^{ONE}(?:\n\n{ONE})*", re.MULTILINE)
DRAWN = re.compile(r"^ {4}.*``.*$", re.MULTILINE)


class Doctests(Extension):
    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called for every object that is read, and again for those that a class inherits."""
        if obj.docstring is not None and "```pycon" not in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)


GENERATED = re.compile(r"(awaited|_waiting)\(")
DECORATED = {"synchronous", "synchronous_property", "spelled_out"}


class Generated(Extension):
    def on_class_members(self, *, cls: Class, agent: Any, **_: Any) -> None:
        """Replace generated members of a class that was read from its source by those of the class at run time."""
        names = [name for name, member in cls.members.items() if is_generated(member)]
        if not names or isinstance(agent, Inspector):
            return
        real = getattr(import_module(cls.module.path), cls.name)
        made = inspect(cls.module.path, filepath=cls.module.filepath)[cls.name]
        for name in names:
            cls.set_member(name, shown(cls.members[name], made.members[name], getattr(real, name)))


def is_generated(member: Any) -> bool:
    if isinstance(member, Function):
        return any(str(one.value).rpartition(".")[2] in DECORATED for one in member.decorators)
    return isinstance(member, Attribute) and GENERATED.match(str(member.value)) is not None


def shown(read: Any, made: Any, real: Any) -> Any:
    """The member as ``help`` shows it; griffe itself looks behind decorators."""
    if not callable(real):
        made = Attribute(read.name, annotation=read.returns, docstring=read.docstring)
        made.labels.add("property")
    else:
        made.docstring = Docstring(getdoc(real) or "", parent=made)
        made.returns = str(signature(real).return_annotation)
    made.lineno, made.endlineno = read.lineno, read.endlineno
    made.docstring.value = fenced(made.docstring.value)
    return made


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
