"""Scripts from another folder than the package's: for one block of code, or as a pytest plugin for a whole run."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from antiphon.wire import scripts

SCRIPTS = Path(str(scripts._FOLDER))
FOLDER = "MUTATED_SCRIPTS"


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


def pytest_configure() -> None:
    scripts._FOLDER = Path(os.environ[FOLDER])
    scripts.load_script.cache_clear()
