"""Removes keys and passwords from what leaves a deployment, such as the recording of a turn.

It removes the values of this process's environment variables with names such as ``OPENAI_API_KEY``, texts in the form
of a known kind of key, passwords in URLs, and values with the names of secrets, also in JSON within a text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import msgspec

from antiphon.model.recording import Recording

REMOVED = "[removed]"
SHORTEST = 12  # of a value in the environment: a shorter one could occur in any text

_NAME = re.compile(
    r"(?:x-)?api[_-]?key|(?:auth|access|refresh|id|session)[_-]?token|token|passwd|password|passphrase|"
    r"(?:client[_-]?)?secret|authorization|proxy-authorization|cookie|set-cookie|private[_-]?key|credentials?",
    re.IGNORECASE,
)
_FIELD = re.compile(r"""(\\?["']([\w-]{1,40})\\?["']\s*:\s*\\?["'])((?:[^"'\\]|\\(?!["']))+)""")
_KEY = re.compile(
    r"\b(?:sk|rk|pk)[-_][A-Za-z0-9_-]{16,}"
    r"|\bantk_[\w-]{20,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}"
    r"|\bxox[abeprs]-[\w-]{10,}|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[\w-]{30,}|\bwhsec_[A-Za-z0-9+/=]{16,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----",
    re.DOTALL,
)
_BEARER = re.compile(r"\b((?:Bearer|Basic)\s+)[\w.~+/=-]{12,}", re.IGNORECASE)
_IN_URL = re.compile(r"(\w://[^\s/:@]*:)[^\s/@]+(?=@)")
_VARIABLE = re.compile(r"(?:^|_)(?:KEYS?|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(?:_|$)", re.IGNORECASE)


def without_secrets(recording: Recording) -> Recording:
    """Return a recording without texts that look like keys or passwords. The contents of files are unchanged."""
    plain = msgspec.to_builtins(msgspec.structs.replace(recording, files=[]))
    found = msgspec.convert(cleaned(plain), Recording)
    found.files = recording.files
    return found


def cleaned(value: Any) -> Any:
    """Return a JSON value without texts that look like keys or passwords."""
    return _walk(value, partial(_text, own=_of_environment()))


def _walk(value: Any, clean: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_walk(one, clean) for one in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {
            name: REMOVED if isinstance(one, str) and one and _NAME.fullmatch(name) else _walk(one, clean)
            for name, one in cast("dict[str, Any]", value).items()
        }
    return value


def _text(text: str, own: Sequence[str]) -> str:
    for secret in own:
        text = text.replace(secret, REMOVED)
    text = _FIELD.sub(_field, text)
    return _IN_URL.sub(rf"\1{REMOVED}", _BEARER.sub(rf"\1{REMOVED}", _KEY.sub(REMOVED, text)))


def _field(found: re.Match[str]) -> str:
    return found[1] + REMOVED if _NAME.fullmatch(found[2]) else found[0]


def _of_environment() -> list[str]:
    """Return the secrets in the environment, and the parts of lists of keys, the longest first."""
    values = [value for name, value in os.environ.items() if _VARIABLE.search(name)]
    parts = {part for value in values for part in [value, *re.split(r"[,;:\s]+", value)] if _is_random(part)}
    return sorted(parts, key=lambda part: (-len(part), part))


def _is_random(text: str) -> bool:
    """Return whether a value of the environment may be a secret, not a word such as the name of one."""
    return len(text) >= SHORTEST and any(one.isdecimal() for one in text)
