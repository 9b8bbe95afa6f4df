"""The first part of every key, which the clients, agents and workers of one deployment share."""

from __future__ import annotations

import os
import re

from antiphon.errors import SettingsError
from antiphon.wire.keys import PREFIX

__all__ = ["PREFIX_VARIABLE", "prefix_of"]

PREFIX_VARIABLE = "ANTIPHON_PREFIX"
_PREFIX = re.compile(r"[A-Za-z0-9_.-]+")


def prefix_of(given: object = None) -> str:
    """Return the first part of every key: the given one, ``ANTIPHON_PREFIX`` or ``ant``. Raises ``SettingsError``."""
    prefix = (os.environ.get(PREFIX_VARIABLE) or PREFIX) if given is None else given
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise SettingsError(
            f"prefix= ({PREFIX_VARIABLE}) may contain letters, digits, '_', '.' and '-' only, not {prefix!r}."
        )
    return prefix
