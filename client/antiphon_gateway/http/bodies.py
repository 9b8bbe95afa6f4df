"""Reads what a request brings: its body, bounded in size and time, and its query, each as a struct."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request

from antiphon_gateway.problems import Refused

__all__ = ["read_body", "read_query"]

BODY_SECONDS = 30.0


async def read_body(request: Request, kind: Any, most: int) -> Any:
    """Return the request's JSON as a value of this type. Raises ``Refused``."""
    content = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content != "application/json":
        raise Refused(415, "invalid_body", "Send JSON, with the header Content-Type: application/json.")
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > most:
        raise _too_large(most)
    try:
        return msgspec.json.decode(await _bytes(request, most), type=kind)
    except msgspec.ValidationError as exc:
        raise Refused(400, "invalid_body", f"The body does not fit: {exc}.") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        raise Refused(400, "invalid_body", f"The body is not JSON: {exc}.") from None


async def _bytes(request: Request, most: int) -> bytes:
    chunks, size = list[bytes](), 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                if size > most:
                    raise _too_large(most)
                chunks.append(chunk)
    except TimeoutError:
        raise Refused(408, "body_timed_out", "The body did not come in time: send it again.") from None
    except ClientDisconnect:
        raise Refused(400, "invalid_body", "The body was cut off.") from None
    return b"".join(chunks)


def read_query(request: Request, kind: Any) -> Any:
    """Return the query as a value of this type. Raises ``Refused``."""
    given: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name in given:
            raise Refused(400, "invalid_query", f"The query names {name} twice.")
        given[name] = value
    given.pop("token", None)
    for name in given:
        if kind is None or name not in kind.__struct_fields__:
            known = ", ".join(kind.__struct_fields__) if kind is not None else "nothing"
            raise Refused(
                400, "invalid_query", f"The query may name {known}; {name[:50]!r} is not known here."
            )
    if kind is None:
        return None
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as exc:
        raise Refused(400, "invalid_query", f"The query does not fit: {exc}.") from None


def _too_large(most: int) -> Refused:
    return Refused(413, "body_too_large", f"The body has more than {most} bytes.", limit="body_bytes")
