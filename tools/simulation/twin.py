"""A cell of Redis that makes each transition in the model too, and compares the answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from antiphon.wire.cell import Cell
from simulation.direct import DirectRedis
from simulation.model import Model
from simulation.state import require

# What the model leaves out: scripts beside turns, and fields that only servers write.
WITHOUT = (
    "schedules/", "limits/", "webhooks/", "notices/", "editing/erase", "keep_variant",
    "pushes/",    "batches/collect", "batches/take", "batches/note", "batches/leave",
)  # fmt: skip
OF_SERVERS = {"restored"}


class TwinCell(Cell):
    """Runs each script, makes the same transition in the model, and compares the answers."""

    def __init__(self, redis: DirectRedis, model: Callable[[], Model]) -> None:
        super().__init__(redis, clock="test_clock")  # type: ignore[arg-type]
        self._model = model
        self.answers: set[str] = set()  # all that scripts have given: `<script> <answer>`

    async def run(self, name: str, *arguments: Any) -> Any:
        answer = await super().run(name, *arguments)
        self.answers.add(f"{name} {answer[0].decode()}")
        if not name.startswith(WITHOUT):
            script, model = name.rpartition("/")[2], self._model()
            repeated = script == "claim" and model.tokens.get(arguments[0]) == arguments[1]
            found = getattr(model, script)(*arguments)
            is_, should_be = read(script, answer, repeated), read(script, found, repeated)
            require(is_ == should_be, f"the answer of {script}", is_, should_be)
        return answer


def read(script: str, answer: Any, repeated: bool) -> Any:
    """An answer as it can be compared: of records, which are lists of names and values, the order does not count."""
    if script == "delete":
        return plain(answer[:2])  # whether earlier turns may be kept is known to Redis alone
    if script == "list_files":
        return plain([answer[0], sorted(answer[1])])
    if script == "reap":  # what RQ said of turns that had ended is no transition
        return plain([act for act in answer[1] if act[2] != b"corrected"])
    if repeated:
        return [sorted(map(str, plain(one))) if isinstance(one, list) else one for one in answer]
    if script != "snapshot" or len(answer) == 1:
        return plain(answer)
    *before, fields, inbox, turns, order = answer
    return (
        plain([*before, inbox, order]),
        paired(fields),
        [(plain(turn), paired(flat)) for turn, flat in turns],
    )


def paired(flat: list[bytes]) -> dict[str, Any]:
    """A record that an answer has as a list. A field without a value counts as none."""
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return {name.decode(): plain(value) for name, value in pairs if value and name.decode() not in OF_SERVERS}


def plain(value: Any) -> Any:
    """A value as it can be compared: numbers and JSON whatever their spelling."""
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value
