"""Keeps keys out of messages: what looks like a key, and what this process knows to be one.

Services repeat keys in their errors, libraries repeat URLs and headers. Whatever is said about a failure passes through
here. Each text is read a fixed number of times, however it is made.
"""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Iterable, Iterator
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from antiphon.input.extras import is_credential

__all__ = ["Secrets", "UrlFilter", "secrets_in_url", "without_keys"]

MASK = "[key]"
SHORTEST = 6
"""Anything shorter is no key, and its letters stand in other words."""
WIDTH = 8
"""So many signs of a key that stand together are taken for a part of it."""
REMEMBERED = 16
"""How many keys of a function are known at a time: a request may still use an earlier one."""

_SHAPES = re.compile(
    r"\b(?:(?:sk|pk|rk|gsk|csk|xai|nvapi|pplx|tgp)[-_]|(?:hf|fw|r8|ghp)_|AIza)[\w*.-]{4,}"
    r"|\b(?=\w*\d)[A-Za-z0-9]{32,}\b|\b(?:Bearer|Basic)[ \t]+\S+"
)
_FIELDS = re.compile(r"([?&])([\w-]+)=[^&\s]+")


def without_keys(text: str) -> str:
    """The text without anything that looks like a key, or like a secret in a URL."""
    text = _FIELDS.sub(_without_value, _SHAPES.sub(MASK, text))
    return "".join(map(_without_login, _words(text))) if "//" in text and "@" in text else text


def _without_value(field: re.Match[str]) -> str:
    return f"{field[1]}{field[2]}={MASK}" if is_credential(field[2]) else field[0]


def _words(text: str) -> Iterator[str]:
    """The text at its spaces, each with the word before it."""
    start = 0
    for index, sign in enumerate(text):
        if sign.isspace():
            yield text[start : index + 1]
            start = index + 1
    yield text[start:]


def _without_login(word: str) -> str:
    """A word without what stands between ``//`` and ``@`` in it: passwords hold any sign where nobody escapes them."""
    before, slashes, rest = word.partition("//")
    login, at, host = rest.rpartition("@")
    if not at or ("/" in login and ":" not in login.partition("/")[0]):
        return word
    return f"{before}{slashes}{MASK}@{host}"


def secrets_in_url(url: str) -> list[str]:
    """Name and password, and the fields of the query that look like secrets; all of it where it is no URL."""
    try:
        parts = urlsplit(url)
        _ = parts.port
        found = [parts.username or "", parts.password or ""]
        found += [value for name, value in parse_qsl(parts.query) if is_credential(name)]
        if not parts.netloc and not parts.path:
            return []  # a scheme alone
        if not parts.hostname or parts.fragment or "@" in parts.path + parts.query or not url.isprintable():
            return [url]  # a password may hold a sign that ends the host, and then it stands anywhere
    except ValueError:
        return [url]
    return [form for value in found if value for form in dict.fromkeys((value, unquote(value)))]


class Secrets:
    """What one connection must not say: its keys and the values of its headers, in every form they may come back in."""

    def __init__(self, whole: Iterable[str] = ()) -> None:
        self._whole = [value for value in whole if len(value) >= SHORTEST]
        self._known: dict[str, None] = {}
        self._parts: dict[int, set[str]] = {}

    def learn(self, key: str) -> None:
        """Know one more key; of many, the last ones."""
        if key in self._known or len(key) < SHORTEST:
            return
        self._known[key] = None
        while len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]
        self._parts = {}
        for known in self._known:
            width = min(WIDTH, max(SHORTEST, (len(known) + 1) // 2))
            for form in _forms(known):
                parts = self._parts.setdefault(min(width, len(form)), set())
                parts.update(form[at : at + width] for at in range(len(form) - width + 1))

    def out_of(self, text: str) -> str:
        """The text without the secrets, parts of them, and what looks like a key."""
        for value in self._whole:
            text = text.replace(value, MASK)
        for width, parts in self._parts.items():
            text = _without_parts(text, width, parts)
        return without_keys(text)


def _forms(key: str) -> Iterator[str]:
    """A key as it is, escaped for a URL, in hexadecimal, and in base64 wherever it begins in what was encoded."""
    raw = key.encode("utf-8", "surrogatepass")
    yield key
    yield quote(key, safe="", errors="replace")
    yield raw.hex()
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + raw).decode().rstrip("=")
        inner = encoded[(0, 2, 3)[shift] : len(encoded) - 1]  # the signs that depend on the key alone
        yield inner
        yield inner.replace("+", "-").replace("/", "_")


def _without_parts(text: str, width: int, parts: set[str]) -> str:
    out: list[str] = []
    kept, masked = 0, -1  # up to where the text is in ``out``, and where the part that was found last ends
    for at in range(len(text) - width + 1):
        if text[at : at + width] in parts:
            if at > masked:
                out += (text[kept:at], MASK)
            kept = masked = at + width
    return "".join([*out, text[kept:]])


class UrlFilter(logging.Filter):
    """Takes secrets out of the URLs that a library logs."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(
                without_keys(str(value)) if hasattr(value, "host") else value for value in record.args
            )
        return True
