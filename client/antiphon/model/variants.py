"""A recorded turn that was run again, on another revision or with another model or prompt."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from antiphon.model import Message, Usage


class Variant(Struct, omit_defaults=True):
    """One run of a recorded turn: what the model said and called, the answer, and what it took."""

    model: str
    messages: list[Message] = field(default_factory=list)
    text: str = ""
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    error: str | None = None


class VariantRun(Struct, omit_defaults=True):
    """A run of an ended turn by a worker, on one of its revisions: see ``turn.replay``.

    ``at`` is when it was asked for, in milliseconds since 1970. ``variant`` is None while it is ``running``, and if it
    is ``lost`` because its worker has stopped, or has not run it within a day.
    """

    id: str
    agent: str
    revision: str
    worker: str
    at: int
    status: Literal["running", "finished", "lost"] = "running"
    step: int = 1
    model: str | None = None
    system: str | None = None
    variant: Variant | None = None
