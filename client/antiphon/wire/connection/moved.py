"""Finds where a moved cell is, and whether this process may log in there.

The old place has a marker with the URL of the new one, without user and password. A process uses those of the old
place. A program that can write to Redis can also write a marker, so a process with a password follows only a
marker with a proof of the same password, or to a URL that its own setting names.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from redis.exceptions import ClusterError
from redis.exceptions import ConnectionError as RedisConnectionError

from antiphon.settings import DeclaredSettings, setting
from antiphon.wire.connection.cluster import SCHEMES, cell_names, shown, without_cell
from antiphon.wire.connection.names import NAMES

OF_PASSWORDS = ("password", "sentinel_password")
OF_A_PLACE = ("cells", "db", NAMES)
NOT_TAKEN_ALONG = ("cells", "cell", "db", NAMES, "durability")
LONGEST_PLACE = 300_000
"""More than a cluster with the most cells needs for their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveSettings(DeclaredSettings):
    """The setting of every process that follows a cell to a place with other credentials."""

    moved_urls: str = setting(
        "",
        "Where cells may move, as URLs with user, password and options, separated by commas; without it, a process "
        "uses those of the old place",
        shown=False,
    )


MOVED_URLS_VARIABLE = MoveSettings.variable("moved_urls")


class CellMoved(ClusterError):
    """The cell of the URL was moved to ``place``. ``proof`` is the mover's proof that it knew the old password."""

    def __init__(self, place: str, proof: str = "", why: str = "") -> None:
        super().__init__(
            f"This cell was moved to {shown(place)}: write that URL, with its user and password.{why and ' '}{why}"
        )
        self.place = place
        self.proof = proof


class MarkerDamaged(ClusterError):
    """The marker of a cell is not what a mover writes: the cell may be here or elsewhere."""

    def __init__(self, key: str, found: str) -> None:
        words = shown(found).split()
        public = " ".join("…" if "@" in word or "?" in word else word for word in words)  # logins, options
        super().__init__(
            f"The key {key} contains {public!r}, which `antiphon cells move` does not write: delete the key if the "
            "cell is at this place, or else write the URL of the place that has the cell."
        )


class Followed(RedisConnectionError):
    """Since the call began, this client has followed the cell to its new place, where keys have other names."""

    def __init__(self) -> None:
        super().__init__("The cell has moved during the call, which did nothing at the old place: repeat it.")


def check_here(moved: str, key: str) -> None:
    """Raise ``CellMoved`` if ``moved``, the value of ``key``, is the marker of a cell that was moved away.

    Raises ``ConnectionError`` while the cell is copied here, and ``MarkerDamaged`` for a value that no mover writes.
    """
    if not moved:
        return
    word, _, rest = moved.partition(" ")
    place, _, proof = rest.partition(" ")
    if word not in ("to", "from") or not _is_place(place):
        raise MarkerDamaged(key, moved)
    if word == "to":
        raise CellMoved(place, proof)
    raise RedisConnectionError(f"the cell is being copied here from {shown(place)}")


def _is_place(text: str) -> bool:
    """Return whether this is what ``place_of`` returns: the URL of a place, without a login and without options."""
    try:
        return len(text) <= LONGEST_PLACE and text.isprintable() and place_of(text) == text
    except ValueError:
        return False


def place_of(url: str) -> str:
    """Return the URL of a server or a cluster without its user, its password and its options, as others may use it."""
    parts = urlsplit(url)
    query = urlencode([pair for pair in parse_qsl(parts.query) if pair[0] in OF_A_PLACE], safe=":/,")
    path = parts.path if parts.path.strip("/") or parts.scheme == "unix" else ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}{'?' if query else ''}{query}"


def new_url(moved: CellMoved, known: list[str], here: str, name: str) -> str:
    """Return the URL at which a process that has used ``here`` finds the cell of this name now.

    ``known`` are URLs with credentials that it may use: its own, and those of `MOVED_URLS_VARIABLE`. Raises
    ``CellMoved`` if it may not log in there, or if no cell there has the name.
    """
    for url in known:
        if same_place(url, moved.place):
            return _of_cell(url, name)
    secret = secret_of(here)
    if not here or (secret and not proves(moved.proof, secret, moved.place)):
        raise CellMoved(
            moved.place,
            why="This process does not send its password there by itself, because the marker contains no proof of that "
            f"password: set {MOVED_URLS_VARIABLE}, or run `antiphon cells move` with the password of this process.",
        )
    return _of_cell(_with_login(moved.place, here), name)


def secret_of(url: str) -> str:
    """Return the passwords in a URL, '' without any."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    found = [unquote(parts.password or ""), *(options.get(name, "") for name in OF_PASSWORDS)]
    return "\n".join(found) if any(found) else ""


def prove(secret: str, place: str) -> str:
    """Return a proof that its author knows ``secret`` and means ``place``; '' without a secret."""
    if not secret:
        return ""
    salt = secrets.token_hex(16)
    return f"{salt}.{_mac(secret, salt, place)}"


def proves(proof: str, secret: str, place: str) -> bool:
    """Return whether the author of a proof knew this secret and meant this place."""
    salt, _, mac = proof.partition(".")
    return bool(re.fullmatch("[0-9a-f]{32}", salt)) and hmac.compare_digest(mac, _mac(secret, salt, place))


def _mac(secret: str, salt: str, place: str) -> str:
    return hmac.new(_stretched(secret, salt), place.encode(), "sha256").hexdigest()


@lru_cache(8)
def _stretched(secret: str, salt: str) -> bytes:
    """Return a key of the secret that takes long to compute, so that readers of a proof cannot guess passwords fast."""
    return hashlib.scrypt(secret.encode(), salt=bytes.fromhex(salt), n=2**15, r=8, p=1, maxmem=2**26)


def moved_urls() -> list[str]:
    """Return the URLs of `MOVED_URLS_VARIABLE`."""
    urls = re.split(r",(?=\s*[a-z+]+://)", os.environ.get(MOVED_URLS_VARIABLE, ""))
    return [url.strip() for url in urls if url.strip()]


def same_place(url: str, place: str) -> bool:
    """Return whether a URL leads to this place."""
    return place_of(url).removesuffix("/0") == place.removesuffix("/0")


def _with_login(place: str, here: str) -> str:
    """Return the URL of a place with the user, the password and the options of another one."""
    old, new = urlsplit(here), urlsplit(place)
    login, at, _ = old.netloc.rpartition("@")
    tls = new.scheme.startswith("rediss")
    options = [
        (name, value)
        for name, value in parse_qsl(old.query)
        if name not in NOT_TAKEN_ALONG
        and (tls or not name.startswith("ssl_"))
        and ("sentinel" in new.scheme or not name.startswith("sentinel_"))
    ]
    query = "&".join(part for part in (new.query, urlencode(options)) if part)
    return f"{new.scheme}://{login}{at}{new.netloc}{new.path}{'?' if query else ''}{query}"


def _of_cell(url: str, name: str) -> str:
    """Return the URL of the cell with this name if the URL names a cluster. Raises ``CellMoved`` and ``ValueError``."""
    if url.partition("://")[0] not in SCHEMES:
        return url
    names = cell_names(url)
    if len(names) > 1 and name not in names:
        raise CellMoved(place_of(url), why=f"None of its cells is called {name}, as this one.")
    return f"{without_cell(url)}&cell={names.index(name) if len(names) > 1 else 0}"
