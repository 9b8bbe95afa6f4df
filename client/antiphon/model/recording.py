"""Turns as they ran: what is needed to replay them, what the models received, and how they were run again."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field, structs

from antiphon.model import Message, Status, Usage
from antiphon.model.files import StoredFile

VERSION = 1
"""The version of the recordings that this release writes, and the latest one that it reads."""


class Recording(Struct, omit_defaults=True):
    """An ended turn, to be replayed without a network: see ``antiphon.testing.replay``.

    ``history`` are the messages of its session before it, and ``messages`` what the model has said and the tools have
    returned, with the decisions about calls. ``system`` is the session's own system prompt. ``request`` are the options
    that it was submitted with. ``files`` are the stored files that the messages name. It has neither metadata nor
    users, and what looks like a key or a password is replaced by ``[removed]``.
    """

    turn_id: str
    session_id: str
    status: Status
    input: list[Message]
    messages: list[Message]
    history: list[Message] = field(default_factory=list)
    agent: str | None = None
    revision: str = ""
    system: str | None = None
    variables: dict[str, Any] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)
    files: list[StoredFile] = field(default_factory=list)
    code: str | None = None
    error: str | None = None
    version: int = VERSION


class SessionRecording(Struct, omit_defaults=True):
    """The ended turns of a session, the first one first: see ``antiphon.testing.replay``.

    The ``history`` of a turn has only what follows the first ``shared`` messages of the history of the turn before it.
    """

    session_id: str
    turns: list[Recording]
    shared: list[int]
    version: int = VERSION

    @classmethod
    def of(cls, session_id: str, recordings: list[Recording]) -> SessionRecording:
        """Return the recordings of a session's turns, with each message of their histories once."""
        shared: list[int] = []
        turns: list[Recording] = []
        before: list[Message] = []
        for one in recordings:
            pairs = enumerate(zip(one.history, before, strict=False))
            same = next((n for n, (own, other) in pairs if own != other), min(len(one.history), len(before)))
            shared.append(same)
            turns.append(structs.replace(one, history=one.history[same:]))
            before = one.history
        return cls(session_id, turns, shared)

    def recordings(self) -> list[Recording]:
        """Return the recordings of the turns, each with its whole history. Raises ``ValueError``."""
        found: list[Recording] = []
        before: list[Message] = []
        for one, same in zip(self.turns, self.shared, strict=True):
            if not 0 <= same <= len(before):
                raise ValueError(
                    f"shared is {same} for a turn that follows one with {len(before)} messages in its history"
                )
            before = [*before[:same], *one.history]
            found.append(structs.replace(one, history=before))
        return found


MOST_BYTES = 1024 * 1024
"""A longer request is listed without its body."""


class KeptRequest(Struct, omit_defaults=True):
    """What a model received in one call: ``body`` is the JSON that was sent, without headers.

    What looks like a key or a password is replaced by ``[removed]``. ``step`` is 0 for a summary of the history. ``at``
    is the time in milliseconds since 1970, and ``size`` the length of the body in bytes. ``body`` is None if it was
    longer than 1 MiB, or if the turn's requests were too long to keep them all.
    """

    step: int
    run: int
    attempt: int
    at: int
    provider: str
    model: str
    size: int
    body: Any = None


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
