"""A cell of Redis that also makes each transition in the model, and compares the answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from antiphon.wire.cell import Cell
from simulation.direct import DirectRedis
from simulation.model import Model
from simulation.state import require

# Not in the model: scripts that do not concern turns, and fields that only servers write.
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
        self.answers: set[str] = set()  # all answers of scripts: `<script> <answer>`

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
    """Return an answer in comparable form: in records (lists of names and values), the order does not count."""
    if script == "delete":
        return plain(answer[:2])  # only Redis knows whether earlier turns may be kept
    if script == "list_files":
        return plain([answer[0], sorted(answer[1])])
    if script == "reap":  # correcting RQ's status of ended turns is not a transition
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
    """Return the record that an answer has as a list. A field without a value counts as absent."""
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return {name.decode(): plain(value) for name, value in pairs if value and name.decode() not in OF_SERVERS}


def plain(value: Any) -> Any:
    """Return a value in comparable form, with numbers and JSON parsed."""
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
