"""Which parts of each kind of value are encrypted, and which stay in plain text because scripts and lists read them.

Ids, kinds, counters, times, tokens used, codes of errors, and names of queues, tenants and workers stay in plain text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from antiphon.encryption.keyring import EncryptionSettings, Keyring, keyring_of_process
from antiphon.encryption.values import MARK, RAW_MARK, Values
from antiphon.errors import CorruptRecord, SealBroken
from antiphon.input.ids import cell_hash
from antiphon.text import text_of

NEWER_THAN_UNSEALED = b'"version":1000,'
"""Precedes the encrypted members of a record that workers run. A release without encryption leaves such a record to
other workers, as it does with any newer version."""


class Form(NamedTuple):
    """How values of a kind are encrypted: as a whole JSON value, as a ``text``, or as the members of a JSON object.

    Of an object, the members ``clear`` stay in plain text. Those in ``bound`` are encrypted as well, so that they
    cannot be changed, and ``before`` precedes the encrypted members. Scripts add the members ``added`` in plain text;
    ``within`` maps members that scripts insert to the forms of their values. A strict reader drops unknown members in
    plain text that are not strings, objects or arrays.
    """

    kind: str = ""
    text: bool = False
    clear: tuple[str, ...] | None = None
    bound: tuple[str, ...] = ()
    before: bytes = b""
    added: tuple[str, ...] = ()
    within: Mapping[str, str] = {}


FORMS: dict[str, Form] = {
    "request": Form(
        "request", clear=("trace",), added=("version",), bound=("version",), before=NEWER_THAN_UNSEALED,
        within={"messages": "input"},
    ),
    "journal": Form(
        "journal", clear=(), before=NEWER_THAN_UNSEALED, added=("version", "type", "turn_id", "created"),
        within={"request": "request", "decision": "decision"},
    ),
    # In plain text: the fields by which readers follow a session and the course of a turn.
    "event": Form(
        "event", clear=("type", "session_id", "turn_id", "run", "attempt", "step", "kept", "keep", "code"),
        added=("seq", "at", "position", "worker", "retry_at", "input_omitted", "steered_id", "steered_into",
               "event_name", "event_id", "wait_id"),
        within={
            "input": "input", "reason": "reason", "message": "reason", "service": "service", "calls": "call",
            "waits": "call", "decisions": "decision",
        },
    ),
    "call": Form("call", clear=("call_id", "kind", "seconds", "at_limit", "until"), bound=("call_id",)),
    "decision": Form("decision", clear=("call_id", "kind", "at"), bound=("call_id", "kind")),
    "titled": Form("titled", clear=("turn_id",), bound=("turn_id",)),
    "run": Form(
        clear=(), added=("run", "status", "attempt", "started", "ended", "code"),
        within={"error": "reason", "response": "response", "journal": "journal", "service": "service"},
    ),
    **{
        kind: Form(kind)
        for kind in (
            "input", "message", "response", "service", "agent", "metadata", "variables", "offered", "files", "plan",
            "file", "fact", "sent", "feedback", "recording", "kept", "batched", "route",
            "variant", "push",
        )
    },
    **{
        kind: Form(kind, text=True)
        for kind in (
            "reason", "key", "system", "summary", "webhook_url", "webhook_agent", "webhook_secret", "webhook_error",
        )
    },
}  # fmt: skip

Fields = Mapping[str, str]
"""The forms of a record's fields. All other fields are in plain text."""

TURN: Fields = {
    "request": "request", "response": "response", "service": "service", "retry_service": "service", "agent": "agent",
    "metadata": "metadata", "calls": "call", "waits": "call", "journal": "journal", "steered": "journal", "runs": "run",
    "error": "reason", "cancel": "reason", "retry_reason": "reason", "key": "key",
    "feedback": "feedback", "route": "route",
}  # fmt: skip
SESSION: Fields = {
    name: name
    for name in ("agent", "variables", "offered", "metadata", "files", "system", "summary", "titled", "route")
}
WEBHOOK: Fields = {name: f"webhook_{name}" for name in ("url", "agent", "secret", "error")}

LINES = ("journal", "run")
"""The forms whose fields may contain several values, one per line."""

NO_KEY = "A worker without the key of this turn has requeued it."
NOT_SHOWN = "The reason cannot be decrypted."
_REASONS = re.compile(
    r"cancelled|cancelled in RQ|The session was deleted\.|(interrupted by|rolled back for) turn [\w-]{1,200}"
    r"|Nobody decided about a tool call of this turn within its time limit\."
    r"|(The turn was given up after [0-9]{1,9} crashes of its worker\.)? ?"
    r"(The worker died\.|The event loop of its worker stood still\.)?"
    r"|A worker without the key of this turn has requeued it\."
)
"""Reasons that are written without a key, by scripts and by workers that recover other workers' turns."""

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode
_items = msgspec.json.Decoder(list[msgspec.Raw])
_SEALED = re.compile(rb'"\\u007f([0-9]+:[a-z_]+:[^"\\]*)"')


class Opened(bytes):
    """The decrypted value of a field. ``stored`` is its form in Redis, for scripts that compare it."""

    stored: bytes


class Sealer(Values):
    """Encrypts and decrypts values by the table of their forms."""

    def __str__(self) -> str:
        if not self.on:
            return "content in plain text"
        return "content encrypted" if self.strict else "content encrypted, plain text accepted"

    def seal(self, place: str, name: str, data: bytes) -> bytes:
        """Encrypt a value. An empty value stays empty."""
        form = FORMS[name]
        if not data:
            return data
        if form.text:
            return self._seal_text(place, name, data)
        if not self.on:
            return data
        return (
            self.as_json(place, form.kind, data)
            if form.clear is None
            else self._seal_members(place, form, data)
        )

    def seal_all(self, place: str, name: str, values: Sequence[bytes]) -> Sequence[bytes]:
        """Encrypt several values."""
        return [self.seal(place, name, one) for one in values] if self.on else values

    def seal_fields(self, place: str, forms: Fields, fields: Mapping[str, bytes]) -> dict[str, bytes]:
        """Encrypt the fields of a record that have a form."""
        return {
            name: self.seal(place, forms[name], data) if name in forms else data
            for name, data in fields.items()
        }

    def seal_request(self, place: str, request: bytes, shown_input: int) -> tuple[bytes, int]:
        """Encrypt a request. Its input is encrypted separately, because scripts copy it into events and journals.

        ``shown_input`` is the length of the input in the request, or 0. Returns the encrypted request and the new
        length.
        """
        if not self.on:
            return request, shown_input
        whole = _members.decode(request)
        said = self.seal(place, "input", bytes(whole.pop("messages", b"[]")))
        rest = self._seal_members(place, FORMS["request"], _encode({"version": msgspec.Raw(b"1"), **whole}))
        return b'{"messages":' + said + b"," + rest[1:], len(said) if shown_input else 0

    def open(self, place: str, name: str, data: bytes) -> bytes:
        """Decrypt everything in a value that is encrypted. An empty value stays empty.

        Raises ``KeyMissing``, ``SealBroken``, ``NotEncrypted`` and ``CorruptRecord``.
        """
        if not data:
            return data
        if FORMS[name].text:
            return self._open_text(place, name, data)
        if self.ring is None:
            found = _SEALED.search(data) if MARK in data else None
            return self.decrypted(place, name, found[1]) if found else data
        try:
            if name not in LINES:
                return self._open_json(place, name, data)
            return b"\n".join(self._open_json(place, name, line) for line in data.split(b"\n") if line)
        except (msgspec.MsgspecError, RecursionError) as exc:
            raise CorruptRecord(f"A value of the kind {name!r} cannot be read: {exc}.") from exc

    def open_all(self, place: str, name: str, values: Sequence[bytes]) -> list[bytes]:
        """Decrypt several values."""
        return [self.open(place, name, one) for one in values]

    def open_fields(self, place: str, forms: Fields, fields: Mapping[str, bytes]) -> dict[str, bytes]:
        """Decrypt the fields of a record that have a form. Values that were encrypted become ``Opened``."""
        return {name: self.open_field(place, forms, name, data) for name, data in fields.items()}

    def open_field(self, place: str, forms: Fields, name: str, data: bytes) -> bytes:
        """Decrypt a field of a record, as ``open_fields`` does."""
        if name not in forms:
            return data
        plain = self.open(place, forms[name], data)
        if plain == data:
            return data
        opened = Opened(plain)
        opened.stored = data
        return opened

    def open_turn(self, turn_id: str, fields: Mapping[str, bytes]) -> dict[str, bytes]:
        """Decrypt the record of a turn. It names its session, and the turn's id begins with the session's hash."""
        session = text_of(fields.get("session"))
        if self.strict and not turn_id.startswith(cell_hash(session)):
            raise SealBroken(
                "The record is one of another session's turn: it was copied from there.", turn_id=turn_id
            )
        found = self.open_fields(session, TURN, fields)
        for name in [name for name in fields if name.startswith(("decision:", "asks:"))]:
            form = "decision" if name.startswith("decision:") else "call"
            first, _, rest = fields[name].partition(b" ")
            found[name] = first + b" " + self.open(session, form, rest)
        return found

    def reason(self, place: str, text: str) -> str:
        """Decrypt the reason of a cancellation, failure or retry. A reason that cannot be decrypted is not shown."""
        try:
            return text_of(self.open(place, "reason", text.encode()))
        except CorruptRecord:
            return NOT_SHOWN

    def _seal_text(self, place: str, name: str, data: bytes) -> bytes:
        """Encrypt a text. Without keys, change a user's text that looks encrypted."""
        before, data = _covered(name, data)
        if self.on and data:
            return before + RAW_MARK + self.encrypted(place, name, msgspec.json.encode(text_of(data)))
        return before + data.lstrip(RAW_MARK)

    def _open_text(self, place: str, name: str, data: bytes) -> bytes:
        before, data = _covered(name, data)
        if data.startswith(RAW_MARK):
            opened = self.decrypted(place, name, data.removeprefix(RAW_MARK))
            return before + msgspec.json.decode(opened, type=str).encode()
        return before + self._plain_text(name, data)

    def _plain_text(self, name: str, data: bytes) -> bytes:
        if not data or not self.strict:
            return data
        if name == "reason":
            return data if _REASONS.fullmatch(text_of(data)) else NOT_SHOWN.encode()
        return self.plain(name, data)

    def _seal_members(self, place: str, form: Form, data: bytes) -> bytes:
        whole = _members.decode(data)
        clear: dict[str, msgspec.Raw] = {}
        for name in form.clear or ():
            if name in whole:
                clear[name] = whole[name]
                if name not in form.bound:
                    del whole[name]
        if not whole:
            return _encode(clear)
        sealed = form.before + b'"sealed":' + self.as_json(place, form.kind, _encode(whole)[1:-1])
        return _encode(clear)[:-1] + (b"," if clear else b"") + sealed + b"}"

    def _open_json(self, place: str, name: str, data: bytes) -> bytes:
        form = FORMS[name]
        if data.startswith(MARK):
            return self.from_json(place, form.kind, data)
        if form.clear is not None and data.startswith(b"["):
            return (
                b"["
                + b",".join(self._open_json(place, name, bytes(one)) for one in _items.decode(data))
                + b"]"
            )
        if form.clear is not None and data.startswith(b"{"):
            return self._open_members(place, form, data)
        if form.text and data.startswith(b'"'):
            text = msgspec.json.decode(data, type=str).encode()
            return msgspec.json.encode(text_of(self._plain_text(name, text)))
        return data if data == b"null" else self.plain(name, data)

    def _open_members(self, place: str, form: Form, data: bytes) -> bytes:
        """Decrypt the members of an object. Encrypted members replace those of the same name in plain text."""
        whole, known = _members.decode(data), {*(form.clear or ()), *form.added}
        sealed = bytes(whole.pop("sealed", b""))
        inner = self.from_json(place, form.kind, sealed) if sealed.startswith(MARK) else b""
        if inner and form.before:
            whole.pop("version", None)
        found: dict[str, msgspec.Raw] = {}
        for name, value in whole.items():
            if name in form.within:
                found[name] = msgspec.Raw(self._open_json(place, form.within[name], bytes(value)))
            elif name in known or not self.strict:
                found[name] = value
            elif bytes(value)[:1] in b'"{[':
                self.plain(form.kind or "run", data)
        encrypted = _members.decode(b"{" + inner + b"}")
        if not encrypted.keys() >= {*form.bound}:
            self.plain(form.kind, data)
        return _encode({**found, **encrypted})


def _covered(name: str, data: bytes) -> tuple[bytes, bytes]:
    """Split a summary into the number of messages that it covers, which scripts read, and its text."""
    if name != "summary":
        return b"", data
    messages, colon, text = data.partition(b":")
    return messages + colon, text


def stored(data: bytes) -> bytes:
    """Return the stored form of a field's value."""
    return data.stored if isinstance(data, Opened) else data


def sealer_of(encryption: Keyring | None = None) -> Sealer:
    """Return a ``Sealer`` with these keys, or with those of the process. Raises ``SettingsError``."""
    return Sealer(encryption or keyring_of_process(), EncryptionSettings.load().accept_plaintext)
