"""What spans sessions: one stream of many of them, failed turns, queues, workers and limits."""

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from urllib.parse import quote

import pytest
from support.event_source import EventSource
from support.eventually import patience
from support.gateway import STAGE, Api, follow, keys, open_gateway, programs, stand

from antiphon.events import decode_event
from antiphon_gateway import Access

pytestmark = pytest.mark.one_server

SECRET = "a secret that every replica has, 32 bytes"
EVERYTHING = ["read", "write", "admin"]


@asynccontextmanager
async def with_keys(redis_url, tmp_path, **given):
    """A worker, and a gateway with a program for each of these keys."""
    known, secrets = keys(**given)
    async with (
        stand(redis_url, tmp_path, access=Access(known, secret=SECRET)) as (_, api, _),
        programs(api, secrets) as callers,
    ):
        yield api, callers


def url_of(api, *sessions: str, **query: str) -> str:
    named = {"sessions": json.dumps(sessions), **query} if sessions else query
    return f"{api.url}/events?" + "&".join(f"{name}={quote(value)}" for name, value in named.items())


class Reader:
    """Reads a stream with a key, message by message."""

    def __init__(self, api: Api, url: str, after: str = "") -> None:
        self._api, self._url, self._after = api, url, after

    async def __aenter__(self):
        headers = {"last-event-id": self._after} if self._after else {}
        self._answer = await self._api.http.send(
            self._api.http.build_request("GET", self._url, headers=headers), stream=True
        )
        assert self._answer.status_code == 200, await self._answer.aread()
        self._lines = self._answer.aiter_lines()
        return self

    async def __aexit__(self, *_):
        await self._answer.aclose()

    async def next(self) -> tuple[str, dict]:
        """The next message's id and event."""
        found = ""
        async for line in self._lines:
            if line.startswith("id: "):
                found = line[4:]
            if line.startswith("data: "):
                return found, json.loads(line[6:])
        raise AssertionError("the stream ended")

    async def until(self, *ended: str) -> list[tuple[str, dict]]:
        """The messages up to the last end of a turn of these sessions."""
        found, left = [], set(ended)
        while left:
            found.append(await asyncio.wait_for(self.next(), patience(20)))
            event = found[-1][1]
            if event["type"] == "turn_finished":
                left -= {event["session_id"]}
        return found


async def test_all_events_of_several_sessions_come_once_and_resume_at_any_message(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (ensemble, api, _), open_gateway(redis_url) as (other, _):
        ids = ["a,b", 'c"d', "e"]
        async with Reader(api, url_of(api, *ids, after="0")) as reader:
            for one in ids:
                await api.submit(quote(one), "go on words:5")
            seen = await reader.until(*ids)
        for one in ids:
            shown = [decode_event(json.dumps(event)) for _, event in seen if event["session_id"] == one]
            assert shown == await ensemble.events(one)
        for place in range(0, len(seen), 5):
            async with Reader(other, url_of(other, *ids), after=seen[place][0]) as reader:
                rest = await reader.until(*{event["session_id"] for _, event in seen[place + 1 :]})
            key = lambda event: (event["session_id"], event["seq"])  # noqa: E731
            assert sorted(map(key, (e for _, e in rest))) == sorted(
                map(key, (e for _, e in seen[place + 1 :]))
            )
        async with Reader(api, url_of(api, *ids, after="0", types="turn_finished")) as reader:
            assert {event["type"] for _, event in await reader.until(*ids)} == {"turn_finished"}


async def test_the_ends_of_all_turns_of_a_tenant_come_once_and_resume(redis_url, tmp_path):
    given = {
        "a": {"tenant": "a"}, "part": {"tenant": "a", "sessions": ["order-*"]}, "b": {"tenant": "b"},
        "all": {"tenant": "*", "rights": EVERYTHING},
    }  # fmt: skip
    async with with_keys(redis_url, tmp_path, **given) as (api, all_):
        async with AsyncExitStack() as stack:
            readers = {
                name: await stack.enter_async_context(Reader(one, url_of(api))) for name, one in all_.items()
            }
            await all_["b"].result(await all_["b"].submit("other", "x"))
            turns = {}
            for name in ("order-1", "s", "order-2"):
                turns[name] = await all_["a"].submit(name, "x")
                await all_["a"].result(turns[name])
            found = {"a": [await readers["a"].next() for _ in range(3)]}
            found["part"] = [await readers["part"].next() for _ in range(2)]
            found["b"] = [await readers["b"].next()]
            found["all"] = [await readers["all"].next() for _ in range(4)]
        sessions = {name: [event["session_id"] for _, event in events] for name, events in found.items()}
        assert sessions == {
            "a": ["order-1", "s", "order-2"], "part": ["order-1", "order-2"], "b": ["other"],
            "all": ["other", "order-1", "s", "order-2"],
        }  # fmt: skip
        async with Reader(all_["a"], url_of(api), after=found["a"][0][0]) as reader:
            assert [(await reader.next())[1]["session_id"] for _ in range(2)] == ["s", "order-2"]
        token = (await all_["a"].post("/sessions/s/tokens", {}))["token"]
        async with Reader(api, url_of(api, after="0", token=token)) as reader:
            await all_["a"].result(await all_["a"].submit("order-3", "x"))
            again = await all_["a"].submit("s", "x")
            assert [(await reader.next())[1]["turn_id"] for _ in range(2)] == [turns["s"], again]
        for query in ({"after": "forged"}, {"types": "text_delta"}, {"sessions": "s"}, {"sessions": "[]"}):
            await all_["a"].get(url_of(api, **query), 400)


async def test_a_stream_of_many_sessions_shows_only_those_of_the_key(redis_url, tmp_path):
    given = {"a": {"tenant": "a"}, "part": {"tenant": "a", "sessions": ["order-*"]}, "b": {"tenant": "b"}}
    async with with_keys(redis_url, tmp_path, **given) as (api, all_):
        await all_["a"].post("/sessions", {"session_id": "s"})
        await all_["a"].post("/sessions", {"session_id": "order-1"})
        await all_["part"].get(url_of(api, "order-1", "s"), 403)
        await all_["b"].get(url_of(api, "own", "s"), 403)
        await all_["a"].get(url_of(api, *(f"s{n}" for n in range(101))), 400)
        await all_["a"].get(url_of(api, "s", "order-1", after="1"), 400)
        await all_["a"].get(url_of(api, "s", tenant="b"), 403)
        async with Reader(
            all_["b"], url_of(api, "new", after="0")
        ) as reader:  # it is another's when it begins
            await all_["a"].submit("new", "secret words")
            left = asyncio.create_task(reader._answer.aread())
            assert b"secret" not in await asyncio.wait_for(left, patience(20))


async def test_a_gap_in_one_session_ends_the_stream_with_its_code(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (_, api, _):
        await api.result(await api.submit("s", "one"))
        _, end = await follow(EventSource(url_of(api, "s", "t", after="100.0")))
        assert end == {"code": "stream_gap"}


async def test_failed_turns_are_listed_and_run_again(redis_url, tmp_path):
    given = {"a": {"tenant": "a"}, "part": {"tenant": "a", "sessions": ["order-*"]}, "b": {"tenant": "b"}}
    async with with_keys(redis_url, tmp_path, **given) as (_, all_):
        a, part, b = all_["a"], all_["part"], all_["b"]
        turns = [
            await a.submit(session, f"fail:rejected*1 in {session}") for session in ("order-1", "s", "t")
        ]
        for turn in turns:
            assert (await a.result(turn))["status"] == "failed"
        listed = (await a.get("/failed"))["turns"]
        assert {one["turn_id"] for one in listed} == set(turns)
        assert {one["code"] for one in listed} == {"provider_rejected"}
        ends = [one["ended"] for one in listed]  # in the order of seconds
        assert all(later > earlier - 1000 for later, earlier in pairwise(ends))
        assert [one["turn_id"] for one in (await part.get("/failed"))["turns"]] == turns[:1]
        assert (await b.get("/failed"))["turns"] == []
        assert (await a.get("/failed?code=other"))["turns"] == []
        assert len((await a.get("/failed?limit=2"))["turns"]) == 2
        await a.post("/failed/requeue", {}, 400)
        await a.post("/failed/requeue", {"turns": turns, "code": "x"}, 400)
        refused = await b.post("/failed/requeue", {"turns": turns})
        assert (refused["turns"], {one["code"] for one in refused["refused"].values()}) == (
            [],
            {"turn_not_found"},
        )
        assert (await part.post("/failed/requeue", {"since": 0}))["turns"] == turns[:1]
        done = await a.post("/failed/requeue", {"turns": turns[:2]})
        assert (done["turns"], list(done["refused"])) == (turns[1:2], turns[:1])
        assert (await a.post("/failed/requeue", {"code": "provider_rejected"}))["turns"] == turns[2:]
        for turn in turns:
            assert (await a.result(turn))["status"] == "finished"


async def test_queues_workers_and_limits_are_for_keys_of_everything(redis_url, tmp_path):
    given = {
        "all": {"tenant": "*", "rights": EVERYTHING}, "a": {"tenant": "a", "rights": EVERYTHING},
        "part": {"tenant": "*", "sessions": ["s"], "rights": EVERYTHING},
    }  # fmt: skip
    async with with_keys(redis_url, tmp_path, **given) as (_, all_):
        for path in ("/queues", "/workers"):
            await all_["a"].get(path, 403)
            await all_["part"].get(path, 403)
        await all_["a"].call("PUT", "/tenants/a/limits", 403, json={"in_flight": 9})
        await all_["a"].get("/tenants/b/limits", 403)
        await all_["all"].call("PUT", "/tenants/a/limits", 204, json={"in_flight": 1, "user_turns": 5})
        limits = {
            "in_flight": 1,
            "waiting": None,
            "per_minute": None,
            "user_turns": 5,
            "user_in_flight": None,
            "user_per_minute": None,
            "stored_bytes": None,
        }
        assert await all_["a"].get("/tenants/a/limits") == limits
        await all_["all"].call("PUT", "/tenants/a/limits", 400, json={"in_flight": 0})


async def test_queues_and_workers_tell_what_stands_and_what_runs(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (ensemble, api, _):
        turn = await api.submit("s", "go gate:never")
        await ensemble.waits("never")
        others = [await api.submit("s", "behind it"), await api.submit("elsewhere", "x", queue="nobody")]
        others += [await api.submit("later", "x", delay=3600)]
        queues = {one["name"]: one for one in (await api.get("/queues"))["queues"]}
        (own,) = [one for name, one in queues.items() if name != "nobody"]
        assert {own[name] for name in ("running", "waiting", "delayed", "workers")} == {1}
        assert (own["queued"], own["failed"], own["oldest_seconds"]) == (0, 0, None)
        assert (queues["nobody"]["queued"], queues["nobody"]["workers"]) == (1, 0)
        assert 0 <= queues["nobody"]["oldest_seconds"] < 60
        (worker,) = (await api.get("/workers"))["workers"]
        assert (worker["queues"], worker["running"]) == ([own["name"]], 1)
        assert worker["since"] <= worker["heard"]
        for one in (*others, turn):
            await api.post(f"/turns/{one}/cancel", {})


async def test_a_turn_may_interrupt_steer_and_have_a_priority(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (ensemble, api, _):
        first = await api.submit("s", "go gate:never")
        await ensemble.waits("never")
        second = await api.submit("s", "two", if_busy="interrupt", priority="high")
        assert (await api.result(first))["status"] == "cancelled"
        assert (await api.result(second))["status"] == "finished"
        body = {"input": "x", "agent": STAGE}
        await api.post("/sessions/s/turns", {**body, "if_busy": "later"}, 400)
        await api.post("/sessions/s/turns", {**body, "priority": "urgent"}, 400)
        await api.post("/sessions/s/regenerate", {"if_busy": "steer"}, 400)
