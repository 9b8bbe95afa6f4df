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
"""Defaults that are written into the JSON too: web pages read messages, events and calls without these types."""
Arguments: TypeAlias = Annotated[dict[str, Any], Meta(extra_json_schema={"default": {}})]
WrittenText: TypeAlias = Annotated[str, Meta(extra_json_schema={"default": ""})]


class Text(Struct, tag="text", tag_field="type", omit_defaults=True):
    """Plain text. ``annotations`` are the provider's own (citations), whole; ``item`` is what else it said of it."""

    text: str
    annotations: list[dict[str, Any]] = field(default_factory=list)
    item: dict[str, Any] | None = None


class Reasoning(Struct, tag="reasoning", tag_field="type", omit_defaults=True):
    """What a model thought. ``item`` is the provider's own block, whole, for the next request to the same service."""

    text: WrittenText = NO_TEXT
    item: dict[str, Any] | None = None


class ToolCall(Struct, tag="tool_call", tag_field="type", omit_defaults=True):
    """A tool call that the model asked for.

    ``raw`` is the provider's exact text of the arguments where it is not the compact form of ``arguments``;
    where that text is no JSON object, ``arguments`` is empty and ``raw`` says what came.
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
        """Read the arguments as a provider sent them; empty and null mean no arguments."""
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
        """True where the model's arguments were not a JSON object."""
        if self.raw is None or self.arguments:
            return False
        try:
            return msgspec.json.decode(self.raw) not in ({}, None)
        except (msgspec.DecodeError, RecursionError):
            return True


class Image(Struct, tag="image", tag_field="type", omit_defaults=True):
    """A picture: ``url``, or ``data`` (base64) with ``media_type``. ``Image.from_path`` reads one from a file.

    One that the session stores has its ``id`` in place of ``data``: ``session.read_file`` returns the content.
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

    ``File.from_path`` reads one from a file. One that the session stores has its ``id``, the SHA-256 of its content,
    in place of ``data``: ``session.read_file`` returns the content.
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
"""Stands before the id of a stored file where OpenAI's format has a URL."""

_STORED = re.compile(r"[0-9a-f]{64}")


def media_problem(part: object) -> str | None:
    """Return why an image or a file cannot be sent to a model service, or None. Other parts have no such problem."""
    if not isinstance(part, Image | File):
        return None
    kind = type(part).__name__
    given: Any = part.url  # types are not checked where a part is made
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
_BEGINNING = 100  # characters of data that are looked at: a name, a path and bytes differ there


def _begins_as_base64(data: object) -> bool:
    return isinstance(data, str) and _BASE64.fullmatch(data[:_BEGINNING]) is not None


class Refusal(Struct, tag="refusal", tag_field="type", omit_defaults=True):
    """The model declined, in its own words."""

    text: str


class Item(Struct, tag="item", tag_field="type", omit_defaults=True):
    """A provider's own item (server tools, searches, generated images), kept whole. ``provider`` says whose."""

    provider: str
    item: dict[str, Any]


class ToolResult(Struct, tag="tool_result", tag_field="type", omit_defaults=True):
    """What a tool call returned, or why it failed."""

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
