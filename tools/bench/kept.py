"""The figures that are kept: one JSON file, in which a run replaces the parts that it measured and no other."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from bench.machine import Machine
from bench.results import Result

_ROOT = Path(__file__).parents[2]
DOCS = _ROOT / "docs" / "bench.json"
"""The figures that the pages show."""
RESULTS = _ROOT / "bench-results"
"""What is not kept: quick runs, and what failed parts printed."""


class Record(msgspec.Struct):
    """One part of the benchmark as it was last measured; without a result, ``failed`` says why."""

    machine: Machine
    rounds: int
    quick: bool
    seconds: float
    result: Result | None = None
    failed: str = ""


class Kept:
    """All parts in a file. Raises ``ValueError`` where the file holds something else."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parts: dict[str, Record] = {}
        self._read()

    def put(self, name: str, record: Record) -> None:
        """Replace a part, on the disk too; what another run has written meanwhile stays."""
        self._read()
        self.parts[name] = record
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = msgspec.json.format(msgspec.json.encode(self.parts), indent=1)
        half = self.path.with_suffix(f".{os.getpid()}")
        half.write_bytes(text + b"\n")
        half.replace(self.path)

    def result(self, name: str) -> Result | None:
        record = self.parts.get(name)
        return record.result if record is not None else None

    def value(self, name: str, subject: str, what: str) -> float | None:
        """A figure of a part; None where it was not measured."""
        result = self.result(name)
        return result.value(subject, what) if result is not None else None

    def _read(self) -> None:
        if not self.path.exists():
            return
        try:
            self.parts = msgspec.json.decode(self.path.read_bytes(), type=dict[str, Record])
        except msgspec.MsgspecError as exc:
            raise ValueError(
                f"{self.path} holds no figures of this benchmark ({exc}): move it away, or name another with --json."
            ) from None
