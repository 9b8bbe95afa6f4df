"""The scripts of pydantic-ai's conversations: a change is made whole or not at all, and nothing is left behind."""

import asyncio
import random

import pytest
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    InMemoryConversationStore,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
from redis import Redis

from antiphon.errors import CorruptRecord
from antiphon.ext.pydantic_ai import AntiphonConversationStore


def asked(text):
    return ModelRequest(parts=[UserPromptPart(text)])


def answered(text):
    return ModelResponse(parts=[TextPart(text)])


def said(conversation):
    return None if conversation is None else [message.parts[0].content for message in conversation.messages]


@pytest.fixture
def store(redis_url):
    return AntiphonConversationStore(redis_url, ttl=100)


async def test_one_of_many_that_save_the_same_wins_and_the_others_leave_nothing(store, redis_url):
    first = Conversation(messages=[asked("Hi")], conversation_id="c")
    await store.save(first)
    loaded = [await store.load("c") for _ in range(8)]
    for n, conversation in enumerate(loaded):
        conversation.messages.append(answered(str(n)))
    outcomes = await asyncio.gather(*(store.save(one) for one in loaded), return_exceptions=True)
    assert sorted(type(one).__name__ for one in outcomes) == ["ConversationConflict"] * 7 + ["list"]
    assert len((await store.load("c")).messages) == 2
    with Redis.from_url(redis_url) as redis:
        assert len(redis.keys("ant:pydantic:entry:*")) == 2
    created = [Conversation(messages=[asked("new")], conversation_id="d") for _ in range(4)]
    outcomes = await asyncio.gather(*(store.save(one) for one in created), return_exceptions=True)
    assert len([one for one in outcomes if isinstance(one, ConversationConflict)]) == 3
    await store.aclose()


async def test_a_save_that_is_cancelled_is_waited_for(store):
    conversation = Conversation(messages=[asked("Hi")], conversation_id="c")
    await store.read_record("c")  # connects
    task = asyncio.ensure_future(
        store.write_record(
            (record := record_of(conversation)), new_entries=[entry_of(record)], expected_revision=None
        )
    )
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await store.load("c")) is None or said(await store.load("c")) == ["Hi"]
    await store.aclose()


def record_of(conversation):
    return ConversationRecord(conversation_id=conversation.conversation_id, head_id="e1")


def entry_of(record):
    return ConversationEntry(id=record.head_id, parent_id=None, message=asked("Hi"))


async def test_a_fork_keeps_what_it_shares_when_its_source_is_deleted(store, redis_url):
    source = Conversation(messages=[asked("a"), answered("b"), asked("c")], conversation_id="source")
    await store.save(source)
    await store.fork("source", at=2, new_conversation_id="fork")
    again = await store.branch("source", at=1, expected_revision=source.revision)
    again.messages.append(answered("B"))
    await store.save(again)
    await store.delete("source")
    assert await store.load("source") is None
    assert said(await store.load("fork")) == ["a", "b"]
    with Redis.from_url(redis_url) as redis:
        assert len(redis.keys("ant:pydantic:entry:*")) == 2
        await store.delete("fork")
        assert redis.keys("ant:pydantic:*") == []
    await store.aclose()


async def test_a_fork_of_what_was_deleted_meanwhile_is_refused(store, redis_url):
    await store.save(Conversation(messages=[asked("a")], conversation_id="source"))
    head = (await store.read_record("source")).head_id
    await store.delete("source")
    with pytest.raises(ConversationConflict):
        await store.write_record(
            ConversationRecord(conversation_id="fork", head_id=head), expected_revision=None
        )
    with Redis.from_url(redis_url) as redis:
        assert redis.keys("ant:pydantic:*") == []
    await store.aclose()


async def test_a_forged_history_that_names_itself_does_not_stop_the_server(store, redis_url):
    await store.save(Conversation(messages=[asked("a"), answered("b")], conversation_id="c"))
    head = (await store.read_record("c")).head_id
    with Redis.from_url(redis_url) as redis:
        first = redis.hget(f"ant:pydantic:entry:{head}", "parent").decode()
        redis.hset(f"ant:pydantic:entry:{first}", "parent", head)
    with pytest.raises(CorruptRecord, match="CIRCLE"):
        await store.load("c")
    await store.delete("c")
    assert await store.load("c") is None
    await store.aclose()


@pytest.mark.lasting_keys("ant:pydantic:*")
async def test_what_a_conversation_needs_lives_as_long_as_it_does(redis_url):
    short, long = (AntiphonConversationStore(redis_url, ttl=ttl) for ttl in (60, 6000))
    await short.save(Conversation(messages=[asked("a"), answered("b")], conversation_id="short"), scope="x")
    await long.fork("short", at=1, new_conversation_id="long")
    await short.save(await short.load("short"))
    with Redis.from_url(redis_url) as redis:
        lives = {key.decode(): redis.ttl(key) for key in redis.keys("ant:*")}
        assert all(0 < life <= 6000 for life in lives.values())
        assert 0 < redis.ttl("ant:pydantic:record:short") <= 60 < redis.ttl("ant:pydantic:record:long")
        assert sorted(life > 60 for key, life in lives.items() if ":entry:" in key) == [False, True]
        redis.delete("ant:pydantic:record:short")  # as if it had expired
    assert [one.conversation_id for one in await long.list_conversations()] == ["long"]
    assert await long.list_conversations(scope="y") == []
    await long.save(await long.load("long"))
    with Redis.from_url(redis_url) as redis:
        assert redis.zrange("ant:pydantic:index", 0, -1) == [b"long"]
    forever = AntiphonConversationStore(redis_url, ttl=None)
    await forever.save(await forever.load("long"))
    with Redis.from_url(redis_url) as redis:
        assert [redis.ttl(key) for key in ("ant:pydantic:record:long", "ant:pydantic:index")] == [-1, -1]
    await long.save(await long.load("long"))
    for one in (short, long, forever):
        await one.aclose()


async def test_more_conversations_than_a_page(store):
    for n in range(120):
        await store.save(Conversation(messages=[asked(str(n))], conversation_id=f"c{n}"), scope=f"s{n % 2}")
    names = [record.conversation_id for record in await store.list_conversations()]
    assert names == [f"c{n}" for n in reversed(range(120))]
    assert len(await store.list_conversations(scope="s1")) == 60
    assert [one.conversation_id for one in await store.list_conversations(limit=2)] == ["c119", "c118"]
    await store.aclose()


class Player:
    """Plays the same random steps on a store as on another one."""

    def __init__(self, store):
        self.store = store
        self.names = {}  # entry ids, which are random, by the order in which they came
        self.loaded = {}

    async def play(self, step, name, other, number):
        try:
            return self.told(await getattr(self, step)(name, other, number))
        except (UserError, LookupError) as exc:
            return type(exc).__name__

    def told(self, entries):
        return [
            (self.name(one.id), self.name(one.parent_id), one.message.parts[0].content)
            for one in entries or ()
        ]

    def name(self, entry):
        return entry and self.names.setdefault(entry, len(self.names))

    async def load(self, name, other, number):
        limit = number if number % 2 else None
        self.loaded[name] = await self.store.load(name, limit=limit)
        return await self.store.load_entries(name, limit=limit)

    async def say(self, name, other, number):
        conversation = self.loaded.get(name) or Conversation(conversation_id=name)
        self.loaded[name] = conversation
        conversation.messages.append(asked(f"m{number}"))
        return await self.store.save(conversation, scope=None if number % 3 else f"s{number % 2}")

    async def rewrite(self, name, other, number):
        conversation = await self.store.load(name)
        if conversation is None:
            return []
        conversation.messages[number % (len(conversation.messages) + 1) :] = [asked(f"r{number}")]
        return await self.store.save(conversation)

    async def branch(self, name, other, number):
        record = await self.store.read_record(name)
        left = None if record is None or not record.branches or number % 2 else record.branches[0]
        revision = record and record.revision
        at = None if left else number % 4
        self.loaded[name] = await self.store.branch(name, at=at, from_entry=left, expected_revision=revision)
        return await self.store.load_entries(name)

    async def fork(self, name, other, number):
        at = number % 3 if number % 2 else None
        self.loaded[other] = await self.store.fork(name, at=at, new_conversation_id=other)
        return await self.store.load_entries(other)

    async def delete(self, name, other, number):
        await self.store.delete(name, scope=None if number % 2 else "s1")
        return []

    async def all(self):
        """All that the store has, in the words of the player."""
        records = await self.store.list_conversations()
        return [
            (
                one.conversation_id, one.scope, one.forked_from, self.name(one.forked_at), self.name(one.head_id),
                [self.name(entry) for entry in one.branches],
                self.told(await self.store.load_entries(one.conversation_id)),
                [self.told(await self.store.read_history(tip)) for tip in one.branches],
            )
            for one in records
        ]  # fmt: skip


STEPS = ["say", "say", "say", "load", "rewrite", "branch", "fork", "delete"]


@pytest.mark.parametrize("seed", range(12))
async def test_it_answers_as_the_store_in_memory_does(store, redis_url, seed):
    chance = random.Random(seed)
    players = [Player(InMemoryConversationStore()), Player(store)]
    for _ in range(60):
        step, number = chance.choice(STEPS), chance.randrange(12)
        name, other = chance.choice("abcd"), chance.choice("abcd")
        one, two = [await player.play(step, name, other, number) for player in players]
        assert (step, two) == (step, one)
    one, two = [await player.all() for player in players]
    assert two == one
    with Redis.from_url(redis_url) as redis:
        assert len(redis.keys("ant:pydantic:entry:*")) == len(players[0].store._entries)
    await store.aclose()
