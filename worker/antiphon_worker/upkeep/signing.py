"""The message of a webhook and its signature, by the scheme of standardwebhooks.com."""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import UTC, datetime

from antiphon.events import Event
from antiphon.model import encode

__all__ = ["message_of", "signed_headers"]

SECRET_PREFIX = "whsec_"


def message_of(event: Event) -> bytes:
    """Return the body: type, timestamp, and the event as it is published. It is the same at every try."""
    at = datetime.fromtimestamp(event.at / 1000, UTC).isoformat(timespec="milliseconds")
    head = f'{{"type":"{event.type}","timestamp":"{at.replace("+00:00", "Z")}","data":'
    return head.encode() + encode(event) + b"}"


def signed_headers(secrets: str, message_id: str, at: int, body: bytes) -> dict[str, str]:
    """Return the headers of a message that is sent now (``at``, in seconds), with a signature for each secret."""
    signed = f"{message_id}.{at}.".encode() + body
    signatures = [
        base64.b64encode(hmac.digest(_key(secret), signed, hashlib.sha256)).decode()
        for secret in secrets.split()
    ]
    return {
        "content-type": "application/json",
        "user-agent": "antiphon",
        "webhook-id": message_id,
        "webhook-timestamp": str(at),
        "webhook-signature": " ".join(f"v1,{one}" for one in signatures),
    }


def _key(secret: str) -> bytes:
    return base64.b64decode(secret.removeprefix(SECRET_PREFIX))
