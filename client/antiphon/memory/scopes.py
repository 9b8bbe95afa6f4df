"""Whose turns belong together: the scope of a memory, and the text that stands for one."""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

__all__ = ["Scope", "scope_key"]

Scope = Literal["session", "agent", "tenant"]


def scope_key(
    prefix: str, name: str, scope: Scope, *, tenant: str | None, agent: str | None, session: str | None
) -> str:
    """Return the text that all turns of one scope have in common, and no others.

    >>> mine = scope_key("ant", "memory", "tenant", tenant="acme", agent="host", session="s-1")
    >>> mine == scope_key("ant", "memory", "tenant", tenant="acme", agent="other", session="s-2")
    True
    >>> mine == scope_key("ant", "memory", "tenant", tenant="rival", agent="host", session="s-1")
    False
    """
    whose = {"session": session, "agent": agent, "tenant": None}[scope]
    whole = msgspec.json.encode([prefix, name, tenant, scope, whose])
    return hashlib.sha256(whole).hexdigest()[:40]
