"""A receiver of webhooks that needs no package: it checks the signature, and prints each event once.

$ antiphon webhooks add here http://127.0.0.1:8123/ --private
whsec_…
$ WEBHOOK_SECRET=whsec_… python examples/webhooks/receiver.py 8123
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import sys
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECRET = os.environ.get("WEBHOOK_SECRET", "")
MOST_SECONDS = 300
seen: dict[str, None] = {}  # a service keeps these in its database, for a day


def is_genuine(headers: Mapping[str, str], body: bytes) -> bool:
    """Whether a message is signed with the secret, and was sent in the last minutes."""
    headers = {name.lower(): value for name, value in headers.items()}
    known, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not at.isdigit() or abs(time.time() - int(at)) > MOST_SECONDS:
        return False
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    own = base64.b64encode(hmac.digest(key, f"{known}.{at}.".encode() + body, hashlib.sha256))
    signatures = headers.get("webhook-signature", "").split()
    return any(hmac.compare_digest(b"v1," + own, one.encode()) for one in signatures)


class Receiver(BaseHTTPRequestHandler):
    """Answers 204 to what is genuine, and 401 to everything else."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        genuine = is_genuine(dict(self.headers.items()), body)
        known = self.headers.get("webhook-id", "")
        if genuine and known not in seen:
            seen[known] = None
            event = json.loads(body)["data"]
            print(event["type"], event["session_id"], event["turn_id"], flush=True)
        self.send_response(204 if genuine else 401)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Say nothing of each request."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
