"""What identifies a revision of an agent."""

from __future__ import annotations

from msgspec import Struct


class Revision(Struct, frozen=True, omit_defaults=True):
    """A revision of an agent: its hash, and the label that people know it by."""

    id: str
    label: str | None = None
