"""The variables of a session as a dictionary that writes through."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Protocol

__all__ = ["Variables"]


class _Settable(Protocol):
    def set_variables(self, variables: Mapping[str, Any], *, remove: list[str] = ...) -> None: ...


class Variables(MutableMapping[str, Any]):
    """What the variables were when they were read; setting one sets it in the session at once.

    A change inside a value (``variables["list"].append(…)``) is not seen: assign the value again.
    """

    def __init__(self, session: _Settable, values: dict[str, Any]) -> None:
        self._session = session
        self._values = values

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._session.set_variables({name: value})
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        if name not in self._values:
            raise KeyError(name)
        self._session.set_variables({}, remove=[name])
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Set several variables at once."""
        values = dict(*args, **kwargs)
        self._session.set_variables(values)
        self._values.update(values)
