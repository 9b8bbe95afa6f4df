"""The variables and the metadata of a session as dictionaries that write through."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

from antiphon.errors import UsageError

__all__ = ["Metadata", "Variables"]


class Variables(MutableMapping[str, Any]):
    """What the variables were when they were read; setting one sets it in the session at once.

    A change inside a value (``variables["list"].append(…)``) is not seen: assign the value again.
    """

    def __init__(self, values: dict[str, Any], change: Callable[..., None]) -> None:
        self._values = values
        self._change = change  # takes what to set; and as ``remove=`` what to take away

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
        """Set several at once."""
        values = dict(*args, **kwargs)
        self._change(values)
        self._values.update(values)


class Metadata(Variables):
    """What the metadata were when they were read; setting an entry sets it in the session at once.

    None is taken away again: set it to ``None``. A change inside a value is not seen. ``dict(…)`` makes a plain copy.
    """

    def _remove(self, name: str) -> None:
        raise UsageError(f"Metadata are merged and never taken away: set {name!r} to None instead.")
