"""Holds the answers of an App's own providers and functions to their types: they are stored, and read again."""

from __future__ import annotations

import msgspec

from antiphon.errors import TurnFailed
from antiphon.ext.turns import ModelAnswer
from antiphon_worker.providers.base import StepResult

__all__ = ["check_form"]


def check_form(answer: StepResult | ModelAnswer) -> None:
    """Raise ``TurnFailed`` for an answer that nobody could read from its JSON."""
    try:
        msgspec.json.decode(msgspec.json.encode(answer), type=type(answer))
    except msgspec.ValidationError as exc:
        raise TurnFailed(
            f"The App's own provider or function gave an answer of a wrong form: {exc}.",
            code="internal_error",
        ) from exc
