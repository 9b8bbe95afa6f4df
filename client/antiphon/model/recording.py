"""Recordings of turns for a replay, the requests that models received, and variants of turns."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field, structs

from antiphon.model import Message, Status, Usage
from antiphon.model.files import StoredFile

VERSION = 1
"""The version of the recordings that this release writes, and the latest one that it reads."""


class Recording(Struct, omit_defaults=True):
    """An ended turn, to be replayed without a network: see ``antiphon.testing.replay``.

    ``history`` contains the session's messages before the turn, and ``messages`` the answers of the model and the
    results of the tools, with the decisions about calls. ``system`` is the session's own system prompt. ``request``
    contains the options that the turn was submitted with, and ``files`` the stored files that the messages name.
    Metadata and users are left out, and text that looks like a key or a password is replaced by ``[removed]``.
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
    """The ended turns of a session, the oldest first: see ``antiphon.testing.replay``.

    Each turn's ``history`` omits the first messages that it has in common with the previous turn's history;
    ``shared`` is their number.
    """

    session_id: str
    turns: list[Recording]
    shared: list[int]
    version: int = VERSION

    @classmethod
    def of(cls, session_id: str, recordings: list[Recording]) -> SessionRecording:
        """Return the recordings of a session's turns, in which each message of their histories occurs once."""
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
        """Return the recordings of the turns, each with its full history. Raises ``ValueError``."""
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
    """The request of one model call: ``body`` is the JSON that was sent, without headers.

    Text that looks like a key or a password is replaced by ``[removed]``. ``step`` is 0 for a summary of the history.
    ``at`` is the time in milliseconds since 1970, and ``size`` the length of the body in bytes. ``body`` is None if
    it was longer than 1 MiB, or if the turn's requests together were too long to keep.
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
    """One run of a recorded turn: the model's messages and tool calls, the answer, usage and time."""

    model: str
    messages: list[Message] = field(default_factory=list)
    text: str = ""
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    error: str | None = None


class VariantRun(Struct, omit_defaults=True):
    """A run of an ended turn by a worker, on one of the worker's revisions: see ``turn.replay``.

    ``at`` is when it was requested, in milliseconds since 1970. ``variant`` is None while it is ``running``, and if
    it is ``lost`` because its worker stopped or did not run it within a day.
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
