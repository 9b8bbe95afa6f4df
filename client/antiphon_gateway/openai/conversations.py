"""Conversations: a conversation is a session, and its items are the messages of the history."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NoReturn, cast

from msgspec import Struct

from antiphon.errors import SessionBusy, SessionExists, SessionNotFound
from antiphon.model import Message
from antiphon.session.async_session import AsyncSession
from antiphon_gateway.http.operations import Call, operation
from antiphon_gateway.openai.errors import RefusedField, refused
from antiphon_gateway.openai.items import (
    IncludeQuery,
    ItemList,
    ItemQuery,
    history_items,
    messages_of,
    page_of,
)
from antiphon_gateway.openai.requests import check_metadata
from antiphon_gateway.openai.stored import dereferenced, seal_for, summary_of
from antiphon_gateway.openai.submission import key_of

MOST_ITEMS = 20


class CreateConversation(Struct, kw_only=True, forbid_unknown_fields=True):
    """A conversation to begin, optionally with items."""

    items: list[dict[str, Any]] | None = None
    metadata: dict[str, str] | None = None


class UpdateConversation(Struct, kw_only=True, forbid_unknown_fields=True):
    """The new metadata of a conversation, which replaces its earlier metadata."""

    metadata: dict[str, str] | None


class AddItems(Struct, kw_only=True, forbid_unknown_fields=True):
    """Items to append to a conversation."""

    items: list[dict[str, Any]]


class Conversation(Struct):
    """A conversation. Its metadata are the text entries of its session's metadata."""

    id: str
    created_at: int
    metadata: dict[str, str]
    object: str = "conversation"


class DeletedConversation(Struct):
    """A deleted conversation."""

    id: str
    deleted: bool = True
    object: str = "conversation.deleted"


@operation("POST", "/v1/conversations", right="write")
async def create_conversation(call: Call[None, CreateConversation]) -> Conversation:
    """Begin a conversation, perhaps with items

    With an `Idempotency-Key`, a repeated request gets the same conversation.
    """
    given, key = call.body, key_of(call)
    check_metadata(given.metadata)
    messages = await _messages(call, given.items or [])
    call.path["session"] = call.new_session(key)
    session = call.client.session(
        call.path["session"], messages=cast("Any", messages) or None, metadata=given.metadata,
        tenant=call.caller.tenant,
    )  # fmt: skip
    with suppress(SessionBusy, *([SessionExists] if key is not None else [])):
        await session.add_message(if_busy="reject")  # its first use stores it
    return await _shown(call)


@operation("GET", "/v1/conversations/{session}", right="read")
async def show_conversation(call: Call[None, None]) -> Conversation:
    """Read a conversation"""
    return await _shown(call)


@operation("POST", "/v1/conversations/{session}", right="write")
async def update_conversation(call: Call[None, UpdateConversation]) -> Conversation:
    """Replace the metadata of a conversation"""
    check_metadata(call.body.metadata)
    before, given = await _shown(call), call.body.metadata or {}
    gone = dict.fromkeys(before.metadata.keys() - given.keys())
    await _session(call).set_metadata({**given, **gone})
    return await _shown(call)


@operation("DELETE", "/v1/conversations/{session}", right="admin")
async def delete_conversation(call: Call[None, None]) -> DeletedConversation:
    """Delete a conversation with its session, and cancel its turns"""
    await _shown(call)
    await call.patiently(_session(call).delete())
    return DeletedConversation(call.path["session"])


@operation("POST", "/v1/conversations/{session}/items", right="write")
async def create_items(call: Call[IncludeQuery, AddItems]) -> ItemList:
    """Add items to a conversation without making a response; refused with 409 while one is made"""
    await _shown(call)
    seal = seal_for(call, call.query.include)
    messages = await _messages(call, call.body.items, call.path["session"])
    if not messages:
        raise refused("items", "items must not be empty.")
    session = _session(call)
    await session.add_message(*messages, if_busy="reject")
    added = history_items(await session.history(-len(messages)), seal)
    return page_of(added, ItemQuery(limit=100, order="asc"))


@operation("GET", "/v1/conversations/{session}/items", right="read")
async def list_items(call: Call[ItemQuery, None]) -> ItemList:
    """List the items of a conversation, the last one first"""
    return page_of(await _items(call), call.query)


@operation("GET", "/v1/conversations/{session}/items/{item}", right="read")
async def show_item(call: Call[IncludeQuery, None]) -> dict[str, Any]:
    """Read an item of a conversation"""
    name = call.path["item"]
    found = next((item for item in await _items(call) if item["id"] == name), None)
    if found is None:
        raise RefusedField("item_id", f"Unknown item {name[:100]!r}.", status=404, code="item_not_found")
    return found


@operation("DELETE", "/v1/conversations/{session}/items/{item}", right="write")
async def delete_item(call: Call[None, None]) -> Conversation:
    """Refused: a single item cannot be deleted; rewind the history instead"""
    _no_item_is_deleted()


def _no_item_is_deleted() -> NoReturn:
    raise RefusedField(
        "item_id",
        "A single item cannot be deleted: POST /sessions/{session}/rewind removes the messages after a given one.",
    )


async def _messages(
    call: Call[Any, Any], items: list[dict[str, Any]], session: str | None = None
) -> list[Message]:
    if len(items) > MOST_ITEMS:
        raise refused("items", f"items: {MOST_ITEMS} may be added at once.")
    return messages_of(await dereferenced(call, items, session), summary_of(call))


def _session(call: Call[Any, Any]) -> AsyncSession:
    return call.client.session(call.path["session"], tenant=call.caller.tenant)


async def _shown(call: Call[Any, Any]) -> Conversation:
    """Read a conversation. Raises ``SessionNotFound``."""
    session = _session(call)
    status = await session.status()
    if not status.created:
        raise SessionNotFound(session_id=session.session_id)
    metadata = {name: value for name, value in (await session.metadata()).items() if isinstance(value, str)}
    return Conversation(session.session_id, status.created // 1000, metadata)


async def _items(call: Call[Any, Any]) -> list[dict[str, Any]]:
    await _shown(call)
    return history_items(await _session(call).history(), seal_for(call, call.query.include))


OPERATIONS = [
    create_conversation, show_conversation, update_conversation, delete_conversation, create_items, list_items,
    show_item, delete_item,
]  # fmt: skip
