"""Reports of tests, as a test process sends them: half a character would end the whole run."""

from typing import Any


def encodable(value: Any) -> Any:
    """The same report, with each character that UTF-8 does not have as its escape sequence."""
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case list() | tuple():
            return type(value)(map(encodable, value))
        case dict():
            return {encodable(key): encodable(one) for key, one in value.items()}
        case _:
            return value
