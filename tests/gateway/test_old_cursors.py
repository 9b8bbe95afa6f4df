"""Readers over HTTP that return when their events are gone: messages take their place, at any gateway."""

import asyncio
import json
from urllib.parse import quote

import pytest
from redis import Redis
from support.eventually import patience
from support.gateway import open_gateway, stand

pytestmark = pytest.mark.one_server


async def messages_of(api, url, until, after=""):
    """The messages of a stream, each with its id, up to the end of the log."""
    found, place = [], ""
    headers = {"last-event-id": after} if after else {}
    async with (
        asyncio.timeout(patience(30)),
        api.http.stream("GET", api.url + url, headers=headers) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if line.startswith("id: "):
                place = line[4:]
            if line.startswith("data: "):
                found.append((place, json.loads(line[6:])))
                if found[-1][1].get("seq") == until:
                    return found
    return found


def told(found):
    return [
        one["parts"][0]["text"]
        for _, event in found
        if event["type"] == "message"
        for one in event["messages"]
        if one["role"] == "user"
    ]


@pytest.mark.parametrize("path", ["/sessions/s/events?", f"/events?sessions={quote(json.dumps(['s']))}&"])
async def test_a_reader_that_returns_late_gets_messages_from_any_gateway(path, redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (ensemble, api, _), open_gateway(redis_url) as (other, _):
        for text in ("one", "two", "three"):
            await (await ensemble.submit("s", text)).result(60)
        last = (await ensemble.events("s"))[-1].seq
        with Redis.from_url(redis_url) as redis:
            redis.xtrim("ant:events:s", minid=f"{last}-0", approximate=False)
        whole = await messages_of(api, f"{path}after=1", last)
        assert told(whole) == ["one", "two"]
        assert [event["seq"] for _, event in whole] == sorted({event["seq"] for _, event in whole})
        for place, (cursor, _) in enumerate(whole[:-1], 1):
            assert await messages_of(other, path, last, after=cursor) == whole[place:]
        only = await messages_of(api, f"{path}after=1&types=turn_finished", last)
        assert [event["type"] for _, event in only] == ["turn_finished"]


async def test_a_cursor_that_the_session_never_had_ends_the_stream(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (ensemble, api, _):
        await (await ensemble.submit("s", "one")).result(60)
        last = (await ensemble.events("s"))[-1].seq
        [(_, end)] = await messages_of(api, f"/sessions/s/events?after={last + 1}", 0)
        assert end["code"] == "stream_gap"
