"""Removes API keys from messages: the keys of this process, and texts that look like keys.

Services repeat keys in their errors, and libraries repeat URLs and headers. All texts about failures pass through this
module, in time linear in their length.
"""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Iterable, Iterator
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from antiphon.input.parameters import is_credential

MASK = "[key]"
SHORTEST = 6
"""Shorter keys are removed only as whole words, because they also occur inside other words."""
WIDTH = 8
"""This many consecutive characters of a key are treated as a part of the key."""
REMEMBERED = 16
"""The number of recent keys to remember per connection: a running request may still use an earlier key."""

_SHAPES = re.compile(
    r"\b(?:(?:sk|pk|rk|gsk|csk|xai|nvapi|pplx|tgp)[-_]|(?:hf|fw|r8|ghp)_|AIza)[\w*.-]{4,}"
    r"|\b(?=\w*\d)[A-Za-z0-9]{32,}\b|\b(?:Bearer|Basic)[ \t]+\S+"
)
_FIELDS = re.compile(r"([?&])([\w-]+)=[^&\s]+")


def without_keys(text: str) -> str:
    """Return the text without anything that looks like a key, or like a secret in a URL."""
    text = _FIELDS.sub(_without_value, _SHAPES.sub(MASK, text))
    return "".join(map(_without_login, _words(text))) if "//" in text and "@" in text else text


def _without_value(field: re.Match[str]) -> str:
    return f"{field[1]}{field[2]}={MASK}" if is_credential(field[2]) else field[0]


def _words(text: str) -> Iterator[str]:
    """Split the text after each space."""
    start = 0
    for index, sign in enumerate(text):
        if sign.isspace():
            yield text[start : index + 1]
            start = index + 1
    yield text[start:]


def _without_login(word: str) -> str:
    """Mask the text between ``//`` and ``@`` in a word. Unescaped passwords can contain any character."""
    before, slashes, rest = word.partition("//")
    login, at, host = rest.rpartition("@")
    if not at or ("/" in login and ":" not in login.partition("/")[0]):
        return word
    return f"{before}{slashes}{MASK}@{host}"


def secrets_in_url(url: str) -> list[str]:
    """Return the user name, the password and the secret query fields of a URL, or the whole text if it is not valid."""
    try:
        parts = urlsplit(url)
        _ = parts.port
        found = [parts.username or "", parts.password or ""]
        found += [value for name, value in parse_qsl(parts.query) if is_credential(name)]
        if not parts.netloc and not parts.path:
            return []  # a scheme alone
        if not parts.hostname or parts.fragment or "@" in parts.path + parts.query or not url.isprintable():
            return [url]  # an unescaped password can end the host early, and then be in any part
    except ValueError:
        return [url]
    return [form for value in found if value for form in dict.fromkeys((value, unquote(value)))]


class Secrets:
    """The secrets of one connection: its keys and header values, in every form in which they may be repeated."""

    def __init__(self, whole: Iterable[str] = ()) -> None:
        self._whole = [value for value in whole if len(value) >= SHORTEST]
        self._known: dict[str, None] = {}
        self._parts: dict[int, set[str]] = {}
        self._words: set[str] = set()

    def learn(self, key: str) -> None:
        """Remember a key. Only the most recent keys are kept."""
        if key in self._known or not key:
            return
        self._known[key] = None
        while len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]
        self._parts = {}
        self._words = {
            form for known in self._known for form in (known, _quoted(known)) if len(form) < SHORTEST
        }
        for known in self._known:
            width = min(WIDTH, max(SHORTEST, (len(known) + 1) // 2))
            for form in _forms(known):
                if len(form) < SHORTEST:
                    continue
                parts = self._parts.setdefault(min(width, len(form)), set())
                parts.update(form[at : at + width] for at in range(len(form) - width + 1))

    def out_of(self, text: str) -> str:
        """Return the text without the secrets, parts of them, and texts that look like keys."""
        for value in self._whole:
            text = text.replace(value, MASK)
        for width, parts in self._parts.items():
            text = _without_parts(text, width, parts)
        for word in self._words:
            text = _without_word(text, word)
        return without_keys(text)


def _forms(key: str) -> Iterator[str]:
    """Yield a key unchanged, escaped for a URL, in hexadecimal, and in base64 at each of the three offsets."""
    raw = key.encode("utf-8", "surrogatepass")
    yield key
    yield _quoted(key)
    yield raw.hex()
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + raw).decode().rstrip("=")
        inner = encoded[(0, 2, 3)[shift] : len(encoded) - 1]  # the characters that depend only on the key
        yield inner
        yield inner.replace("+", "-").replace("/", "_")


def _quoted(key: str) -> str:
    return quote(key, safe="", errors="replace")


def _without_word(text: str, word: str) -> str:
    out: list[str] = []
    kept, at = 0, text.find(word)
    while at >= 0:
        end = at + len(word)
        if not (text[at - 1 : at].isalnum() or text[end : end + 1].isalnum()):
            out += (text[kept:at], MASK)
            kept = end
        at = text.find(word, max(at + 1, kept))
    return "".join([*out, text[kept:]])


def _without_parts(text: str, width: int, parts: set[str]) -> str:
    out: list[str] = []
    kept, masked = 0, -1  # how much of the text is in ``out``, and where the last part found ends
    for at in range(len(text) - width + 1):
        if text[at : at + width] in parts:
            if at > masked:
                out += (text[kept:at], MASK)
            kept = masked = at + width
    return "".join([*out, text[kept:]])


class UrlFilter(logging.Filter):
    """Removes secrets from the URLs that a library logs."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(
                without_keys(str(value)) if hasattr(value, "host") else value for value in record.args
            )
        return True
