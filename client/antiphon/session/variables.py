"""Dictionaries that save each change of a session's variables or metadata at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

from antiphon.errors import UsageError


class Variables(MutableMapping[str, Any]):
    """The variables of a session, as they were when read. Setting or deleting one saves the change at once.

    A change inside a value (``variables["list"].append(…)``) is not saved: assign the value again.
    """

    def __init__(self, values: dict[str, Any], change: Callable[..., None]) -> None:
        self._values = values
        self._change = change  # called with the values to set, and with the names to remove as ``remove=``

    def _remove(self, name: str) -> None:
        self._change({}, remove=[name])

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._change({name: value})
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        if name not in self._values:
            raise KeyError(name)
        self._remove(name)
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Set several variables in one operation."""
        values = dict(*args, **kwargs)
        self._change(values)
        self._values.update(values)


class Metadata(Variables):
    """The metadata of a session, as they were when read. Setting an entry saves it at once.

    Entries cannot be deleted: set them to ``None``. A change inside a value is not saved. ``dict(…)`` makes a plain
    copy.
    """

    def _remove(self, name: str) -> None:
        raise UsageError(f"Metadata entries cannot be deleted: set {name!r} to None instead.")
