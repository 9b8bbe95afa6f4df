"""The two files of ``antiphon batch``: the lines to run, and the outcomes, which are appended."""

from __future__ import annotations

import fcntl
import hashlib
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec import Struct

from antiphon.errors import UsageError
from antiphon.input.ids import session_id

__all__ = ["Line", "OutFile", "read_lines"]


class _Given(Struct, forbid_unknown_fields=True):
    """A line as it stands in the file."""

    text: Any
    id: str | int | None = None
    session: str | None = None
    agent: str | None = None
    params: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


class Line(Struct):
    """One turn to run. ``key`` is made from all that it depends on, so that another run of the command finds it."""

    id: str
    key: str
    session: str
    text: Any
    agent: str | None = None
    params: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


class _Outcome(Struct):
    """What must stand in a line of the outcomes."""

    id: str
    key: str
    status: str


def read_lines(path: Path, common: Sequence[Any]) -> list[Line]:
    """Read the lines to run. ``common`` is what else their turns depend on. Raises ``UsageError``.

    A line without an id is named after its contents; equal ones are numbered.
    """
    try:
        raw = path.read_bytes().splitlines()
    except OSError as exc:
        raise UsageError(f"{path} cannot be read: {exc.strerror}.") from exc
    lines: list[Line] = []
    equal: Counter[str] = Counter()
    names: set[str] = set()
    for number, text in enumerate(raw, 1):
        if not text.strip():
            continue
        given = _given(path, number, text)
        key = hashlib.sha256(msgspec.json.encode([given, common], order="sorted")).hexdigest()[:32]
        equal[key] += 1
        if equal[key] > 1 and given.id is None:
            key = f"{key}-{equal[key]}"
        name = key if given.id is None else str(given.id)
        if name in names:
            raise UsageError(f"{path}, line {number}: the id {name!r} was used before.")
        names.add(name)
        where = given.session or f"batch-{key}"
        lines.append(Line(name, key, where, given.text, given.agent, given.params, given.metadata))
    return lines


def _given(path: Path, number: int, text: bytes) -> _Given:
    try:
        given = msgspec.json.decode(text, type=_Given)
        if given.session is not None:
            session_id(given.session)
    except (msgspec.DecodeError, UnicodeError, UsageError) as exc:
        raise UsageError(f"{path}, line {number}: {exc}") from exc
    return given


class OutFile:
    """The outcomes so far, to which more are appended. One command at a time writes to it."""

    def __init__(self, path: Path, lines: Sequence[Line], retry_failed: bool) -> None:
        self._path = path
        self._last: dict[str, _Outcome] = {}
        self._retry_failed = retry_failed
        self._keys = {line.id: line.key for line in lines}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            try:
                self._file = stack.enter_context(self._path.open("a+b"))
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"Another command writes to {self._path}: wait for its end.") from None
            except OSError as exc:
                raise UsageError(f"{self._path} cannot be written: {exc.strerror}.") from exc
            self._read()
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def done(self) -> int:
        """How many lines need not run."""
        return sum(map(self._is_done, self._last.values()))

    @property
    def failed(self) -> int:
        """How many of these have not finished."""
        return sum(self._is_done(one) and one.status != "finished" for one in self._last.values())

    def has(self, line: Line) -> bool:
        """Whether this line need not run."""
        return line.id in self._last and self._is_done(self._last[line.id])

    def write(self, outcome: dict[str, Any]) -> None:
        """Append one outcome, whole."""
        self._file.write(msgspec.json.encode(outcome) + b"\n")
        self._file.flush()

    def _is_done(self, outcome: _Outcome) -> bool:
        return outcome.status == "finished" or not self._retry_failed

    def _read(self) -> None:
        """Check what is there; the beginning of a line that a crash has left is cut off."""
        self._file.seek(0)
        whole, _, rest = self._file.read().rpartition(b"\n")
        if rest:
            self._file.truncate(len(whole) + 1 if whole else 0)
        for number, text in enumerate(whole.splitlines(), 1):
            try:
                found = msgspec.json.decode(text, type=_Outcome)
            except (msgspec.DecodeError, UnicodeError) as exc:
                raise UsageError(f"{self._path}, line {number} is no outcome of a batch: {exc}") from exc
            if self._keys.get(found.id) != found.key:
                raise UsageError(
                    f"{self._path}, line {number} is the outcome of another line, agent or option ({found.id!r}): "
                    "repeat the command that wrote it, or choose another file for --out."
                )
            self._last[found.id] = found
