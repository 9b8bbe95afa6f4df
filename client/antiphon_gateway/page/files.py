"""Serves the files of the operator dashboard. They contain no data: the page requests it with its user's key.

The page calls the gateway with the JavaScript package, which is served under ``antiphon/``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from antiphon_gateway.http.operations import Call, operation
from antiphon_gateway.problems import Refused

FRONT = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Nothing is loaded from elsewhere, nothing inline runs, and text never becomes markup or script.
POLICY: Final = "; ".join(
    [
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data:", "connect-src 'self'",
        "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
)  # fmt: skip
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    media_type: str
    tag: str


def _read(folder: Traversable, path: str = "") -> dict[str, _File]:
    """Return the files of a folder and its subfolders, by path."""
    found: dict[str, _File] = {}
    for one in folder.iterdir():
        media_type = TYPES.get("." + one.name.rpartition(".")[2])
        if one.is_dir():
            found |= _read(one, f"{path}{one.name}/")
        elif media_type is not None:
            content = one.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            found[path + one.name] = _File(content, media_type, tag)
    return found


_static = resources.files("antiphon_gateway.page").joinpath("static")
_package = Path(__file__).parents[2] / "node" / "src"  # in a checkout; a wheel has copies under static
_files = _read(_static) | (_read(_package, "antiphon/") if _package.is_dir() else {})


@operation("GET", "/live", right=None)
async def show_page(call: Call[None, None]) -> Response:
    """Open the operator dashboard in a browser"""
    return _response(call.request, FRONT)


@operation("GET", "/live/{file}", right=None)
async def show_file(call: Call[None, None]) -> Response:
    """Read a file of the page"""
    return _response(call.request, call.path["file"])


@operation("GET", "/live/{folder}/{file}", right=None)
async def show_module(call: Call[None, None]) -> Response:
    """Read a module of the page"""
    return _response(call.request, f"{call.path['folder']}/{call.path['file']}")


def _response(request: Request, name: str) -> Response:
    found = _files.get(name)
    if found is None:
        raise Refused(404, "route_not_found", "The dashboard has no such file.")
    headers = {**HEADERS, "etag": found.tag}
    if request.headers.get("if-none-match") == found.tag:
        return Response(None, 304, headers)
    return Response(found.content, 200, headers, media_type=found.media_type)


OPERATIONS = [show_page, show_file, show_module]
