"""The credentials of one user for one server: resolved for each call, kept in memory, and removed from texts."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, cast
from urllib.parse import parse_qsl, urlsplit

from antiphon.errors import ToolError, ToolRaised
from antiphon.input.parameters import is_credential
from antiphon.mcp import Auth, Requester
from antiphon.tools.threads import Threads
from antiphon_worker.loop.toolbox import is_stop

log = logging.getLogger("antiphon.mcp")

AUTH_SECONDS = 30.0
MASK = "[credentials]"
SHORTEST = 6
REMEMBERED = 4
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_THREADS = Threads(limit=16)


class Declared(Protocol):
    """A server or an agent that is called with the credentials of users, and with headers for all of them."""

    @property
    def name(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def auth(self) -> Auth | None: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def env(self) -> Mapping[str, str]: ...


class Credentials:
    """The headers that a connection sends for its user. Earlier ones are remembered, as a call may still use them.

    ``server`` may declare credentials for all users: in ``headers=``, in ``env=`` and in its URL.
    """

    def __init__(self, server: Declared) -> None:
        self.headers: Mapping[str, str] = {}
        declared = [*server.headers.items(), *server.env.items(), *parse_qsl(urlsplit(server.url).query)]
        self._of_all = _secrets(value for name, value in declared if is_credential(name))
        self._sent: deque[frozenset[str]] = deque(maxlen=REMEMBERED)

    def replace(self, headers: Mapping[str, str]) -> None:
        """Send these headers from now on."""
        self.headers = headers
        secrets = _secrets(headers.values())
        if secrets not in self._sent:
            self._sent.append(secrets)

    def out_of(self, text: str) -> str:
        """Return a text of the server without the credentials that it repeats."""
        for secret in sorted(self._of_all.union(*self._sent), key=len, reverse=True):
            text = text.replace(secret, MASK)
        return text

    def out_of_json(self, value: Any) -> Any:
        """Return a JSON value of the server without the credentials that its texts and names repeat."""
        if isinstance(value, str):
            return self.out_of(value)
        if isinstance(value, list):
            return [self.out_of_json(one) for one in cast("list[Any]", value)]
        if isinstance(value, dict):
            return {
                self.out_of(name): self.out_of_json(one)
                for name, one in cast("dict[str, Any]", value).items()
            }
        return value


def _secrets(values: Iterable[str]) -> frozenset[str]:
    """Return the secrets in these values: each value, and the part after its scheme."""
    parts = {part for value in values for part in (value, value.rpartition(" ")[2])}
    return frozenset({part for part in parts if len(part) >= SHORTEST})


async def headers_for(server: Declared, requester: Requester) -> Mapping[str, str]:
    """Return the headers with the credentials of a user, as ``auth=`` returns them now.

    Raises the ``ToolError`` of the function, or one that quotes nothing from its error.
    """
    if server.auth is None:
        return {}
    try:
        async with asyncio.timeout(AUTH_SECONDS):
            found: Any = await _THREADS.ask(server.auth, requester)
    except ToolError:
        raise
    except BaseException as exc:
        if is_stop(exc):
            raise
        log.warning(
            "auth= of %s raised %s", server.name, type(exc).__name__,
            extra={"action": "mcp_auth_failed", "server": server.name},
        )  # fmt: skip
        raise ToolRaised(
            f"The credentials for {server.name} could not be resolved ({type(exc).__name__})."
        ) from None
    headers = {"Authorization": f"Bearer {found}"} if isinstance(found, str) else found or {}
    if not isinstance(headers, Mapping) or not _sendable(cast("Mapping[Any, Any]", headers).items()):
        log.error(
            "auth= of %s must return a token, a dictionary of headers or None, and returned %s",
            server.name, type(found).__name__, extra={"action": "mcp_auth_failed", "server": server.name},
        )  # fmt: skip
        raise ToolRaised(f"The credentials for {server.name} could not be resolved.")
    return cast("Mapping[str, str]", headers)


def _sendable(headers: Iterable[tuple[Any, Any]]) -> bool:
    return all(
        isinstance(name, str) and isinstance(value, str) and _HEADER.fullmatch(name)
        and value.isascii() and value.isprintable()
        for name, value in headers
    )  # fmt: skip
