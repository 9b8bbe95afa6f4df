"""What a tool can read about its call and publish while it runs."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Protocol

import msgspec
from msgspec import Struct, field

from antiphon.errors import UsageError
from antiphon.input.limits import LIMITS, check_depth, check_size
from antiphon.input.values import is_a

_EVENT_NAME = re.compile(r"[a-zA-Z0-9_.:/-]{1,64}")


class CallUnderWay(Protocol):
    """The call of a ``Context``, provided by a runtime. All threads may use it."""

    @property
    def cancelled(self) -> bool: ...

    def progress(self, text: str, fraction: float | None) -> None: ...

    def emit(self, name: str, data: Any) -> None: ...


class Context(Struct):
    """The session, turn and call that a tool runs in. ``variables`` are the session's: changes to them are saved when
    the turn finishes.

    ``attempt`` counts the attempts at the turn, as in its events: it is 2 if a worker died with the first one. ``run``
    counts the runs of the turn, and ``step`` its model calls. Make one yourself to call a tool in a test; it is not
    cancelled, and it checks what the tool says and publishes nothing:

    >>> context = Context("user-123", "turn-1", "call_1")
    >>> context.progress("Page 3 of 10", 0.3)
    >>> context.cancelled
    False
    """

    session_id: str = ""
    turn_id: str = ""
    call_id: str = ""
    variables: dict[str, Any] = field(default_factory=dict)
    attempt: int = 1
    run: int = 1
    step: int = 0
    _call: CallUnderWay | None = None

    def of_call(self, call_id: str, step: int = 0, call: CallUnderWay | None = None) -> Context:
        """Return a copy for one tool call. The variables are shared."""
        return Context(
            self.session_id, self.turn_id, call_id, self.variables, self.attempt, self.run, step, call
        )

    @property
    def key(self) -> str:
        """A key for services that must do a thing once: 32 hexadecimal digits.

        It is the same whenever this call is repeated, after a crash or a retry and on every worker. Every other call
        has another one; so have the calls of the turn's next run, after ``requeue``.

        >>> Context("s", "turn-1", "call_1").key == Context("s", "turn-1", "call_1", attempt=2).key
        True
        >>> Context("s", "turn-1", "call_1").key == Context("s", "turn-1", "call_2").key
        False
        """
        place = msgspec.json.encode([self.turn_id, self.run, self.step, self.call_id])
        return hashlib.sha256(place).hexdigest()[:32]

    @property
    def cancelled(self) -> bool:
        """True as soon as the result of this call is no longer needed. It stays true. All threads may read it.

        The turn was cancelled, exceeded its time limit or lost its lease, its worker stops, or the call itself took
        too long. It is true also after the call has returned.
        """
        return self._call is not None and self._call.cancelled

    def progress(self, text: str, fraction: float | None = None) -> None:
        """Publish the tool's progress as a ``tool_progress`` event. ``fraction`` is the done part, from 0 to 1.

        All threads may call this; it does not wait. Text beyond 4 KiB is cut. A call publishes at once after a
        silence, and then every 50 ms: of what is said meanwhile, the last is published. It may be lost in a crash.
        Raises ``UsageError`` if an argument is not as described.
        """
        if not is_a(text, str):
            raise UsageError(f"text= must be text, not {type(text).__name__}.")
        if fraction is not None:
            fraction = _checked_fraction(fraction)
        if self._call is not None:
            self._call.progress(_cut(text), fraction)

    def emit(self, name: str, data: Any = None) -> None:
        """Publish an event of your own: ``custom``, with this name and with data that has a JSON form.

        All threads may call this; it does not wait. The events of a call are published in order. They may be lost in a
        crash, and a call that is repeated publishes them again. Raises ``UsageError`` if the name or the data cannot be
        sent, and ``LimitReached`` beyond 16 KiB of JSON or 1,000 events of one call.

        >>> Context().emit("order.placed", {"order": 17})
        """
        if not is_a(name, str) or not _EVENT_NAME.fullmatch(name):
            raise UsageError(
                f"{str(name)[:80]!r} is not a valid event name: use 1 to 64 letters, digits and any of '_.:/-'."
            )
        found = _plain_data(name, data)
        if self._call is not None:
            self._call.emit(name, found)


def _checked_fraction(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise UsageError(f"fraction= must be a number from 0 to 1 or None, not {value!r}.")
    return float(value)


def _cut(text: str) -> str:
    """Return at most ``progress_bytes`` of the text. Lone surrogates, which cannot be stored, become ``?``."""
    most = LIMITS.progress_bytes
    data = text[: most + 1].encode("utf-8", "replace")
    if len(data) <= most:
        return data.decode()
    return data[: most - len("…".encode())].decode("utf-8", "ignore") + "…"


def _plain_data(name: str, data: Any) -> Any:
    """Return a copy of the data as plain JSON types. Raises ``UsageError`` and ``LimitReached``."""
    try:
        encoded = msgspec.json.encode(data)
        check_size("custom_bytes", len(encoded), f"The data of the event {name!r} in bytes")
        found = msgspec.json.decode(encoded)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as exc:
        raise UsageError(f"The data of the event {name!r} cannot be written as JSON: {exc}.") from exc
    check_depth(found, f"The data of the event {name!r}")
    return found
