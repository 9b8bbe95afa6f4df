"""``AntiphonConversationStore``: conversations of pydantic-ai on the Redis that workers use.

A conversation is a log whose history may go back to an earlier message and leave a branch, and whose forks share its
messages. It is no session of ours. Each change is one script.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import UNSET, UnsetType
from pydantic import TypeAdapter
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)
from pydantic_ai.messages import ModelMessagesTypeAdapter

from antiphon.encryption.keyring import keyring_of_process
from antiphon.errors import UsageError
from antiphon.ext.outcome import outcome_of
from antiphon.input.values import lifetime
from antiphon.redis.connections import ConnectionsByLoop
from antiphon.redis.prefix import prefix_of
from antiphon.session.runtime import DEFAULT_TTL_SECONDS
from antiphon.wire.cell import Cell
from antiphon.wire.errors import asked, unexpected

__all__ = ["AntiphonConversationStore"]

PAGE = 100
_RECORDS = TypeAdapter(ConversationRecord)


class AntiphonConversationStore(ConversationStore):
    """A store for ``Conversation``s of pydantic-ai on Redis or Valkey: ``store.load``, ``save``, ``branch``, ``fork``.

    >>> from dataclasses import replace
    >>> from pydantic_ai import Agent
    >>> from pydantic_ai.conversation import Conversation
    >>> from pydantic_ai.models.test import TestModel
    >>> from antiphon.ext.pydantic_ai import AntiphonConversationStore
    >>> store = AntiphonConversationStore("redis://localhost:6379/0", ttl=7 * 86400)
    >>> conversation = await store.load("user-123") or Conversation(conversation_id="user-123")
    >>> result = await Agent(TestModel()).run("Hello", conversation=conversation)
    >>> len(await store.save(result, scope="acme"))
    2
    >>> [record.conversation_id for record in await store.list_conversations(scope="acme")]
    ['user-123']

    ``redis`` is a URL, a list of URLs (all conversations are on one of these servers) or a redis-py client. ``ttl``
    (seconds or a timedelta) is how long a conversation is kept without being saved, by default 30 days; None keeps it
    forever.

    A save is one atomic step on the server, with the record, its messages and the comparison of the revision: of two
    that save the same conversation, one gets ``ConversationConflict``, and none of its messages is stored. A change
    that is cancelled is waited for. ``delete`` deletes the messages too, but for those that a fork still has. It may be
    used from any event loop. Raises ``AgentError`` (``store_unavailable``, …).
    """

    def __init__(
        self,
        redis: Any,
        *,
        prefix: str | None = None,
        ttl: float | timedelta | UnsetType | None = UNSET,
    ) -> None:
        if keyring_of_process() is not None:
            raise UsageError(
                "Conversations of pydantic-ai cannot be encrypted yet: keep them in sessions, or leave "
                "ANTIPHON_ENCRYPTION_KEYS out."
            )
        self._connections = ConnectionsByLoop(redis, prefix_of(prefix))
        seconds = lifetime(ttl)
        seconds = DEFAULT_TTL_SECONDS if isinstance(seconds, UnsetType) else seconds
        self._ttl_ms = "" if seconds is None else int(seconds * 1000)

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return what is kept of a conversation beside its messages, or None.

        >>> (await store.read_record("user-123")).scope
        'acme'
        """
        cell = await self._cell()
        data = await asked(cell.redis.hget(cell.keys.pydantic_record(conversation_id), "record"))
        return None if data is None else _RECORDS.validate_json(data)

    async def read_records(
        self, *, scope: str | None = None, limit: int | None = None
    ) -> Sequence[ConversationRecord]:
        """Return what is kept of conversations, perhaps of those of a scope, the one that was saved last first.

        >>> await store.read_records(scope="nobody")
        []
        """
        cell = await self._cell()
        keys = cell.keys
        index = keys.pydantic_index if scope is None else keys.pydantic_scope(_given(scope))
        found: list[ConversationRecord] = []
        start = 0
        while limit is None or len(found) < limit:
            names: list[bytes] = await asked(cell.redis.zrevrange(index, start, start + PAGE - 1))
            if not names:
                break
            pipe = cell.redis.pipeline(transaction=False)
            for name in names:
                pipe.hget(keys.pydantic_record(name.decode()), "record")
            found += [
                _RECORDS.validate_json(data) for data in await asked(pipe.execute()) if data is not None
            ]
            start += PAGE
        return found[:limit]

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store a record and new entries, in the place of the record with this revision, in one step.

        >>> record = replace(await store.read_record("user-123"), revision="mine")
        >>> await store.write_record(record, expected_revision="another")
        Traceback (most recent call last):
        pydantic_ai.conversation_store.ConversationConflict: Conversation 'user-123' was saved or deleted since ...
        """
        cell = await self._cell()
        entries = [
            value for entry in new_entries for value in (entry.id, entry.parent_id or "", _dumped(entry))
        ]
        change = cell.run(
            "conversations/write", record.conversation_id, expected_revision or "", record.revision,
            record.head_id or "", "\n".join(record.branches), _given(record.scope),
            _microseconds(record.updated_at), self._ttl_ms, _RECORDS.dump_json(record), len(new_entries), *entries,
        )  # fmt: skip
        answer = await outcome_of(change)
        if answer[0] == b"CONFLICT" and await self._revision(record.conversation_id) == record.revision:
            return  # it was written, and the answer lost: it was sent again; no two saves have one revision
        _check(answer, record.conversation_id)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a conversation with this revision, and the entries that no fork of it has, in one step.

        >>> await store.delete_record("nobody", expected_revision="any")
        Traceback (most recent call last):
        pydantic_ai.conversation_store.ConversationConflict: Conversation 'nobody' was saved or deleted since ...
        """
        cell = await self._cell()
        stored = await self._revision(conversation_id) == expected_revision
        answer = await outcome_of(cell.run("conversations/delete", conversation_id, expected_revision))
        if answer[0] == b"CONFLICT" and stored and await self._revision(conversation_id) is None:
            return  # it was deleted, and the answer lost: it was sent again
        _check(answer, conversation_id)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return an entry. Raises ``LookupError`` if there is none.

        >>> (await store.read_entry((await store.read_record("user-123")).head_id)).message.kind
        'response'
        """
        (entry,) = await self.read_history(entry_id, limit=1)
        return entry

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """Return the entries up to this one, or the last ``limit`` of them. Raises ``LookupError``.

        >>> await store.read_history("nothing")
        Traceback (most recent call last):
        LookupError: There is no entry 'nothing'.
        """
        if head_id is None or limit == 0:
            return []
        cell = await self._cell()
        match await cell.run("conversations/history", head_id, "" if limit is None else limit):
            case [b"ENTRIES", *found]:
                return [_entry(*each) for each in reversed(found)]
            case [b"MISSING", entry]:
                raise LookupError(f"There is no entry {entry.decode()!r}.")
            case answer:
                raise unexpected("conversations/history", answer)

    async def aclose(self) -> None:
        """Close the connections of the running event loop. They also close when the loop ends.

        >>> await store.aclose()
        """
        await self._connections.aclose()

    async def _revision(self, conversation_id: str) -> str | None:
        """Return the revision of the record that is stored, or None if there is none."""
        cell = await self._cell()
        found = await asked(cell.redis.hget(cell.keys.pydantic_record(conversation_id), "revision"))
        return None if found is None else found.decode()

    async def _cell(self) -> Cell:
        """The one cell of all conversations: an entry does not say of which one it is."""
        return (await self._connections.here()).cells.of_session("conversations")


def _check(answer: list[bytes], conversation_id: str) -> None:
    if answer[0] == b"CONFLICT":
        raise ConversationConflict(conversation_id)


def _given(scope: str | None) -> str:
    """The scope as the scripts take it: '' is none."""
    return "" if scope is None else f"={scope}"


def _microseconds(time: datetime) -> int:
    return int(time.timestamp() * 1_000_000)


def _dumped(entry: ConversationEntry) -> bytes:
    return ModelMessagesTypeAdapter.dump_json([entry.message])


def _entry(entry_id: bytes, parent: bytes, data: bytes) -> ConversationEntry:
    (message,) = ModelMessagesTypeAdapter.validate_json(data)
    return ConversationEntry(id=entry_id.decode(), parent_id=parent.decode() or None, message=message)
