"""``Session`` and what every runtime has in common: turns, streams, properties and the saved form."""

from antiphon.session.session import Session

__all__ = ["Session"]
