"""``Session`` and the parts that all runtimes share: turns, streams, properties and the saved form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphon.lazy import names_of

if TYPE_CHECKING:
    from antiphon.session.session import Session

__all__ = ["Session"]

__getattr__, __dir__ = names_of(__name__, {"Session": "session"})
