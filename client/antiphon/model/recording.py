"""A turn as it ran: what is needed to replay it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from antiphon.model import Message, Status
from antiphon.model.files import StoredFile


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
    version: int = 1
