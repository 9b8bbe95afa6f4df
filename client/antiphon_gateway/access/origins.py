"""Refuses what a web page of another origin has sent from a browser: it may carry the cookies of the browser's user."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import SplitResult, urlsplit

from starlette.requests import Request

from antiphon_gateway.problems import Refused

PORTS = {"http": 80, "https": 443}
READING = ("GET", "HEAD")
OWN = ("same-origin", "none")


def check_origin(request: Request, allowed: Collection[str]) -> None:
    """Let programs and pages of this origin pass, and those of ``allowed`` origins. Raises ``Refused`` with 403.

    A browser sends ``Sec-Fetch-Site`` to trustworthy hosts. It sends ``Origin`` with WebSockets, with all that reads
    the answer from another origin, and with all that may change something. No page can change either.
    """
    origins = request.headers.getlist("origin")
    if origins and all(one.lower() in allowed for one in origins):
        return
    site = request.headers.get("sec-fetch-site")
    if site in OWN:
        return
    foreign = site is not None and request.method not in READING
    if foreign or not all(_is_own(one, request.headers.get("host", "")) for one in origins):
        raise Refused(
            403, "forbidden",
            "A web page of another origin sent this request: list its origin in ANTIPHON_GATEWAY_CORS (cors=), as "
            "https://chat.example.com, if it may call this gateway.",
        )  # fmt: skip


def _is_own(origin: str, host: str) -> bool:
    """Whether an origin is the host of a request. The scheme is not compared: a proxy may end TLS."""
    try:
        page = urlsplit(origin)
        return bool(page.hostname) and _place(page, page.scheme) == _place(urlsplit(f"//{host}"), page.scheme)
    except ValueError:
        return False


def _place(parts: SplitResult, scheme: str) -> tuple[str | None, int | None]:
    return parts.hostname, parts.port or PORTS.get(scheme)
