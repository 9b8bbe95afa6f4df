"""Which tool calls a process has under way, for whoever must say what it was doing when it stood still."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager

__all__ = ["CallsUnderWay"]


class CallsUnderWay:
    """The tool calls that have begun and not returned; used from the event loop and from the tools' threads."""

    def __init__(self) -> None:
        self._calls: dict[object, str] = {}
        self._tell: Callable[[Iterable[str]], None] | None = None

    def on_change(self, tell: Callable[[Iterable[str]], None]) -> None:
        """Call this with all calls under way, each as a sentence, whenever one begins or returns."""
        self._tell = tell

    @contextmanager
    def of(self, tool: str, turn_id: str) -> Generator[None]:
        """A call is under way within this."""
        call = object()
        self._calls[call] = f"{tool} in turn {turn_id}"
        self._changed()
        try:
            yield
        finally:
            del self._calls[call]
            self._changed()

    def _changed(self) -> None:
        if self._tell is not None:
            self._tell(dict.fromkeys(self._calls.copy().values()))
