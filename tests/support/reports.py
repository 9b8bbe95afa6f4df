"""Makes test reports encodable, since a lone surrogate in one would end the whole run."""

from typing import Any


def encodable(value: Any) -> Any:
    """Return the same report, with an escape sequence for each character that UTF-8 cannot encode."""
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case list() | tuple():
            return type(value)(map(encodable, value))
        case dict():
            return {encodable(key): encodable(one) for key, one in value.items()}
        case _:
            return value
