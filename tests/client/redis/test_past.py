"""Any cursor resumes: what the log no longer has arrives as messages of the history, each once and in order."""

from __future__ import annotations

from itertools import pairwise

import pytest
from support.eventually import wait_until_async
from support.here import running_worker

from antiphon import Agent, AsyncClient
from antiphon.encryption import KEYS_VARIABLE, new_key
from antiphon.errors import StreamGap, UsageError
from antiphon.redis import past
from antiphon.wire.cell import Cell

pytestmark = pytest.mark.one_server
S = "user-123"


async def talk(ensemble, *texts, session=S):
    for text in texts:
        await (await ensemble.submit(session, text)).result(60)
    return (await ensemble.events(session))[-1].seq


def trim(redis, first, session=S):
    """As the end of a turn does: the log begins with this event."""
    redis.xtrim(f"ant:events:{session}", minid=f"{first}-0", approximate=False)


async def read(client, after, until, session=S, most=10_000):
    """What a reader receives from a cursor on, up to an event or to so many."""
    seen = []
    async with client.subscribe(session, after) as events:
        async for event in events:
            seen.append(event)
            if event.seq >= until or len(seen) == most:
                break
    return seen


def texts_of(events):
    """The questions of a conversation as a page shows it: from the messages and from the events of the log."""
    found = {}
    for event in events:
        if event.type == "message":
            found |= {one.id: one.text for one in event.messages if one.role == "user"}
        elif event.type == "turn_queued":
            found[f"{event.turn_id}.1"] = event.input[0].text
    return [*found.values()]


def check_order(events, after, first):
    """Rising, without a gap from the first event of the log on."""
    seqs = [event.seq for event in events]
    assert all(one < other for one, other in pairwise([after, *seqs]))
    assert [seq for seq in seqs if seq >= first] == list(range(max(first, after + 1), seqs[-1] + 1))


async def test_any_cursor_resumes(ensemble, redis):
    async with ensemble.worker():
        texts = [f"question {number}" for number in range(8)]
        last = await talk(ensemble, *texts)
        every = await ensemble.events(S)
        ends = [event.seq for event in every if event.terminal]
        first = ends[5] - 1  # in the middle of the sixth turn
        trim(redis, first)
        for after in range(last):
            seen = await read(ensemble.client, after, last)
            check_order(seen, after, first)
            told = [event for event in seen if event.type == "message"]
            assert [event.seq for event in told] == [end for end in ends[:5] if end > after]
            turns = [event.turn_id for event in every if event.terminal and event.seq > after]
            assert [event.turn_id for event in seen if event.type == "message" or event.terminal] == turns
            queued = {event.turn_id: event.seq for event in every if event.type == "turn_queued"}
            new = [
                text
                for text, end, seq in zip(texts, ends, queued.values(), strict=True)
                if end > after and (end < first or seq > after)
            ]
            assert texts_of(seen) == new


async def test_a_reader_that_leaves_in_the_middle_goes_on_there(ensemble, redis):
    async with ensemble.worker():
        last = await talk(ensemble, *map(str, range(8)))
        trim(redis, last - 1)
        whole = await read(ensemble.client, 1, last)
        for leaves in range(1, len(whole)):
            begun = await read(ensemble.client, 1, last, most=leaves)
            rest = await read(ensemble.client, begun[-1].seq, last)
            assert [*begun, *rest] == whole


async def test_the_log_moves_on_under_a_reader(ensemble, redis, monkeypatch):
    monkeypatch.setattr(past, "PAGE", 2)
    async with ensemble.worker():
        last = await talk(ensemble, *map(str, range(6)))
        trim(redis, last - 12)
        seen = []
        async with ensemble.client.subscribe(S, 1) as events:
            for number in range(6, 12):
                seen.append(await anext(events))
                last = await talk(ensemble, str(number))
                trim(redis, last - 2)
            async for event in events:
                seen.append(event)
                if event.seq == last:
                    break
        assert texts_of(seen) == [str(number) for number in range(12)]
        assert all(one < other for one, other in pairwise(event.seq for event in seen))


async def test_a_history_that_changes_between_the_plan_and_the_page(ensemble, redis, monkeypatch):
    """A rewind comes exactly there: the page is read again, and what is gone is not given."""
    async with ensemble.worker():
        last = await talk(ensemble, *map(str, range(4)))
        trim(redis, last)
        messages, session = past.History.messages, ensemble.client.session(S)
        kept = (await ensemble.client.snapshot(S)).messages[3].id

        async def rewound(self, start, stop, noted):
            monkeypatch.setattr(past.History, "messages", messages)
            await session.rewind(kept)
            return await messages(self, start, stop, noted)

        monkeypatch.setattr(past.History, "messages", rewound)
        seen = await read(ensemble.client, 1, last + 1)
        assert texts_of(seen) == ["0", "1", "3"]  # of the last turn the log has the end, and then the rewind
        assert (seen[-1].type, seen[-1].kept) == ("history_rewound", 4)


@pytest.mark.parametrize("how", ["rewind", "clear", "regenerate"])
async def test_a_reader_learns_of_a_history_that_was_cut(how, ensemble, redis):
    async with ensemble.worker():
        seen_by_then = await talk(ensemble, "one", "two", "three")
        session = ensemble.client.session(S)
        match how:
            case "rewind":
                await session.rewind((await ensemble.client.snapshot(S)).messages[1].id)
            case "clear":
                await session.clear()
            case _:
                await (await session.regenerate()).result(60)
        last = await talk(ensemble, "four")
        trim(redis, last)
        told, *rest = await read(ensemble.client, seen_by_then, last)
        assert (told.type, getattr(told, "kept", 0)) == {
            "rewind": ("history_rewound", 2), "clear": ("history_cleared", 0), "regenerate": ("history_rewound", 5),
        }[how]  # fmt: skip
        history = [message.text for message in (await ensemble.client.snapshot(S)).messages]
        messages = [one.text for event in rest if event.type == "message" for one in event.messages]
        assert history[getattr(told, "kept", 0) : -2] == messages


async def test_what_a_turn_left_is_what_the_history_has(ensemble, redis):
    """Nothing of one that failed or was rolled back, and the input of one that was interrupted."""
    async with ensemble.worker():
        await talk(ensemble, "before")
        failed = await ensemble.submit(S, "fail:rejected")
        await wait_until_async(lambda: _is(failed, "failed"))
        stopped = await ensemble.submit(S, "say words:3 gate:g")
        await ensemble.waits("g")
        await stopped.cancel(keep="partial")
        await wait_until_async(lambda: _is(stopped, "cancelled"))
        ensemble.stage.open("g")
        last = await talk(ensemble, "after")
        trim(redis, last)
        seen = await read(ensemble.client, 1, last)
        said = [one.text for event in seen if event.type == "message" for one in event.messages]
        assert said == [one.text for one in (await ensemble.client.snapshot(S)).messages][: len(said)]
        assert failed.id not in [event.turn_id for event in seen]


async def _is(turn, status):
    return await turn.status() == status


async def test_turns_that_go_on_are_shown_as_they_were_submitted(ensemble, redis):
    async with ensemble.worker():
        await talk(ensemble, "before")
        running = await ensemble.submit(S, "running gate:g")
        waiting = await ensemble.submit(S, "waiting")
        await ensemble.waits("g")
        begins = int(await ensemble.field(running, "first_seq"))
        trim(redis, max(begins, int(await ensemble.field(waiting, "queued_seq")) + 1))
        ensemble.stage.open("g")
        await waiting.result(60)
        last = (await ensemble.events(S))[-1].seq
        seen = await read(ensemble.client, 1, last)
        assert texts_of(seen) == ["before", "running gate:g", "waiting"]
        queued = [(event.turn_id, event.seq) for event in seen if event.type == "turn_queued"]
        assert [turn for turn, _ in queued] == [running.id, waiting.id]
        assert all(one < other for one, other in pairwise(event.seq for event in seen))


async def test_a_turn_that_goes_on_and_cannot_be_read_is_shown_without_its_input(ensemble, redis):
    async with ensemble.worker():
        await talk(ensemble, "before")
        running = await ensemble.submit(S, "running gate:g")
        await ensemble.waits("g")
        trim(redis, int(await ensemble.field(running, "first_seq")))
        ensemble.stage.open("g")
        await running.result(60)
        last = (await ensemble.events(S))[-1].seq
        kept = redis.hget(f"ant:turn:{running.id}", "request")
        redis.hset(f"ant:turn:{running.id}", "request", "{")
        [queued] = [one for one in await read(ensemble.client, 1, last) if one.type == "turn_queued"]
        assert (queued.turn_id, queued.input, queued.input_omitted) == (running.id, [], True)
        redis.hset(f"ant:turn:{running.id}", "request", kept)


async def test_a_cursor_that_no_event_of_the_session_has(ensemble, redis):
    async with ensemble.worker():
        last = await talk(ensemble, "one", "two")
        trim(redis, last)
        with pytest.raises(StreamGap, match=f"There is no event {last + 1}"):
            await read(ensemble.client, last + 1, last)
        with pytest.raises(UsageError, match="seq of an event"):
            ensemble.client.subscribe(S, -1)
        await ensemble.client.session(S).delete()
        new = await talk(ensemble, "anew", "again")
        trim(redis, new)
        for cursor in range(1, last + 1):
            with pytest.raises(StreamGap):
                await read(ensemble.client, cursor, new)
        assert texts_of(await read(ensemble.client, 0, new)) == ["anew", "again"]


async def test_what_an_older_release_has_not_noted_is_a_gap_and_a_beginning(ensemble, redis):
    async with ensemble.worker():
        last = await talk(ensemble, "one", "two")
        redis.hdel(f"ant:session:{S}", "ends")
        last = await talk(ensemble, "three", "four")
        trim(redis, last)
        with pytest.raises(StreamGap, match="no longer kept"):
            await read(ensemble.client, 3, last)
        assert texts_of(await read(ensemble.client, 0, last)) == ["one", "two", "three", "four"]


async def test_a_lost_history_is_a_gap(ensemble, redis):
    async with ensemble.worker():
        last = await talk(ensemble, "one", "two")
        trim(redis, last)
        redis.ltrim(f"ant:history:{S}", 2, -1)
        with pytest.raises(StreamGap):
            await read(ensemble.client, 1, last)


async def test_a_fork_has_a_past_from_its_beginning(ensemble, redis):
    async with ensemble.worker():
        await talk(ensemble, "one", "two")
        await ensemble.client.session(S).fork("copy")
        last = await talk(ensemble, "three", session="copy")
        trim(redis, last, "copy")
        assert texts_of(await read(ensemble.client, 0, last, "copy")) == ["one", "two", "three"]
        assert texts_of(await read(ensemble.client, 1, last, "copy")) == []  # it has seen the question


@pytest.mark.usefixtures("keys")
async def test_encrypted_messages_are_decrypted(redis_url, redis):
    agent = Agent("scripted", "any", name="parrot")
    async with AsyncClient(redis_url) as client, running_worker(redis_url):
        texts = ["the first text", "the second text", "the third text"]
        for text in texts:
            await (await client.submit(S, text, agent=agent)).result(60)
        last = int(redis.hget(f"ant:session:{S}", "seq"))
        assert b"the first text" not in b"".join(redis.lrange(f"ant:history:{S}", 0, -1))
        trim(redis, last)
        assert texts_of(await read(client, 1, last)) == texts


@pytest.fixture
def keys(monkeypatch):
    monkeypatch.setenv(KEYS_VARIABLE, new_key("k1"))


async def test_a_long_history_is_read_in_pages(ensemble, redis, monkeypatch):
    pages = []
    messages = past.History.messages

    async def watched(self, start, stop, noted):
        pages.append(stop - start)
        return await messages(self, start, stop, noted)

    monkeypatch.setattr(past.History, "messages", watched)
    async with ensemble.worker():
        cell: Cell = ensemble.client.connections.cell_of_session(S)
        await ensemble.client.session(S).set_metadata({"long": "yes"})
        count = 3 * past.PAGE + 1
        entry = cell.seal.seal(S, "message", b'{"role":"user","parts":[{"type":"text","text":"x"}]}')
        redis.rpush(f"ant:history:{S}", *[entry] * count)
        redis.persist(f"ant:history:{S}")
        redis.hset(f"ant:session:{S}", "ends", f"1:{count} ")
        last = await talk(ensemble, "one")
        trim(redis, last)
        seen = await read(ensemble.client, 0, last)
        told = [event for event in seen if event.type == "message"]
        assert sum(len(event.messages) for event in told) == count
        assert max(pages) == past.PAGE
        assert [event.seq for event in told] == [0, 0, 0, 1]


async def test_a_reader_that_takes_nothing_holds_one_page(ensemble, redis):
    async with ensemble.worker():
        last = await talk(ensemble, *map(str, range(6)))
        trim(redis, last)
        async with ensemble.client.subscribe(S, 1) as events:
            first = await anext(events)
            assert first.type == "message"
            assert len(events._instead) <= past.PAGE
            assert not events._log
