"""Converts messages and their parts between the protocol's types and ours. Without HTTP or Redis."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

import msgspec
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import ContentTypeNotSupportedError, InvalidParamsError
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message as Proto
from google.protobuf.struct_pb2 import Value

from antiphon.model import File, Image, Message, Part, Refusal, Text
from antiphon_gateway.published import A2AAgent

TEXT, JSON, BYTES = "text/plain", "application/json", "application/octet-stream"
DEEPEST = 25
"""Deepest JSON that a message may contain. Each level takes 3 of the 100 levels of the binary form."""
T = TypeVar("T", bound=Proto)
Address = Callable[[str], str]
"""Returns the URL of a stored file, by its id."""


def plain(message: Any) -> Any:
    """Return a message, a struct or a value of the protocol as plain data. Whole numbers become ``int``."""
    return _whole(MessageToDict(message))


def _whole(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {name: _whole(one) for name, one in value.items()}
        case list():
            return [_whole(one) for one in value]
        case _:
            return value


def check_parts(parts: Iterable[pb.Part], agent: A2AAgent, *, answers: bool = False) -> None:
    """Raise an error of the protocol unless the agent accepts parts like these. Answers may always be text and data."""
    found = list(parts)
    if not found:
        raise InvalidParamsError("The message has no parts: send at least one.")
    for part in found:
        kind = part.WhichOneof("content")
        if kind is None:
            raise InvalidParamsError("A part must have one of text, raw, url and data.")
        if answers and kind in ("text", "data"):
            continue
        media_type = part.media_type or {"text": TEXT, "data": JSON}.get(kind, BYTES)
        if not agent.accepts(media_type):
            modes = ", ".join(agent.input_modes)
            raise ContentTypeNotSupportedError(f"Parts may be {modes}, not {media_type[:100]}.")


def ours(parts: Iterable[pb.Part]) -> list[Part]:
    """Return the parts of a user's message as our parts, for a turn."""
    return [_ours(part) for part in parts]


def _ours(part: pb.Part) -> Part:
    media_type, name = part.media_type or None, part.filename or None
    match part.WhichOneof("content"):
        case "text":
            return Text(part.text)
        case "data":
            return Text(msgspec.json.encode(plain(part.data)).decode())
        case "url":
            if (media_type or "").startswith("image/"):
                return Image(part.url, media_type=media_type)
            return File(part.url, media_type=media_type, name=name)
        case _:
            if (media_type or "").startswith("text/"):
                return Text(part.raw.decode(errors="replace"))
            data = b64encode(part.raw).decode()
            if (media_type or "").startswith("image/"):
                return Image(data=data, media_type=media_type)
            return File(data=data, media_type=media_type, name=name)


def theirs(parts: Iterable[Part], address: Address) -> list[pb.Part]:
    """Return the parts of an answer that have content for the client, as parts of the protocol."""
    return [found for part in parts if (found := _theirs(part, address)) is not None]


def _theirs(part: Part, address: Address) -> pb.Part | None:
    match part:
        case Text() | Refusal():
            return pb.Part(text=part.text) if part.text else None
        case Image() | File():
            found = pb.Part(media_type=part.media_type or "", filename=getattr(part, "name", None) or "")
            if part.id is not None:
                found.url = address(part.id)
            elif part.data is not None:
                try:
                    found.raw = b64decode(part.data)
                except (Error, ValueError):
                    return None
            elif part.url is not None:
                found.url = part.url
            else:
                return None
            return found
        case _:
            return None


def data_parts(value: Any) -> list[pb.Part]:
    """Return a part with plain data; none for data that the protocol cannot represent, such as too deep JSON."""
    found = filled(value, Value())
    return [] if found is None else [pb.Part(data=found, media_type=JSON)]


def filled(value: Any, into: T) -> T | None:
    """Return a value or struct of the protocol with plain data, or None if it cannot represent them."""
    if _deeper(value, DEEPEST):
        return None
    try:
        return ParseDict(value, into)
    except (ParseError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _deeper(value: Any, levels: int) -> bool:
    match value:
        case dict():
            inner = [*cast("dict[str, Any]", value).values()]
        case list():
            inner = cast("list[Any]", value)
        case _:
            return False
    return levels == 0 or any(_deeper(one, levels - 1) for one in inner)


def history_of(
    messages: Iterable[Message], task: str, context: str, first: str, address: Address
) -> list[pb.Message]:
    """Return the messages of a turn. ``first`` is the id of the client's message that began it."""
    found: list[pb.Message] = []
    for number, message in enumerate(messages):
        parts = theirs(message.parts, address)
        if message.role not in ("user", "assistant") or not parts:
            continue
        role = pb.ROLE_USER if message.role == "user" else pb.ROLE_AGENT
        name = first if not found and role == pb.ROLE_USER else message.id or f"{task}.{number}"
        found.append(pb.Message(message_id=name, role=role, parts=parts, task_id=task, context_id=context))
    return found
