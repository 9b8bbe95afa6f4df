"""The parts of a message: text, reasoning, tool calls and their results, images, files."""

from __future__ import annotations

import re
from base64 import b64encode
from mimetypes import guess_type
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, TypeAlias, cast

import msgspec
from msgspec import Meta, Struct, field


def _no_arguments() -> dict[str, Any]:
    return {}


def _no_text() -> str:
    return ""


NO_ARGUMENTS, NO_TEXT = field(default_factory=_no_arguments), field(default_factory=_no_text)
"""Defaults that are also written to the JSON: web pages read messages, events and calls without these types."""
Arguments: TypeAlias = Annotated[dict[str, Any], Meta(extra_json_schema={"default": {}})]
WrittenText: TypeAlias = Annotated[str, Meta(extra_json_schema={"default": ""})]


class Text(Struct, tag="text", tag_field="type", omit_defaults=True):
    """Plain text. ``annotations`` are the provider's own (citations), unchanged; ``item`` is its other data."""

    text: str
    annotations: list[dict[str, Any]] = field(default_factory=list)
    item: dict[str, Any] | None = None


class Reasoning(Struct, tag="reasoning", tag_field="type", omit_defaults=True):
    """The model's reasoning. ``item`` is the provider's own block, unchanged, for the next request to the service."""

    text: WrittenText = NO_TEXT
    item: dict[str, Any] | None = None


class ToolCall(Struct, tag="tool_call", tag_field="type", omit_defaults=True):
    """A tool call that the model requested.

    ``raw`` is the provider's exact text of the arguments, if it differs from the compact form of ``arguments``. If
    that text is not a JSON object, ``arguments`` is empty.
    """

    call_id: str
    name: str
    arguments: Arguments = NO_ARGUMENTS
    raw: str | None = None
    item: dict[str, Any] | None = None

    @classmethod
    def from_text(
        cls, call_id: str, name: str, text: str | None, item: dict[str, Any] | None = None
    ) -> ToolCall:
        """Read the arguments as a provider sent them. Empty text and null mean no arguments."""
        text = text or ""
        try:
            arguments: Any = msgspec.json.decode(text) if text.strip() else {}
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            return cls(call_id, name, {}, text, item)
        if arguments is None:
            arguments = {}
        if not isinstance(arguments, dict):
            return cls(call_id, name, {}, text, item)
        compact = msgspec.json.encode(arguments).decode()
        raw = None if text == compact or not text.strip() else text
        return cls(call_id, name, cast("dict[str, Any]", arguments), raw, item)

    @property
    def arguments_text(self) -> str:
        """The arguments as JSON text, exactly as the provider sent them."""
        if self.raw is not None and not self.invalid:
            return self.raw
        return msgspec.json.encode(self.arguments).decode()

    @property
    def invalid(self) -> bool:
        """Whether the model's arguments were not a JSON object."""
        if self.raw is None or self.arguments:
            return False
        try:
            return msgspec.json.decode(self.raw) not in ({}, None)
        except (msgspec.DecodeError, RecursionError):
            return True


class Image(Struct, tag="image", tag_field="type", omit_defaults=True):
    """A picture: ``url``, or ``data`` (base64) with ``media_type``. ``Image.from_path`` reads one from a file.

    An image that the session stores has an ``id`` instead of ``data``: ``session.read_file`` returns the content.
    """

    url: str | None = None
    data: str | None = None
    media_type: str | None = None
    detail: str | None = None
    id: str | None = None

    @classmethod
    def from_path(cls, path: str | PathLike[str], *, detail: str | None = None) -> Image:
        """Read a file into ``data``. Its name determines the media type. Raises ``OSError`` if it cannot be read.

        >>> from pathlib import Path
        >>> written = Path("dot.png").write_bytes(b"PNG")
        >>> Image.from_path("dot.png")
        Image(url=None, data='UE5H', media_type='image/png', detail=None)
        """
        data, media_type = _read(Path(path))
        return cls(data=data, media_type=media_type, detail=detail)


class File(Struct, tag="file", tag_field="type", omit_defaults=True):
    """A document: ``url``, ``data`` (base64) with ``media_type``, or the provider's ``file_id``.

    ``File.from_path`` reads one from a file. A file that the session stores has an ``id``, the SHA-256 of its
    content, instead of ``data``: ``session.read_file`` returns the content.
    """

    url: str | None = None
    data: str | None = None
    file_id: str | None = None
    media_type: str | None = None
    name: str | None = None
    id: str | None = None

    @classmethod
    def from_path(cls, path: str | PathLike[str]) -> File:
        """Read a file into ``data``, with its ``name``. Raises ``OSError`` if it cannot be read.

        >>> from pathlib import Path
        >>> written = Path("notes.txt").write_text("Hello")
        >>> File.from_path("notes.txt").name
        'notes.txt'
        """
        data, media_type = _read(Path(path))
        return cls(data=data, media_type=media_type, name=Path(path).name)


def _read(path: Path) -> tuple[str, str | None]:
    return b64encode(path.read_bytes()).decode(), guess_type(path)[0]


STORED = "antiphon:file:"
"""Prefix of a stored file's id where OpenAI's format has a URL."""

_STORED = re.compile(r"[0-9a-f]{64}")


def media_problem(part: object) -> str | None:
    """Return why an image or a file cannot be sent to a model service. Return None if it can, and for other parts."""
    if not isinstance(part, Image | File):
        return None
    kind = type(part).__name__
    given: Any = part.url  # creating a part does not check types
    if given is not None and not isinstance(given, str):
        return f"{kind}(url=…) must be text, not {type(given).__name__}. To send a file, use {kind}.from_path(…)."
    if part.data is not None and not _begins_as_base64(part.data):
        return f"{kind}(data=…) must be text in base64. To send a file, use {kind}.from_path(…)."
    if part.url is not None and not part.url.lower().startswith(("https://", "http://", "data:")):
        return (
            f"{kind}(url=…) must begin with https://, http:// or data:, and begins with {part.url[:40]!r}. "
            f"To send a file, use {kind}.from_path(…)."
        )
    if part.id is not None and not _STORED.fullmatch(part.id):
        return (
            f"{kind}(id=…) must be the id of a stored file, 64 hexadecimal digits, and is {part.id[:80]!r}."
        )
    if part.url or part.data or part.id or (isinstance(part, File) and part.file_id):
        return None
    return f"{kind}() has no content: pass url= or data=, or read a file with {kind}.from_path(…)."


_BASE64 = re.compile(r"[A-Za-z0-9+/=\s]*")
_BEGINNING = 100  # characters of data that are checked, enough to detect a name, a path or bytes


def _begins_as_base64(data: object) -> bool:
    return isinstance(data, str) and _BASE64.fullmatch(data[:_BEGINNING]) is not None


class Refusal(Struct, tag="refusal", tag_field="type", omit_defaults=True):
    """The model's refusal, in its own words."""

    text: str


class Item(Struct, tag="item", tag_field="type", omit_defaults=True):
    """An item of a ``provider`` (server tools, searches, generated images), kept unchanged."""

    provider: str
    item: dict[str, Any]


class ToolResult(Struct, tag="tool_result", tag_field="type", omit_defaults=True):
    """The result of a tool call, or why it failed."""

    call_id: str
    content: str | list[Text | Image | File] = ""
    name: str = ""
    is_error: bool = False

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content if isinstance(part, Text))


Part: TypeAlias = Text | Reasoning | ToolCall | ToolResult | Image | File | Refusal | Item
