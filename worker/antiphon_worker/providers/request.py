"""Prepares the history and the parameters of a request, for all services.

The rules, which docs/providers.md repeats: a service gets its own messages back unchanged (``Message.provider`` names
the service). Other services get the texts, refusals as text, images, files, tool calls and their results, but neither
reasoning nor items in the first service's own format.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from antiphon.errors import InvalidMessage, ProviderRejected
from antiphon.input.parameters import misplaced
from antiphon.model import File, Image, Item, Message, Part, ToolCall, ToolResult
from antiphon_worker.providers.base import ModelRequest, ToolSpec
from antiphon_worker.providers.http.connection import Call
from antiphon_worker.providers.stream.json_text import as_text, is_object

NO_RESULT = "This tool call has no result."
_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_PLAIN_ID = re.compile(r"[a-zA-Z0-9_-]+")
_OF_THE_CALL = ("extra_headers", "extra_query", "timeout")
PROMPT_CACHE = "prompt_cache"  # the parameter that switches all services' caches off


def params_of(request: ModelRequest, names: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the model parameters under the service's names, without those that it does not know (None).

    Raises ``ProviderRejected`` if they would change how or where the request is sent. The client checks this too, but
    turns can come from other clients.
    """
    wrong = misplaced(request.params)
    if wrong is not None:
        raise ProviderRejected(wrong)
    params = {
        name: value
        for name, value in request.params.items()
        if value is not None and name not in _OF_THE_CALL and name not in ("extra_body", PROMPT_CACHE)
    }
    for name, known_as in names.items():
        if name in params:
            value = params.pop(name)
            if known_as is not None:
                params[known_as] = value
    return params


def caches(request: ModelRequest) -> bool:
    """Return whether the service should cache the beginning of the request, if it leaves that to the caller."""
    return request.params.get(PROMPT_CACHE) is not False


def route_to_cache(request: ModelRequest, params: dict[str, Any]) -> None:
    """Add OpenAI's ``prompt_cache_key``, unless the caller has given one or wants no cache."""
    if request.cache_key and caches(request):
        digest = hashlib.sha256(request.cache_key.encode("utf-8", "surrogatepass")).hexdigest()
        params.setdefault("prompt_cache_key", digest[:32])


def tools_of(
    request: ModelRequest, params: dict[str, Any], form: Callable[[ToolSpec], dict[str, Any]],
    names: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return the agent's tools in the service's form, and then the service's own tools from the parameters.

    A tool that the service declares and the agent runs has the same name in both, and the service's form is sent.
    ``names`` contains the names of tools that the service identifies by type.
    """
    own = list(params.pop("tools", ()))
    if not own:
        return [form(tool) for tool in request.tools]
    declared = {_name_of(tool, names or {}) for tool in own if is_object(tool)}
    return [form(tool) for tool in request.tools if tool.name not in declared] + own


def _name_of(tool: dict[str, Any], names: Mapping[str, str]) -> str | None:
    return as_text(tool.get("name")) or names.get(as_text(tool.get("type")) or "")


def call_of(request: ModelRequest, path: str, body: dict[str, Any]) -> Call:
    """Return the request with the caller's additions. Raises ``InvalidMessage`` if its body cannot be sent as JSON."""
    given = {name: value for name, value in request.params.items() if value is not None}
    headers, query, timeout = (given.get(name) for name in _OF_THE_CALL)
    try:
        data = msgspec.json.encode(body | given.get("extra_body", {}))
    except (TypeError, ValueError, RecursionError, OverflowError) as exc:
        raise InvalidMessage(f"The messages or parameters cannot be sent as JSON: {exc}.") from exc
    return Call(path, data, headers or {}, query or {}, timeout)


def choose_tool(params: dict[str, Any], tools: list[Any], form: Callable[[dict[str, Any]], Any]) -> None:
    """Convert ``tool_choice`` to the form of OpenAI's APIs. Without tools, remove the parameters about them."""
    choice = params.pop("tool_choice", None)
    if not tools:
        params.pop("parallel_tool_calls", None)
    elif choice is not None:
        if isinstance(choice, str) and choice not in ("auto", "none", "required", "any"):
            choice = {"name": choice}
        if is_object(choice) and "type" not in choice:
            choice = {"type": "function", **form(choice)}
        params["tool_choice"] = "required" if choice == "any" else choice


def since_compaction(messages: Sequence[Message], provider: str) -> Sequence[Message]:
    """Return the history from the service's own latest summary on, which replaces everything before it.

    A service that compacts the context returns the summary as an item of its answer, and ignores what precedes it.
    """
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        if message.role != "assistant" or message.provider != provider:
            continue
        for number in range(len(message.parts) - 1, -1, -1):
            part = message.parts[number]
            if isinstance(part, Item) and _is_compaction(part.item):
                return [
                    msgspec.structs.replace(message, parts=message.parts[number:]),
                    *messages[place + 1 :],
                ]
    return messages


def _is_compaction(item: dict[str, Any]) -> bool:
    return item.get("type") == "compaction" and bool(item.get("content") or item.get("encrypted_content"))


def settled(messages: Iterable[Message], longest_id: int) -> list[Message]:
    """Return the history with each tool call followed by its result, as every service requires.

    A call without a result gets an error result. A result without its call is left out, and so are empty messages.
    Call ids that a service does not accept are replaced; equal ids stay equal.
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
    return [_with_fitting_ids(message, longest_id) for message in out]


def _close(open_calls: dict[str, str], out: list[Message]) -> None:
    if open_calls:
        missing = [
            ToolResult(call_id, NO_RESULT, name, is_error=True) for call_id, name in open_calls.items()
        ]
        out.append(Message.tool(missing))
        open_calls.clear()


def _with_fitting_ids(message: Message, longest: int) -> Message:
    if all(_fits(part, longest) for part in message.parts):
        return message
    return msgspec.structs.replace(message, parts=[_fitted(part, longest) for part in message.parts])


def _fits(part: Part, longest: int) -> bool:
    if not isinstance(part, ToolCall | ToolResult):
        return True
    return len(part.call_id) <= longest and _PLAIN_ID.fullmatch(part.call_id) is not None


def _fitted(part: Part, longest: int) -> Part:
    if not isinstance(part, ToolCall | ToolResult) or _fits(part, longest):
        return part
    digest = hashlib.sha256(part.call_id.encode("utf-8", "surrogatepass")).hexdigest()
    return msgspec.structs.replace(part, call_id=f"call_{digest[:24]}")


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
