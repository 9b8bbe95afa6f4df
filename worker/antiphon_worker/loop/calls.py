"""Tracks the running tool calls of a process, for reports about a stalled process."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager

__all__ = ["CallsUnderWay"]


class CallsUnderWay:
    """The tool calls that are running. Used from the event loop and from the threads of tools."""

    def __init__(self) -> None:
        self._calls: dict[object, str] = {}
        self._tell: Callable[[Iterable[str]], None] | None = None

    def on_change(self, tell: Callable[[Iterable[str]], None]) -> None:
        """Set a function that is called with descriptions of all running calls whenever one starts or returns."""
        self._tell = tell

    @contextmanager
    def of(self, tool: str, turn_id: str) -> Generator[None]:
        """Track a call while this context is active."""
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
