"""What a stored record says of its version: a worker gives back what only a newer release can run."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from antiphon.errors import CorruptRecord

__all__ = ["KNOWN", "NewerRecord", "refuse_newer"]

KNOWN = {"request": 3, "agent": 4, "journal entry": 2}
"""The newest versions that this release can run. A record without a version is of the first."""


class NewerRecord(CorruptRecord):
    """A newer release has written this record. It is whole, but this release does not know how to run it."""


def refuse_newer(kind: str, data: bytes) -> None:
    """Raise ``NewerRecord`` if a record in JSON, or the agent within it, says that it is of a newer version.

    A version is a number, or its digits as text. Raises ``CorruptRecord`` if it is something else; other damage is left
    to whoever reads the record.
    """
    if b'"version"' not in data:
        return
    try:
        record = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return
    _check(kind, record)
    if isinstance(agent := record.get("agent"), dict):
        _check("agent", cast("dict[str, Any]", agent))


def _check(kind: str, record: dict[str, Any]) -> None:
    if "version" not in record:
        return
    version = str(record["version"])
    if not version.isdecimal() or len(version) > 9:
        raise CorruptRecord(f"The {kind} of this turn cannot be read: its version is {version[:40]!r}.")
    if int(version) > KNOWN[kind]:
        raise NewerRecord(
            f"The {kind} of this turn is of version {version}, and this worker knows versions up to {KNOWN[kind]}: "
            "a worker of a newer release must run the turn."
        )
