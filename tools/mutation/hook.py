"""Loads scripts from another folder than the package's, for one block of code."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from antiphon.wire import scripts

SCRIPTS = Path(str(scripts._FOLDER))


@contextmanager
def scripts_from(folder: Path) -> Iterator[None]:
    """Load every script from ``folder``."""
    before = scripts._FOLDER
    scripts._FOLDER = folder
    scripts.load_script.cache_clear()
    try:
        yield
    finally:
        scripts._FOLDER = before
        scripts.load_script.cache_clear()
