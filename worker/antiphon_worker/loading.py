"""Loads the App that ``antiphon worker --app module:attribute`` names, and says where it cannot be loaded."""

from __future__ import annotations

import importlib
import logging
import sys
import sysconfig
import traceback
from pathlib import Path

from antiphon.errors import AgentError, SettingsError
from antiphon_worker.app import App

__all__ = ["load_app"]

log = logging.getLogger("antiphon.app")

INSTALLED = tuple(sysconfig.get_paths()[kind] for kind in ("stdlib", "purelib", "platlib"))


def load_app(path: str) -> App:
    """Load the App at ``module:attribute``, or return an empty App for an empty path. Raises ``SettingsError``.

    The error of the App's own code is told with its line, and at debug with its whole traceback.
    """
    if not path:
        return App()
    module_name, _, attribute = path.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        app = getattr(importlib.import_module(module_name), attribute or "app")
    except AgentError:
        raise
    except Exception as exc:
        log.debug("the App cannot be loaded", exc_info=exc)
        raise SettingsError(
            f"ANTIPHON_APP (--app) {path!r} cannot be loaded: {_place_and_text(exc)}."
        ) from exc
    if not isinstance(app, App):
        raise SettingsError(f"ANTIPHON_APP (--app) {path!r} must be an App, not {type(app).__name__}.")
    return app


def _place_and_text(exc: Exception) -> str:
    """Return the last line of the App's own code that the exception passed, and what it says, in one line."""
    if isinstance(exc, SyntaxError):
        return f"{Path(exc.filename or '').name}, line {exc.lineno}: {type(exc).__name__}: {exc.msg}"
    text = " ".join(str(exc).split()).rstrip(".")
    if not isinstance(exc, (ImportError, AttributeError)):
        text = f"{type(exc).__name__}: {text}"
    frames = [
        frame
        for frame in traceback.extract_tb(exc.__traceback__)
        if not frame.filename.startswith(("<", __file__, *INSTALLED))
    ]
    return f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}: {text}" if frames else text
