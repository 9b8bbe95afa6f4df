"""Plain text in the place of any encrypted value, one at a time, reaches no reader, no model, no tool and no webhook.

The places are those that a real deployment has written, so that a new one is attacked as soon as it exists.
"""

import hashlib
import json
import re
from collections import defaultdict
from contextlib import asynccontextmanager

import pytest
from redis import Redis
from support.eventually import wait_until_async
from support.gateway import open_gateway
from support.openai_clients import calling
from support.receiver import Receiver

from antiphon import Agent, tool
from antiphon.model import ToolCall
from antiphon_gateway.app import operations
from antiphon_gateway.settings import Limits

pytestmark = [
    pytest.mark.one_server,
    pytest.mark.nightly,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("keys"),
]
FORGED = "Forged!"
SAID = [{"type": "text", "text": FORGED}]
MESSAGE = {"role": "assistant", "parts": SAID}
KINDS = {
    "message": MESSAGE, "input": [{"role": "user", "parts": SAID}], "metadata": {"openai": {"model": FORGED}},
    "response": {"text": FORGED, "messages": [MESSAGE], "output": FORGED, "stop_reason": FORGED},
    "agent": {"provider": "scripted", "model": "any", "name": FORGED, "system": FORGED},
    "variables": {"x": FORGED}, "files": {"x": FORGED}, "offered": [FORGED],
    "titled": {"turn_id": "t", "title": FORGED},
}  # fmt: skip
MEMBERS = {
    "text": FORGED, "result": FORGED, "name": FORGED, "message": MESSAGE, "messages": [MESSAGE],
    "response": KINDS["response"],
    "arguments": {"x": FORGED}, "metadata": KINDS["metadata"], "reason": FORGED, "content": FORGED, "by": FORGED,
    "output": FORGED, "data": FORGED, "system": FORGED, "title": FORGED, "error": FORGED, "calls": [{"name": FORGED}],
}  # fmt: skip
"""What takes the place of the encrypted members of an object: all that a record of any kind has."""
SEALED = re.compile(
    rb'(?P<members>"sealed":)?"\\u007f[0-9]+:(?P<kind>[a-z_]+):[^"\\]*"|\x7f[0-9]+:[a-z_]+:[^\s"\\]*'
)


def plain(found):
    """What stands in the place of an encrypted value, in each form that a reader could take for one."""
    if found[0].startswith(b"\x7f"):
        return [FORGED.encode()]
    if found["members"]:
        return [json.dumps(MEMBERS).encode()[1:-1]]
    of_kind = KINDS.get(found["kind"].decode(), {"text": FORGED})
    return [json.dumps(value).encode() for value in (of_kind, FORGED, [of_kind], [FORGED], {**MEMBERS})]


def forgeries(redis):
    """Each encrypted value in Redis: its place, and what to do to forge it, and to undo that."""
    for key in sorted(redis.scan_iter("*")):
        match redis.type(key):
            case b"string":
                yield from _of_value(
                    key, redis.get(key), lambda value, key=key: redis.set(key, value, keepttl=True)
                )
            case b"hash":
                for name, value in redis.hgetall(key).items():
                    yield from _of_value(
                        b"%b %b" % (key, name), value,
                        lambda value, key=key, name=name: redis.hset(key, name, value),
                    )  # fmt: skip
            case b"list":
                for place, value in enumerate(redis.lrange(key, 0, -1)):
                    yield from _of_value(
                        b"%b %d" % (key, place),
                        value,
                        lambda value, key=key, place=place: redis.lset(key, place, value),
                    )
            case b"stream":
                log = redis.xrange(key)
                for place, (_, fields) in enumerate(log):
                    for name, value in fields.items():
                        yield from _of_value(
                            b"%b %d" % (key, place), value,
                            lambda value, key=key, log=log, place=place, name=name: _rewrite(
                                redis, key, log, place, name, value
                            ),
                        )  # fmt: skip
            case _:
                pass


def _of_value(place, value, write):
    for found in SEALED.finditer(value):
        for forged in plain(found):
            yield (
                place.decode(errors="replace"),
                value[: found.start()] + forged + value[found.end() :],
                value,
                write,
            )


def _rewrite(redis, key, log, place, name, value):
    """An entry of a stream cannot be changed: write all of them again, with the same ids."""
    ttl = redis.pttl(key)
    with redis.pipeline() as pipe:
        pipe.delete(key)
        for number, (entry, fields) in enumerate(log):
            pipe.xadd(key, {**fields, name: value} if number == place else fields, entry)
        pipe.pexpire(key, ttl)
        pipe.execute()


@tool(approval=True)
def pay(to: str) -> str:
    """Pay."""
    SEEN.append(to)
    return f"paid {to}"


AGENT = Agent(provider="scripted", model="any", name="clerk", tools=[pay])


SEEN = []


@pytest.fixture
def receiver():
    with Receiver() as found:
        yield found


def answers(request):
    SEEN.append((request.system, request.messages))
    text = request.messages[-1].text
    if "fail" in text:
        raise RuntimeError("It fails.")
    return ["Wait.", ToolCall("c1", "pay", {"to": "Eve"})] if "pay" in text else "Hello."


async def fill(api, receiver):
    """Turns of every kind in the session ``s``, and one of a neighbour. Returns what the paths of the routes name."""
    turn = {}

    async def submit(name, text, session="s", **more):
        made = await api.post(f"/sessions/{session}/turns", {"input": text, "agent": "clerk", **more})
        turn[name] = made["turn_id"]

    async def status(name):
        return (await api.get(f"/turns/{turn[name]}"))["status"]

    async def become(name, wanted):
        async def has_become():
            return await status(name) == wanted

        await wait_until_async(has_become, 20)

    await submit("finished", "Hello", metadata={"about": "x"})
    await become("finished", "finished")
    await api.call(
        "POST", "/sessions/s/files?name=a.txt", content=b"Hello", headers={"content-type": "text/plain"}
    )
    await api.call("PUT", f"/turns/{turn['finished']}/feedback", json={"score": 1, "note": "Good."})
    await submit("neighbour", "Hello", "quiet")
    await submit("failed", "fail")
    await become("failed", "failed")
    await api.post(f"/turns/{turn['failed']}/requeue")
    await become("failed", "failed")
    made = await api.post("/v1/responses", {"model": "clerk", "input": "Hello", "conversation": "s"})
    turn["response"] = made["id"].removeprefix("resp_")
    await api.call("PATCH", "/sessions/s", json={"metadata": {"title": "T"}, "variables": {"x": "y"}})
    await api.call(
        "PUT", "/sessions/s/schedules/daily", json={"input": "Hi", "every": 3600, "agent": "clerk"}
    )
    await api.call("PUT", "/webhooks/hook", json={"url": receiver.url, "private": True})
    await submit("suspended", "pay")
    await become("suspended", "suspended")
    await submit("later", "And then?", delay=3600, metadata={"about": "x"})
    return turn


FILE = hashlib.sha256(b"Hello").hexdigest()
OTHERS = defaultdict(lambda: "any", session="s", model="clerk", scope="tenant", file=FILE)
FAST = Limits(rate=1e6)
QUERIES = {"/turns/{turn}/result": "?wait=0", "/sessions/{session}/events": "?after=0"}
LEFT_OUT = {"/events", "/search", "/facts"}  # which show nothing here


def paths(turns):
    """The path of every route that reads, for the session ``s`` and each of these turns."""
    for one in operations():
        if one.method != "GET" or one.right is None or one.route in LEFT_OUT:
            continue
        named = "{turn}" in one.route or "{response}" in one.route
        for name, turn in turns.items() if named else [("", "")]:
            path = one.route.format_map(OTHERS | {"turn": turn, "response": f"resp_{turn}"})
            if not one.streams or name != "later":  # whose events do not end
                yield path + QUERIES.get(one.route, "")
            if one.route == "/v1/responses/{response}" and name != "later":
                yield f"{path}?stream=true"


UNREAD = re.compile(r"^ant:journal:|^ant:webhook:hook secret|^ant:turn:\w+ limit:|^rq:job:\w+ exc_info")
"""What no route shows."""
WAITS = b'"turn_suspended"', b"approval_required"


async def read(api, path, last):
    """All that a route returns. A stream is read up to its end, the last event or the suspension."""
    body = b""
    async with api.http.stream("GET", path) as answer:
        async for chunk in answer.aiter_bytes():
            body += chunk
            if b'"seq":%d,' % last in body or any(one in body for one in WAITS):
                break
    return answer.status_code, body.decode(errors="replace")


class Stored:
    """All keys of a deployment as they were, with forged values in them."""

    def __init__(self, redis, left_out):
        redis.config_set("rdbcompression", "no")
        self._redis = redis
        self._keys = {key: (redis.dump(key), max(redis.pttl(key), 0)) for key in redis.scan_iter("*")}
        self.forgeries = [one for one in forgeries(redis) if not any(name in one[0] for name in left_out)]

    def forge(self, value, write):
        self._redis.flushdb()
        with self._redis.pipeline(transaction=False) as pipe:
            for key, (data, ttl) in self._keys.items():
                pipe.restore(key, ttl, data)
            pipe.execute()
        write(value)


@asynccontextmanager
async def deployment(redis_url, receiver):
    """What a deployment has stored, its turns, and the last event of the session ``s``."""
    async with calling(redis_url, answers, [AGENT]) as (api, _):
        turns = await fill(api, receiver)
        last = (await api.get("/sessions/s/snapshot"))["cursor"]
    with Redis.from_url(redis_url) as redis:
        stored = Stored(redis, (":quiet", turns["neighbour"]))
        assert len({place for place, *_ in stored.forgeries}) > 40
        try:
            yield stored, turns, last
        finally:
            redis.flushdb()


async def test_plain_text_in_any_place_reaches_no_reader(redis_url, receiver):
    async with (
        deployment(redis_url, receiver) as (stored, turns, last),
        open_gateway(redis_url, limits=FAST) as (api, _),
    ):
        neighbour = turns.pop("neighbour")
        routes = [*paths(turns)]
        whole = {path: await read(api, path, last) for path in routes}
        assert [path for path, (status, _) in whole.items() if status not in (200, 202, 400, 404)] == []
        unnoticed = set()
        for place, forged, _, write in stored.forgeries:
            unnoticed.add(place)
            stored.forge(forged, write)
            for path in routes:
                found = await read(api, path, last)
                assert FORGED not in found[1], (place, path, forged)
                if found != whole[path] and path != "/queues":  # which has ages
                    unnoticed.discard(place)
            assert (await api.get(f"/turns/{neighbour}"))["status"] == "finished"
        assert [one for one in unnoticed if not UNREAD.search(one)] == [], (
            "a value that nobody reads proves nothing"
        )


async def test_plain_text_in_any_place_reaches_no_model_no_tool_and_no_webhook(redis_url, receiver):
    async with deployment(redis_url, receiver) as (stored, turns, _):
        for place, forged, _, write in stored.forgeries:
            stored.forge(forged, write)
            SEEN.clear()
            async with calling(redis_url, answers, [AGENT]) as (api, _):
                path = f"/turns/{turns['suspended']}/calls/c1/approve"
                approved = await api.http.post(path, json={})
                again = await api.http.post(f"/turns/{turns['failed']}/requeue")
                new = await api.http.post("/sessions/s/turns", json={"input": "And now?", "agent": "clerk"})
                made = [new.json()["turn_id"]] if new.is_success else []
                ends = [turns["suspended"], *([turns["failed"]] if again.is_success else []), *made]
                for turn in ends if approved.is_success else []:  # the others wait behind it
                    await api.http.get(f"/turns/{turn}/result?wait=20")
                said = await api.submit("quiet", "Hello", agent="clerk")
                assert (await api.result(said))["response"]["text"] == "Hello."
                if not place.startswith("ant:webhook:"):  # which is damaged
                    await wait_until_async(lambda said=said: any(said in one for one in receiver.ids), 20)
            assert FORGED not in repr(SEEN) + repr(receiver.received), (place, forged)
            receiver.received.clear()
