"""Errors that came over the wire as a code and a sentence, as the classes that Python catches."""

from __future__ import annotations

from antiphon.errors import AgentError, TurnError, TurnFailed

__all__ = ["error_of"]


def error_of(code: str, message: str, session_id: str, turn_id: str) -> AgentError:
    """The error of a turn that ended with this code: of its own class where we know it, else ``TurnFailed``."""
    known = _by_code(AgentError).get(code)
    if known is None:
        return TurnFailed(message or None, code=code or None, session_id=session_id, turn_id=turn_id)
    return known(message or None, session_id=session_id, turn_id=turn_id)


def _by_code(root: type[AgentError]) -> dict[str, type[AgentError]]:
    found: dict[str, type[AgentError]] = {}
    for child in root.__subclasses__():
        found |= _by_code(child)
    if root not in (AgentError, TurnError):
        found[str(root.code)] = root
    return found
