"""What a docstring tells a model: the description of a function and of its arguments."""

from __future__ import annotations

import re

__all__ = ["read_docstring"]

_HEADERS = ("args:", "arguments:", "parameters:", "params:")
_NAME = re.compile(r"\*{0,2}(\w+)")


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The text without its ``Args:`` section, and what that section says of each argument.

    >>> read_docstring("Add.\\n\\nArgs:\\n    a: One number.\\n    b (int): Another\\n        number.")
    ('Add.', {'a': 'One number.', 'b': 'Another number.'})
    """
    about: list[str] = []
    arguments: list[tuple[str, str]] = []
    section: int | None = None  # how far the header of the Args section is indented, while in it
    entries: int | None = None  # how far its entries are
    for line in text.splitlines():
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        if section is None or (stripped and (indent < section or _is_section(stripped, indent, section))):
            section, entries = (indent, None) if stripped.lower() in _HEADERS else (None, None)
            if section is None:
                about.append(line)
            continue
        if not stripped:
            continue
        entries = indent if entries is None else entries
        entry = _entry(stripped) if indent <= entries else None
        if entry:
            arguments.append(entry)
        elif arguments:
            name, said = arguments[-1]
            arguments[-1] = name, f"{said} {stripped}".strip()
    return "\n".join(about).strip(), dict(arguments)


def _is_section(stripped: str, indent: int, section: int) -> bool:
    return indent == section


def _entry(line: str) -> tuple[str, str] | None:
    """Name and description of ``name: …`` or ``name (type): …``; None for another line."""
    named = _NAME.match(line)
    if named is None:
        return None
    rest = line[named.end() :].lstrip()
    if rest.startswith("("):
        rest = rest.partition(")")[2].lstrip()
    return (named[1], rest[1:].lstrip()) if rest.startswith(":") else None
