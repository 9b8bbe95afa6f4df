"""Splits bytes into server-sent events, wherever the network divides them.

The bytes are split at blank lines with the C routines of ``bytes``; only a block that is not one ``data:`` line,
with or without an ``event:`` line before it, is looked at line by line.
"""

from __future__ import annotations

_BOM = b"\xef\xbb\xbf"
MAX_EVENT_BYTES = 16 * 1024 * 1024


class EventTooLong(ValueError):
    """An event is longer than the limit."""


class EventSplitter:
    """Turns chunks of a body into events: pairs of a name, which may be empty, and data."""

    __slots__ = ("_after_cr", "_between", "_limit", "_pending", "_scanned", "_start")

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self._limit = limit
        self._start: bytes | None = b""  # the bytes until it is clear whether there is a BOM; then None
        self._after_cr = False  # the last chunk ended with CR, and a following LF belongs to it
        self._pending = bytearray()  # the beginning of an event
        self._scanned = 0  # up to where ``_pending`` has no blank line
        self._between = False  # the next byte begins an event: nothing is kept

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """Return the events that are complete with this chunk. Raises ``EventTooLong``."""
        if (
            self._between
            and data.startswith(b"data: ")
            and data.endswith(b"\n\n")
            and data.find(b"\n") == len(data) - 2
            and b"\r" not in data
        ):
            return [(b"", data[6:-2])]  # nearly all chunks look like this
        events = self._split(data)
        self._between = not self._pending and not self._after_cr and self._start is None
        return events

    def _split(self, data: bytes) -> list[tuple[bytes, bytes]]:
        if self._start is not None:
            data = self._without_bom(data)
        if self._after_cr or b"\r" in data:
            data = self._with_plain_newlines(data)
        pending = self._pending
        if pending:
            pending += data
            end = pending.rfind(b"\n\n", self._scanned)
            if end < 0:
                self._check()
                return []
            data = bytes(pending[: end + 2])
            rest = bytes(pending[end + 2 :])
            pending.clear()
            self._keep(rest)
        elif not data.endswith(b"\n\n"):
            end = data.rfind(b"\n\n")
            if end < 0:
                self._keep(data)
                return []
            self._keep(data[end + 2 :])
            data = data[: end + 2]
        if data.find(b"\n\n") < len(data) - 2:
            return [event for block in data.split(b"\n\n") if (event := _event(block)) is not None]
        event = _event(data[:-2])
        return [] if event is None else [event]

    def flush(self) -> list[tuple[bytes, bytes]]:
        """Return the last event if it has no blank line after it."""
        rest = bytes(self._pending) if self._start is None else self._start
        self._pending.clear()
        event = _event(rest)
        return [] if event is None else [event]

    def _keep(self, rest: bytes) -> None:
        if rest:
            self._pending += rest
            self._check()

    def _check(self) -> None:
        size = len(self._pending)
        if size > self._limit:
            raise EventTooLong(f"an event is longer than {self._limit} bytes")
        self._scanned = max(size - 1, 0)

    def _without_bom(self, data: bytes) -> bytes:
        data = (self._start or b"") + data
        if len(data) < len(_BOM) and _BOM.startswith(data):
            self._start = data
            return b""
        self._start = None
        return data.removeprefix(_BOM)

    def _with_plain_newlines(self, data: bytes) -> bytes:
        if self._after_cr and data:
            data = data.removeprefix(b"\n")
            self._after_cr = False
        if data:
            self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _event(block: bytes) -> tuple[bytes, bytes] | None:
    if block.startswith(b"data: "):
        if b"\n" not in block:
            return b"", block[6:]
    elif block.startswith(b"event: "):
        line = block.find(b"\n")
        if block.startswith(b"\ndata: ", line) and block.find(b"\n", line + 1) < 0:
            return block[7:line], block[line + 7 :]
    return _event_of_lines(block)


def _event_of_lines(block: bytes) -> tuple[bytes, bytes] | None:
    name = b""
    data: list[bytes] = []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    return (name, b"\n".join(data)) if data else None
