"""What a docstring tells a model: the description of a function and of its arguments."""

from __future__ import annotations

import re

__all__ = ["read_docstring"]

_ARGUMENTS = re.compile(r"(args|arguments|parameters|params):\s*$", re.IGNORECASE)
_SECTION = re.compile(
    r"(returns?|yields?|raises|examples?|notes?|warnings?|see also|attributes|references|todo):",
    re.IGNORECASE,
)
_ARGUMENT = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")


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
            section, entries = (indent, None) if _ARGUMENTS.fullmatch(stripped) else (None, None)
            if section is None:
                about.append(line)
            continue
        if not stripped:
            continue
        entries = indent if entries is None else entries
        entry = _ARGUMENT.fullmatch(stripped) if indent <= entries else None
        if entry:
            arguments.append((entry[1], entry[2]))
        elif arguments:
            name, said = arguments[-1]
            arguments[-1] = name, f"{said} {stripped}".strip()
    return "\n".join(about).strip(), dict(arguments)


def _is_section(stripped: str, indent: int, section: int) -> bool:
    return indent == section
