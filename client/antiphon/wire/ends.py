"""The place of a cursor in a history: with which event the history had how many messages (``include/ends.lua``).

The notes are a text with ``<seq>:<messages> `` for each time the history grew or was cut, in order. It begins with
``<seq>~<messages> `` if something before that was not noted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

FIELD, FULL = "ends", "ends:"
_ENTRY = re.compile(r"(\d{1,18})([:~])(\d{1,18}) ")


class End(NamedTuple):
    """After the event ``seq`` the history had this many messages."""

    seq: int
    length: int


class Piece(NamedTuple):
    """The messages from ``start`` to ``stop`` came with the event ``seq``."""

    seq: int
    start: int
    stop: int


class Ends(NamedTuple):
    """The notes of a history, from ``begins`` on."""

    begins: End
    noted: list[End]


class Missed(NamedTuple):
    """What a reader missed: the history was cut to ``kept`` with the event ``cut_at`` (0: it was not), and grew."""

    cut_at: int
    kept: int
    pieces: list[Piece]


def is_of_ends(name: str) -> bool:
    """Return whether a field of a session has such notes."""
    return name == FIELD or name.startswith(FULL)


def text_of_ends(fields: Mapping[str, bytes]) -> str:
    """Return the notes in all fields of a session."""
    full = sorted((int(name[len(FULL) :]), fields[name]) for name in fields if name.startswith(FULL))
    return b"".join([*(value for _, value in full), fields.get(FIELD, b"")]).decode("ascii", "replace")


def read_ends(text: str, first: int) -> Ends:
    """Read notes of a session whose events begin after ``first``."""
    found = [(End(int(seq), int(length)), mark) for seq, mark, length in _ENTRY.findall(text)]
    begins = found.pop(0)[0] if found and found[0][1] == "~" else End(first, 0)
    return Ends(begins, [end for end, _ in found])


def whole_text(ends: Ends, seq: int, length: int) -> str:
    """Return notes as a text of their own: from where they begin up to the session's last event."""
    end = End(seq, length)
    noted = ends.noted if ends.noted[-1:] == [end] else [*ends.noted, end]
    return f"{ends.begins.seq}~{ends.begins.length} " + _text(noted)


def behind(text: str, length: int, ends: Ends) -> str:
    """Return the notes ``text``, followed by those of a history to which ``length`` messages were prepended."""
    return text + _text(End(seq, length + messages) for seq, messages in ends.noted)


def _text(ends: Iterable[End]) -> str:
    return "".join(f"{seq}:{length} " for seq, length in ends)


def missed(ends: Ends, length: int, cursor: int, before: int, *, beginning: bool = False) -> Missed | None:
    """Return what came after the event ``cursor`` and before the event ``before``, in a history of ``length``.

    With ``beginning``, the reader has seen nothing, not even the messages that the session began with, which come with
    the event after which it began. Returns None if the notes do not reach back to the cursor, or if messages are lost.
    """
    begins, noted = ends
    if not beginning and (cursor < begins.seq or (length and not noted and not begins.length)):
        return None
    pieces = [Piece(begins.seq, 0, begins.length)] if begins.length else []
    top = begins.length
    low, cut_at = 0 if beginning else top, 0
    for seq, size in noted:
        if size > top:
            pieces.append(Piece(seq, top, size))
        while pieces and pieces[-1].start >= size:
            pieces.pop()
        if pieces and pieces[-1].stop > size:
            pieces[-1] = pieces[-1]._replace(stop=size)
        top = size
        if seq <= cursor and not beginning:
            low = size
        elif size < low:
            low, cut_at = size, cut_at if cut_at and seq >= before else seq
    if length < top:
        return None
    if length > top and (not noted or noted[-1].seq < before):  # an older release has noted nothing
        pieces.append(Piece(before - 1, top, length))
    opening = (
        [one for one in pieces if one.seq <= begins.seq] if beginning and before - 1 != begins.seq else []
    )
    given = [one._replace(seq=min(one.seq, before - 1)) for one in opening]
    given += [one for one in pieces if max(cursor, begins.seq) < one.seq < before]
    return Missed(cut_at if cut_at < before else 0, low, _merged(given))


def _merged(pieces: Iterable[Piece]) -> list[Piece]:
    """Return one piece for each event."""
    found: list[Piece] = []
    for one in pieces:
        if found and found[-1].seq == one.seq:
            found[-1] = found[-1]._replace(stop=one.stop)
        else:
            found.append(one)
    return found
