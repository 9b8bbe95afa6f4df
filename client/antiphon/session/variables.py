"""The variables and the metadata of a session as dictionaries that write through."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Protocol

from antiphon.errors import UsageError

__all__ = ["Metadata", "Variables"]


class _Settable(Protocol):
    def set_variables(self, variables: Mapping[str, Any], *, remove: list[str] = ...) -> None: ...
    def set_metadata(self, metadata: Mapping[str, Any]) -> None: ...


class _WritesThrough(MutableMapping[str, Any]):
    """What the values were when they were read."""

    def __init__(self, session: _Settable, values: dict[str, Any]) -> None:
        self._session = session
        self._values = values

    @abstractmethod
    def _set(self, values: dict[str, Any]) -> None: ...

    @abstractmethod
    def _remove(self, name: str) -> None: ...

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._set({name: value})
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
        self._set(values)
        self._values.update(values)


class Variables(_WritesThrough):
    """What the variables were when they were read; setting one sets it in the session at once.

    A change inside a value (``variables["list"].append(…)``) is not seen: assign the value again.
    """

    def _set(self, values: dict[str, Any]) -> None:
        self._session.set_variables(values)

    def _remove(self, name: str) -> None:
        self._session.set_variables({}, remove=[name])


class Metadata(_WritesThrough):
    """What the metadata were when they were read; setting an entry sets it in the session at once.

    None is taken away again: set it to ``None``. A change inside a value is not seen. ``dict(…)`` makes a plain copy.
    """

    def _set(self, values: dict[str, Any]) -> None:
        self._session.set_metadata(values)

    def _remove(self, name: str) -> None:
        raise UsageError(f"Metadata are merged and never taken away: set {name!r} to None instead.")
