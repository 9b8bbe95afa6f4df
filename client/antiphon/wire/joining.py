"""Joins the pieces of a script into the Lua that a server runs.

The server runs the whole text at every call, and creates each function again. Therefore an unused definition is left
out, a definition that only one function uses is created only when that function is called, and keys are written in
place. Nothing is moved into a function with the comment ``-- @often``, which a script calls many times, and a table
with ``-- @state``, which functions share during the call, stays where it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from textwrap import indent

from antiphon.wire.keys import lua_key

_OFTEN = re.compile(r" -- @often$", re.MULTILINE)
_STATE = re.compile(r" -- @state$", re.MULTILINE)
# A function on one line, or up to an unindented ``end``, or a constant.
_DEFINITION = re.compile(
    r"^local function (\w+)(?:[^\n]* end$|.*?^end$)\n?|^local (\w+(?:, \w+)*) = (?:\{[^\n}]*\n.*?\}$|[^\n]*$)\n?",
    re.MULTILINE | re.DOTALL,
)
_FUNCTION_HEAD = re.compile(r"local function \w+\([^)\n]*\)")
_KEY = re.compile(r"\bkey_(\w+)\(")
_TEXT = re.compile(r"'(?:[^'\\\n]|\\.)*'?")  # to the end of the line if it is not closed
_NAME = re.compile(r"(?:(?<![.\w])|(?<=\.\.))\w+")  # not the field of a table


@dataclass(slots=True)
class _Piece:
    """A part of a script: a definition with its names, or text without a name."""

    text: str
    names: frozenset[str] = frozenset()
    moves: bool = False
    often: bool = False
    stays: bool = False
    words: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.words = set(_NAME.findall(_TEXT.sub("''", self.text)))

    def take_in(self, other: _Piece) -> bool:
        head = None if self.often else _FUNCTION_HEAD.match(self.text)
        if head:
            self.text = f"{head[0]}\n{indent(other.text, '  ')}{self.text[head.end() :]}"
            self.words |= other.words
        return head is not None


def joined(definitions: str, body: str) -> str:
    """Return the text of a script: those of these definitions that its body needs, and the body itself."""
    pieces = [*_pieces(definitions, moves=True), *_pieces(body, moves=False)]
    while [piece for piece in pieces if piece.moves and _moved(piece, pieces)]:
        pieces = [piece for piece in pieces if piece.text]
    return inlined_keys("".join(piece.text for piece in pieces))


def inlined_keys(text: str) -> str:
    """Return Lua in which each call such as ``key_session(id)`` is replaced by the text that makes the key."""
    done: list[str] = []
    at = 0
    for call in _KEY.finditer(text):
        if call.start() >= at:
            arguments, end = _arguments(text, call.end())
            done += [text[at : call.start()], lua_key(call[1], *map(inlined_keys, arguments))]
            at = end
    return "".join([*done, text[at:]])


def _pieces(text: str, *, moves: bool) -> list[_Piece]:
    found: list[_Piece] = []
    at = 0
    for match in _DEFINITION.finditer(text):
        definition, often = _OFTEN.subn("", match[0])
        definition, state = _STATE.subn("", definition)
        names = frozenset((match[1] or match[2]).split(", "))
        found.append(_Piece(_without_comments(text[at : match.start()])))
        found.append(_Piece(_without_comments(definition), names, moves, often > 0, state > 0))
        at = match.end()
    found.append(_Piece(_without_comments(text[at:])))
    return [piece for piece in found if piece.text.strip()]


def _moved(piece: _Piece, pieces: list[_Piece]) -> bool:
    """Leave out an unused definition, or move it into the one function that uses it. Returns whether it did."""
    users = (one for one in pieces if not piece.names.isdisjoint(one.words) and one is not piece)
    host, another = next(users, None), next(users, None)
    if another or (host and (piece.stays or not host.take_in(piece))):
        return False
    piece.text, piece.words = "", set()
    return True


def _arguments(text: str, start: int) -> tuple[list[str], int]:
    """Return the arguments of the call that begins at this place, and the place where it ends."""
    found: list[str] = []
    depth, at, first = 0, start, start
    while depth >= 0:
        depth += (text[at] in "([{") - (text[at] in ")]}")
        if depth < 0 or (depth == 0 and text[at] == ","):
            found.append(text[first:at].strip())
            first = at + 1
        at += 1
    return [one for one in found if one], at


def _without_comments(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.lstrip().startswith("--"))
