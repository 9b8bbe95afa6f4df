"""One test over a list, which reports all failures and not only the first."""

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any


def for_each(values: Iterable[Any], name: Callable[[Any], object] = str) -> Callable[[Any], Any]:
    """Call a test function once with each value as its first argument; the others are fixtures."""

    def decorate(check: Any) -> Any:
        _, *fixtures = inspect.signature(check).parameters.values()

        @wraps(check)
        def test(**given: Any) -> None:
            wrong = []
            for value in values:
                try:
                    check(value, **given)
                except Exception as exc:  # noqa: BLE001 - any exception fails a test
                    wrong.append(f"{name(value)}: {exc or type(exc).__name__}")
            assert not wrong, "\n".join([f"{len(wrong)} offenders:", *wrong])

        test.__signature__ = inspect.Signature(fixtures)  # type: ignore[attr-defined]
        return test

    return decorate
