"""Prepares the history and the parameters of a request, for all services.

The rules, which docs/providers.md repeats: a service gets its own messages back unchanged (``Message.provider`` names
the service). Other services get the texts, refusals as text, images, files, tool calls and their results, but not
reasoning and items in the service's own format.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec import Struct, field

from antiphon.errors import InvalidMessage, ProviderRejected
from antiphon.input.parameters import misplaced
from antiphon.model import File, Image, Message, ToolResult

NO_RESULT = "This tool call has no result."
_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_PLAIN_ID = re.compile(r"[a-zA-Z0-9_-]+")


class Extras(Struct):
    """A caller's additions to one request, other than the parameters of the model."""

    headers: dict[str, str] = field(default_factory=dict)
    query: dict[str, Any] = field(default_factory=dict)
    body: dict[str, Any] = field(default_factory=dict)
    timeout: float | None = None


def split_params(params: dict[str, Any]) -> tuple[dict[str, Any], Extras]:
    """Split the parameters of the model from ``extra_headers``, ``extra_query``, ``extra_body`` and ``timeout``.

    Raises ``ProviderRejected`` if they would change how or where the request is sent. The client checks this too, but
    turns can come from other clients.
    """
    wrong = misplaced(params)
    if wrong is not None:
        raise ProviderRejected(wrong)
    left = {name: value for name, value in params.items() if value is not None}
    extras = Extras(
        left.pop("extra_headers", {}),
        left.pop("extra_query", {}),
        left.pop("extra_body", {}),
        left.pop("timeout", None),
    )
    return left, extras


def encode_body(body: dict[str, Any]) -> bytes:
    """Return the JSON of a request. Raises ``InvalidMessage`` if it has no JSON form."""
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, RecursionError, OverflowError) as exc:
        raise InvalidMessage(f"The messages or parameters cannot be sent as JSON: {exc}.") from exc


def settled(messages: Iterable[Message]) -> list[Message]:
    """Return the history with each tool call followed by its result, as every service requires.

    A call without a result gets one that says so. A result without its call is left out, and so are empty messages.
    """
    out: list[Message] = []
    open_calls: dict[str, str] = {}
    for message in messages:
        if message.role == "tool":
            results = [r for r in message.tool_results if open_calls.pop(r.call_id, None) is not None]
            if results:
                out.append(Message.tool(results))
            continue
        _close(open_calls, out)
        if message.parts:
            out.append(message)
        if message.role == "assistant":
            open_calls = {call.call_id: call.name for call in message.tool_calls}
    _close(open_calls, out)
    return out


def _close(open_calls: dict[str, str], out: list[Message]) -> None:
    if open_calls:
        missing = [
            ToolResult(call_id, NO_RESULT, name, is_error=True) for call_id, name in open_calls.items()
        ]
        out.append(Message.tool(missing))
        open_calls.clear()


def fitting_id(longest: int) -> Callable[[str], str]:
    """Return a function that maps call ids to ids that a service accepts. Valid ids stay, equal ids stay equal."""

    def fit(call_id: str) -> str:
        if len(call_id) <= longest and _PLAIN_ID.fullmatch(call_id):
            return call_id
        return "call_" + hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:24]

    return fit


def function_name(name: str) -> str:
    """Convert a name to one that services accept: at most 64 letters, digits, ``_`` and ``-``."""
    return _NAME.sub("_", name)[:64] or "unnamed"


def media(part: Image | File) -> tuple[str, str] | None:
    """Return the media type and the base64 data of an image or file that contains its data."""
    if part.data is not None:
        default = "image/png" if isinstance(part, Image) else "application/pdf"
        return part.media_type or default, part.data
    kind, comma, data = (part.url or "").partition(",")
    if not comma or not kind.startswith("data:") or not kind.endswith(";base64"):
        return None
    return kind[5:].partition(";")[0] or "text/plain", data


def data_url(part: Image | File) -> str | None:
    """Return the URL of an image or file, or a ``data:`` URL if it contains its data."""
    found = media(part)
    return f"data:{found[0]};base64,{found[1]}" if found else part.url


def plain_text(part: File) -> str | None:
    """Return the text of a text file that contains its data."""
    found = media(part)
    if found is None or not found[0].startswith("text/"):
        return None
    try:
        return base64.b64decode(found[1], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as exc:
        raise InvalidMessage(
            f"The file {part.name or 'in a message'} is not valid base64 text: {exc}."
        ) from exc
