"""The statements of a script, each with the text that remains when it is deleted.

A statement is a line and its continuations. A block (``if``, ``for``) is also deleted as a whole, and so is each
later branch of an ``if``.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_STRING = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"")
_OPENS = re.compile(r"\b(?:function|if|for|while)\b")
_CONTINUES = ("or ", "and ", "..", "+", "- ")


@dataclass(frozen=True)
class Mutant:
    """A script without one of its statements."""

    file: str
    line: int
    statement: str
    source: str

    def __str__(self) -> str:
        return f"{self.file}: {self.statement}"


@dataclass
class _Statement:
    first: int
    last: int
    text: str
    bare: str
    """The text without strings and comments, whose words do not count."""

    @property
    def depth(self) -> int:
        words = self.bare.replace("elseif", "")
        return len(_OPENS.findall(words)) - len(re.findall(r"\bend\b", words))


def mutants_of(file: str, source: str) -> Iterator[Mutant]:
    """Yield a mutant without each statement or block."""
    lines = source.split("\n")
    statements = list(_statements(lines))
    for number, statement in enumerate(statements):
        last = _last_of(statements, number)
        if last is None:
            continue
        kept = lines[: statement.first] + lines[statements[last].last + 1 :]
        whole = " ".join(part.text for part in statements[number : last + 1])
        yield Mutant(file, statement.first + 1, whole, "\n".join(kept))


def _last_of(statements: list[_Statement], number: int) -> int | None:
    """Return the number of the last part of the statement that begins here; None if none begins here."""
    text = statements[number].text
    if text in ("end", "}") or (
        text.startswith(("local function", "function")) and statements[number].depth > 0
    ):
        return None
    if text.startswith(("elseif", "else")):
        return _before_next_branch(statements, number)
    depth = 0
    for last in range(number, len(statements)):
        depth += statements[last].depth
        if depth <= 0:
            return last
    raise ValueError(f"A block without an end: {text}")


def _before_next_branch(statements: list[_Statement], number: int) -> int:
    depth = 0
    for following in range(number + 1, len(statements)):
        text = statements[following].text
        if depth == 0 and (text == "end" or text.startswith(("elseif", "else"))):
            return following - 1
        depth += statements[following].depth
    raise ValueError(f"A branch without an end: {statements[number].text}")


def _statements(lines: list[str]) -> Iterator[_Statement]:
    number = 0
    while number < len(lines):
        if not lines[number].strip() or lines[number].lstrip().startswith("--"):
            number += 1
            continue
        last = number
        while _goes_on(lines, number, last):
            last += 1
        its_lines = [line.strip() for line in lines[number : last + 1]]
        yield _Statement(number, last, " ".join(its_lines), " ".join(map(_bare, its_lines)))
        number = last + 1


def _bare(line: str) -> str:
    return _STRING.sub("''", line).partition("--")[0]


def _goes_on(lines: list[str], first: int, last: int) -> bool:
    bare = _STRING.sub("''", "\n".join(lines[first : last + 1]))
    if sum(bare.count(c) for c in "({[") > sum(bare.count(c) for c in ")}]"):
        return True
    if bare.rstrip().endswith((" =", " or", " and", "..", ",")):
        return True
    return last + 1 < len(lines) and lines[last + 1].strip().startswith(_CONTINUES)
