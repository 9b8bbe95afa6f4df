"""Webhooks: URLs that receive completion events, whichever client submitted the turns."""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import AsyncGenerator, Iterable, Sequence
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct

from antiphon.encryption.keyring import KEYS_VARIABLE
from antiphon.errors import KeyMissing, NotFound, UsageError, WrongTenant
from antiphon.input.ids import tenant_id
from antiphon.input.values import is_a
from antiphon.redis.all_events import check_types
from antiphon.redis.connections import Connections
from antiphon.text import text_of
from antiphon.wire.lists.webhooks import StoredWebhook, stored_webhooks, write_webhook

PREFIX = "whsec_"
LEAST_BYTES, MOST_BYTES = 24, 64
MOST_SECRETS = 3
LONGEST_URL = 2000
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_VISIBLE = re.compile(r"[!-~]+")


class Webhook(Struct):
    """A webhook. ``waiting`` deliveries have not been acknowledged yet, ``delivered`` were, and ``dropped`` were
    given up. ``error`` is why the last attempt failed, or None. The secret is not shown. Fields encrypted with a key
    that this process does not have are empty.
    """

    name: str
    url: str
    types: list[str]
    tenant: str | None
    agent: str | None
    private: bool
    waiting: int
    delivered: int
    dropped: int
    error: str | None


class AsyncWebhooks:
    """The webhooks of a deployment, or of one tenant.

    >>> from antiphon import AsyncClient
    >>> client = AsyncClient("redis://localhost:6379/0")
    >>> webhooks = client.webhooks()
    >>> secret = await webhooks.set("billing", "https://example.com/hooks", types=["turn_finished"])
    >>> [(one.name, one.url) async for one in webhooks]
    [('billing', 'https://example.com/hooks')]
    """

    def __init__(self, connections: Connections, tenant: str | None) -> None:
        self._connections = connections
        self._tenant = None if tenant is None else tenant_id(tenant)

    async def set(
        self,
        name: str,
        url: str,
        *,
        types: Iterable[str] | None = None,
        agent: str | None = None,
        secret: str | Sequence[str] | None = None,
        private: bool = False,
    ) -> str:
        """Set a webhook: a URL that receives completion events from now on. Returns its secrets.

        Workers send each event by POST, signed as standardwebhooks.com describes, and repeat it for a day until the
        endpoint answers with a status from 200 to 299. ``types`` and ``agent`` select as in ``subscribe_all``.
        ``secret`` is ``whsec_`` and 24 to 64 bytes as base64; with several secrets, each of them signs, so that one
        can replace another. Without ``secret``, the webhook keeps its own, and a new webhook gets one. ``private``
        allows ``http://`` and addresses that are not public, for an endpoint in your own network. Raises
        ``UsageError``, ``LimitReached`` beyond 100 webhooks, ``WrongTenant``, ``KeyMissing`` without ``secret`` if
        its own is encrypted with a key that is not here, and ``StoreError``, after which it can safely be set again.

        >>> secret = await webhooks.set("ops", "http://ops.internal/hooks", types=["turn_failed"], private=True)
        >>> secret.startswith("whsec_")
        True
        """
        if not is_a(name, str) or not _NAME.fullmatch(name):
            raise UsageError(
                f"A webhook's name must be 1 to 64 letters, digits, '_', '.' and '-', not {name!r}."
            )
        kinds = list(check_types(types))
        check_url(url, private)
        signing = _secrets(secret) if secret is not None else ""
        known = await self._find(name)
        signing = signing or (_own_secret(known) if known else _new_secret())
        fields = {
            "url": url, "types": f",{','.join(kinds)},", "tenant": self._tenant or "", "agent": agent or "",
            "secret": signing, "private": "1" if private else "",
        }  # fmt: skip
        for cell in self._connections.cells:
            await write_webhook(cell, name, fields)
        return signing

    async def delete(self, name: str) -> None:
        """Remove a webhook; its waiting events are dropped. Raises ``NotFound``, ``WrongTenant``.

        >>> await webhooks.delete("billing")
        """
        if await self._find(name) is None:
            raise NotFound(f"Unknown webhook: {name!r}.")
        for cell in self._connections.cells:
            await write_webhook(cell, name, {})

    async def __aiter__(self) -> AsyncGenerator[Webhook, None]:
        found: dict[str, Webhook] = {}
        for cell in self._connections.cells:
            for one in await stored_webhooks(cell):
                shown = _shown(one)
                if self._tenant in (None, shown.tenant):
                    found[one.name] = _together(found[one.name], shown) if one.name in found else shown
        for one in sorted(found.values(), key=lambda webhook: webhook.name):
            yield one

    async def _find(self, name: str) -> StoredWebhook | None:
        for cell in self._connections.cells:
            for found in await stored_webhooks(cell, [name]):
                if self._tenant not in (None, _text(found, "tenant")):
                    raise WrongTenant(f"The webhook {name!r} belongs to another tenant: choose another name.")
                return found
        return None


def check_url(url: str, private: bool) -> None:
    """Raise ``UsageError`` unless workers may post to a URL. Addresses are checked again when its name is resolved."""
    parts = _parts(url)
    if (
        parts is None
        or not parts.hostname
        or parts.scheme not in (("https", "http") if private else ("https",))
    ):
        more = "" if private else " (or http:// with private=True)"
        raise UsageError(f"url= must be a URL that begins with https://{more} and names a host.")
    if not private and _is_private(parts.hostname):
        raise UsageError(f"url= names the private host {parts.hostname}: use private=True.")
    if parts.username or parts.password or parts.fragment:
        raise UsageError(
            "url= must not contain a user, password or fragment: the signature authenticates the sender."
        )


def _is_private(host: str) -> bool:
    try:
        return not ip_address(host).is_global
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _parts(url: str) -> SplitResult | None:
    if not is_a(url, str) or len(url) > LONGEST_URL or not _VISIBLE.fullmatch(url):
        return None
    try:
        parts = urlsplit(url)
        return parts if parts.port != 0 else None
    except ValueError:
        return None


def _secrets(given: str | Sequence[str]) -> str:
    """Check secrets and return them as they are stored. Raises ``UsageError``, which does not show them."""
    found = given.split() if isinstance(given, str) else list(given)
    if not 1 <= len(found) <= MOST_SECRETS or not all(map(_is_secret, found)):
        raise UsageError(
            f"secret= must be {PREFIX} and {LEAST_BYTES} to {MOST_BYTES} bytes as base64, or up to {MOST_SECRETS} "
            "of these; omit it to have one made."
        )
    return " ".join(found)


def _is_secret(text: str) -> bool:
    if not is_a(text, str) or not text.startswith(PREFIX):
        return False
    try:
        return LEAST_BYTES <= len(base64.b64decode(text.removeprefix(PREFIX), validate=True)) <= MOST_BYTES
    except ValueError:
        return False


def _own_secret(known: StoredWebhook) -> str:
    if "secret" not in known.fields:
        raise KeyMissing(
            f"The secret of the webhook {known.name!r} cannot be decrypted here: pass secret=, or add "
            f"its key to {KEYS_VARIABLE}."
        )
    return _text(known, "secret")


def _new_secret() -> str:
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def _shown(one: StoredWebhook) -> Webhook:
    def number(field: str) -> int:
        raw = one.fields.get(field, b"")
        return int(raw) if raw.isdigit() else 0

    types = [kind for kind in _text(one, "types").split(",") if kind]
    return Webhook(
        one.name, _text(one, "url"), types, _text(one, "tenant") or None, _text(one, "agent") or None,
        bool(_text(one, "private")), one.waiting, number("delivered"), number("dropped"), _text(one, "error") or None,
    )  # fmt: skip


def _together(first: Webhook, other: Webhook) -> Webhook:
    """Merge the states of one webhook in several cells."""
    first.waiting += other.waiting
    first.delivered += other.delivered
    first.dropped += other.dropped
    first.error = first.error or other.error
    return first


def _text(one: StoredWebhook, field: str) -> str:
    return text_of(one.fields.get(field))
