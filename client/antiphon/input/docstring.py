"""Reads the description of a function and of its arguments from a docstring."""

from __future__ import annotations

import re

__all__ = ["read_docstring"]

_HEADERS = ("args:", "arguments:", "parameters:", "params:")
_NAME = re.compile(r"\*{0,2}(\w+)")


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the text without its ``Args:`` section, and the description of each argument.

    >>> read_docstring("Add.\\n\\nArgs:\\n    a: One number.\\n    b (int): Another\\n        number.")
    ('Add.', {'a': 'One number.', 'b': 'Another number.'})
    """
    about: list[str] = []
    arguments: list[tuple[str, str]] = []
    section: int | None = None  # the indent of the Args header, while inside the section
    entries: int | None = None  # the indent of its entries
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
    """Return the name and description of ``name: …`` or ``name (type): …``, or None for other lines."""
    named = _NAME.match(line)
    if named is None:
        return None
    rest = line[named.end() :].lstrip()
    if rest.startswith("("):
        rest = rest.partition(")")[2].lstrip()
    return (named[1], rest[1:].lstrip()) if rest.startswith(":") else None
