"""Replaces functions in a test's thread only: a worker in another thread of the process keeps the real ones."""

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest


def replace_here(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, replacement: Callable[..., Any]
) -> None:
    """Have this thread call ``replacement`` instead of a function of the module, until the test ends."""
    real, mine = getattr(module, name), threading.get_ident()

    def chosen(*args: Any, **options: Any) -> Any:
        return (replacement if threading.get_ident() == mine else real)(*args, **options)

    monkeypatch.setattr(module, name, chosen)
