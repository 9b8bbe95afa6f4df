"""Messages in spans, if an operator has asked for them, in the form of OpenTelemetry's conventions."""

from __future__ import annotations

import importlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec

from antiphon.errors import SettingsError
from antiphon.ext.turns import TurnFunction
from antiphon.model import Message
from antiphon.model.parts import File, Image, Item, Part, Reasoning, Refusal, Text, ToolCall, ToolResult
from antiphon.model.usage import Usage
from antiphon_worker.loop.step_events import answered
from antiphon_worker.providers.base import Increment, ModelRequest, Outlet, Provider, StepResult

if TYPE_CHECKING:
    from antiphon_worker.app import App

log = logging.getLogger("antiphon.traces")

ALL = "all"
Redact: TypeAlias = Callable[[str, Any], Any]
"""Receives the name and value of an attribute, and returns the value to export; None exports nothing."""
Show: TypeAlias = Callable[[ModelRequest, Message | None], None]


class Content:
    """Converts messages to attributes. ``redact`` decides on each; those at which it fails are left out."""

    def __init__(self, redact: Redact | None = None) -> None:
        self._redact = redact

    @classmethod
    def of_setting(cls, setting: str) -> Content | None:
        """Return what the setting ``trace_content`` asks for. Raises ``SettingsError``."""
        if not setting:
            return None
        return cls(None if setting == ALL else _load(setting))

    def of_call(self, request: ModelRequest, answer: Message | None) -> dict[str, str]:
        """Return the attributes of a model call."""
        return self.of(
            **{
                "gen_ai.system_instructions": [Text(request.system)] if request.system else None,
                "gen_ai.input.messages": request.messages,
                "gen_ai.output.messages": [answer] if answer is not None else None,
                "gen_ai.tool.definitions": [
                    {
                        "type": "function", "name": one.name, "description": one.description,
                        "parameters": one.parameters,
                    }
                    for one in request.tools
                ] or None,
            }
        )  # fmt: skip

    def of(self, **values: Any) -> dict[str, str]:
        """Return attributes as JSON texts, those without a value left out."""
        found: dict[str, str] = {}
        for name, value in values.items():
            kept = self._kept(name, _plain(value)) if value is not None else None
            if kept is not None:
                found[name] = (
                    kept if isinstance(kept, str) else msgspec.json.encode(kept, enc_hook=str).decode()
                )
        return found

    def _kept(self, name: str, value: Any) -> Any:
        if self._redact is None:
            return value
        try:
            return self._redact(name, value)
        except Exception as exc:  # noqa: BLE001 - a function of the operator, which must not cost the span
            log.warning(
                "the function of trace_content raised %s: %s is left out", type(exc).__name__, name,
                extra={"action": "redaction_failed"},
            )  # fmt: skip
            return None


def question(messages: Sequence[Message]) -> list[Message]:
    """Return the last user message: the question of the turn."""
    asked = [one for one in messages if one.role == "user"]
    return asked[-1:]


def show_calls(app: App, show: Show) -> None:
    """Let the providers of an App show what is sent to models, and the answers."""
    opened = app.provider

    async def provider(name: str) -> Provider:
        found = await opened(name)
        plain = isinstance(cast("object", found), TurnFunction)
        return found if plain else cast("Provider", _Shown(found, show))

    app.provider = provider  # type: ignore[method-assign]  # without the setting, providers are not wrapped


class _Shown:
    """A provider that shows its calls."""

    def __init__(self, provider: Provider, show: Show) -> None:
        self._provider = provider
        self._show = show
        self.name = provider.name

    def stream(self, request: ModelRequest) -> AsyncIterator[Increment]:
        """Return a call that ``answered`` makes."""
        return cast("AsyncIterator[Increment]", _ShownCall(self._provider, request, self._show))

    async def aclose(self) -> None:
        await self._provider.aclose()


class _ShownCall:
    def __init__(self, provider: Provider, request: ModelRequest, show: Show) -> None:
        self._provider = provider
        self._request = request
        self._show = show
        self._stream: AsyncIterator[Increment] | None = None

    @property
    def counted(self) -> Usage:
        """What the service has counted until now."""
        return getattr(self._stream, "counted", Usage())

    async def into(self, outlet: Outlet) -> StepResult:
        """Make the call, and put its answer into the outlet."""
        self._show(self._request, None)
        self._stream = self._provider.stream(self._request)
        result = await answered(self._stream, outlet)
        self._show(self._request, result.message)
        return result


def _plain(value: Any) -> Any:
    """Return messages and parts in the form of the conventions, and other values unchanged."""
    match value:
        case Message():
            return {"role": value.role, "parts": [_part(part) for part in value.parts]}
        case list():
            return [_plain(one) for one in cast("list[Any]", value)]
        case Text() | Reasoning() | Refusal() | ToolCall() | ToolResult() | Image() | File() | Item():
            return _part(value)
        case _:
            return value


def _part(part: Part) -> dict[str, Any]:
    """Return a part of a message. The bytes of files are left out: they do not belong in a span."""
    match part:
        case Text(text=text) | Refusal(text=text):
            return {"type": "text", "content": text}
        case Reasoning(text=text):
            return {"type": "reasoning", "content": text}
        case ToolCall():
            return {"type": "tool_call", "id": part.call_id, "name": part.name, "arguments": part.arguments}
        case ToolResult():
            return {"type": "tool_call_response", "id": part.call_id, "response": part.text}
        case Image() | File():
            modality = "image" if isinstance(part, Image) else "document"
            known = {"modality": modality} | ({"mime_type": part.media_type} if part.media_type else {})
            file_id = part.id or (part.file_id if isinstance(part, File) else None)
            if part.url:
                return {"type": "uri", "uri": part.url, **known}
            return {"type": "file", "file_id": file_id, **known} if file_id else {"type": modality, **known}
        case Item(provider=provider, item=item):
            return {"type": str(item.get("type") or "item"), "provider": provider}


def _load(path: str) -> Redact:
    """Return the function that a setting names as module:attribute. Raises ``SettingsError``."""
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as exc:
        raise SettingsError(
            f"ANTIPHON_TRACE_CONTENT (--trace-content) must be {ALL}, or a function as module:attribute; "
            f"{path!r} cannot be imported: {type(exc).__name__}."
        ) from exc
    if not callable(found):
        raise SettingsError(f"ANTIPHON_TRACE_CONTENT (--trace-content): {path} is not a function.")
    return cast("Redact", found)
