"""Sessions, turns and events over HTTP, as a program in any language has them."""

import asyncio
import json
from urllib.parse import quote

import pytest
from fastapi import FastAPI
from support.event_source import EventSource
from support.eventually import patience, wait_until_async
from support.gateway import STAGE, Api, follow, open_gateway, stand
from support.serving import serving
from support.stage import FIRST_WORDS

from antiphon.client import AsyncClient
from antiphon.errors import user_message
from antiphon.events import decode_event
from antiphon.input.request import WAITS
from antiphon_gateway import gateway

pytestmark = pytest.mark.one_server


async def test_a_turn_is_submitted_waited_for_and_read(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (ensemble, api, _):
        submitted = await api.post("/sessions/s/turns", {"input": "Hello", "agent": STAGE}, 202)
        turn = submitted["turn_id"]
        found = await api.get(f"{submitted['result']}?wait=20", 200)
        assert (found["turn_id"], found["session_id"], found["status"]) == (turn, "s", "finished")
        assert found["response"]["text"].startswith(FIRST_WORDS)
        info = await api.get(f"/turns/{turn}")
        assert (info["status"], info["input"][0]["parts"][0]["text"]) == ("finished", "Hello")
        assert [run["status"] for run in await api.get(f"/turns/{turn}/runs")] == ["finished"]
        assert [one["turn_id"] for one in (await api.get("/sessions/s/turns"))["turns"]] == [turn]
        page = await api.get("/sessions/s/messages")
        assert [one["role"] for one in page["messages"]] == ["user", "assistant"]
        assert page["length"] == 2
        view = await api.get("/sessions/s")
        assert (view["state"], view["messages"], view["running"]) == ("idle", 2, None)
        await ensemble.whole("s")


async def test_the_same_key_submits_once_in_the_header_and_in_the_body(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (_, api, _):
        body = {"input": "Hello", "agent": STAGE}
        first = await api.post("/sessions/s/turns", body, headers={"idempotency-key": "k"})
        assert await api.post("/sessions/s/turns", {**body, "key": "k"}) == first
        reused = await api.post("/sessions/s/turns", {**body, "input": "Bye", "key": "k"}, 409)
        assert reused["code"] == "key_reused"
        await api.post("/sessions/s/turns", {**body, "key": "k"}, 400, headers={"idempotency-key": "other"})
        assert len((await api.get("/sessions/s/turns"))["turns"]) == 1


async def test_events_come_whole_and_resume_after_any_of_them(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (ensemble, api, _):
        turn = await api.submit("s", "go on words:5")
        messages, end = await follow(EventSource(f"{api.url}/turns/{turn}/events"))
        events = await ensemble.events("s")
        assert [decode_event(message.data) for message in messages] == events
        assert [message.id for message in messages] == [str(event.seq) for event in events]
        assert end == {}
        for place in (1, len(events) // 2, len(events)):
            rest, _ = await follow(EventSource(f"{api.url}/turns/{turn}/events?after={place}"))
            assert rest == messages[place:]
            source = EventSource(f"{api.url}/turns/{turn}/events?after=0")
            source.last_id = str(place)  # goes before the query, as it is where a browser comes back
            assert (await follow(source))[0] == messages[place:]


async def test_a_session_is_followed_over_its_turns_and_by_type(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (_, api, _):
        await api.result(await api.submit("s", "one"))
        source = EventSource(f"{api.url}/sessions/s/events?after=0&types=turn_finished,turn_queued")
        seen = asyncio.create_task(follow(source, "session_closed"))
        await api.result(await api.submit("s", "two"))
        whole = asyncio.create_task(
            follow(EventSource(f"{api.url}/sessions/s/events?after=0"), "session_closed")
        )
        await api.post("/sessions/s/close")
        messages, _ = await asyncio.wait_for(whole, patience(10))
        seen.cancel()
        kinds = [json.loads(message.data)["type"] for message in messages]
        assert kinds.count("turn_finished") == 2
        only = await api.http.send(
            api.http.build_request("GET", "/sessions/s/events?after=0&types=turn_queued"), stream=True
        )
        async for line in only.aiter_lines():
            if line.startswith("data") and "two" in line:
                break
            assert "text_delta" not in line
        await only.aclose()


async def test_a_gap_ends_a_stream_with_its_code(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (_, api, _):
        await api.result(await api.submit("s", "one"))
        messages, end = await follow(EventSource(f"{api.url}/sessions/s/events?after=100"))
        assert (messages, end) == ([], {"code": "stream_gap"})


async def test_a_long_poll_answers_when_its_time_is_over_and_a_stop_keeps_what_was_said(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (ensemble, api, _):
        turn = await api.submit("s", "go on gate:never")
        await ensemble.waits("never")
        found = await api.get(f"/turns/{turn}/result?wait=0.05", 202)
        assert found == {"turn_id": turn, "session_id": "s", "status": "running"}
        waiting = asyncio.create_task(api.result(turn))
        assert await api.post("/sessions/s/cancel", {"reason": "enough"}) == {"outcome": "requested"}
        ended = await waiting
        assert (ended["status"], ended["error"]) == (
            "cancelled",
            {"code": "turn_cancelled", "message": "enough", "user_message": user_message("turn_cancelled")},
        )
        last = (await api.get("/sessions/s/messages?start=-1"))["messages"][0]
        assert (last["interrupted"], last["parts"][0]["text"]) == (True, FIRST_WORDS)
        assert await api.post(f"/turns/{turn}/cancel", {}) == {"outcome": "cancelled"}
        assert await api.post("/sessions/s/cancel", {}) == {"outcome": None}


async def test_a_failed_turn_tells_why_and_runs_again(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (_, api, _):
        turn = await api.submit("s", "go fail:rejected*1")
        failed = await api.result(turn)
        assert failed["status"] == "failed"
        said = {"code": "provider_rejected", "message": "The stage refuses: rejected."}
        assert failed["error"] == {**said, "user_message": user_message("provider_rejected")}
        await api.post(f"/turns/{turn}/requeue", status=204)
        assert (await api.result(turn))["status"] == "finished"
        assert [run["status"] for run in await api.get(f"/turns/{turn}/runs")] == ["failed", "finished"]
        again = await api.post(f"/turns/{turn}/requeue", status=400)
        assert again["code"] == "usage"


async def test_a_turn_waits_for_the_result_of_a_tool_of_the_caller(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (_, api, _):
        turn = await api.submit("s", "go tool:look", caller_tools=[{"name": "look"}])
        source = EventSource(f"{api.url}/turns/{turn}/events")
        messages, _ = await follow(source, "turn_suspended")
        (call,) = json.loads(messages[-1].data)["calls"]
        (waiting,) = (await api.get("/waiting"))["turns"]
        assert (waiting["turn_id"], waiting["calls"][0]["call_id"]) == (turn, call["call_id"])
        path = f"/turns/{turn}/calls/{call['call_id']}"
        assert (await api.post(f"{path}/approve", {}, 400))["code"] == "usage"
        assert (await api.post(f"/turns/{turn}/calls/none/result", {}, 409))["code"] == "not_suspended"
        await api.post(f"{path}/result", {"result": "a tree", "by": "ada"}, 204)
        assert (await api.result(turn))["status"] == "finished"
        again = await api.post(f"{path}/result", {"result": "a house"}, 409)
        assert again["code"] in ("already_decided", "not_suspended")
        assert (await api.get("/waiting"))["turns"] == []
        parts = (await api.get("/sessions/s/messages"))["messages"][2]["parts"]
        assert parts[0]["content"] == "a tree"


@pytest.mark.parametrize(("given", "named"), [({"by": "ada"}, "ada"), ({}, None), ({"by": ""}, None)])
@pytest.mark.parametrize("kind", ["approve", "reject", "result"])
async def test_a_decision_has_the_caller_and_whom_it_names(redis_url, tmp_path, kind, given, named):
    async with stand(redis_url, tmp_path) as (_, api, _):
        options = {"caller_tools": [{"name": "look"}]}
        if kind != "result":
            options = {"agent": STAGE | {"approval": ["note"], "version": WAITS}}
        turn = await api.submit("s", f"go tool:{'look' if kind == 'result' else 'note'}", **options)
        await follow(EventSource(f"{api.url}/turns/{turn}/events"), "turn_suspended")
        (waiting,) = (await api.get("/waiting"))["turns"]
        await api.post(f"/turns/{turn}/calls/{waiting['calls'][0]['call_id']}/{kind}", given, 204)
        assert (await api.result(turn))["status"] == "finished"
        (made,) = (await api.get("/sessions/s/messages"))["messages"][2]["decisions"]
        assert (made["by"], made.get("on_behalf_of")) == ("this machine", named)


async def test_a_session_is_created_changed_forked_closed_and_deleted(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (_, api, _):
        opening = {"session_id": "s", "system": "Be brief.", "metadata": {"plan": "free"}}
        opening["messages"] = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
        assert await api.post("/sessions", opening, 201) == {"session_id": "s"}
        assert (await api.post("/sessions", opening, 409))["code"] == "session_exists"
        await api.call(
            "PATCH", "/sessions/s", 204, json={"metadata": {"plan": "paid"}, "variables": {"a": 1}}
        )
        assert (await api.get("/sessions/s"))["metadata"] == {"plan": "paid"}
        await api.post("/sessions/s/messages", {"messages": [{"role": "user", "content": "More"}]}, 204)
        first = (await api.get("/sessions/s/messages"))["messages"][0]["id"]
        assert await api.post("/sessions/s/fork", {"session_id": "f", "at": first}, 201) == {
            "session_id": "f"
        }
        fork = await api.get("/sessions/f")
        assert (fork["messages"], fork["branch"]["source"]) == (1, "s")
        await api.post("/sessions/s/rewind", {"to": first}, 204)
        assert (await api.get("/sessions/s/messages"))["length"] == 1
        assert (await api.post("/sessions/s/rewind", {"to": "nothing"}, 404))["code"] == "message_not_found"
        await api.call("DELETE", "/sessions/s/messages", 204)
        await api.post("/sessions/s/close", status=204)
        closed = await api.post("/sessions/s/turns", {"input": "Hello", "agent": STAGE}, 400)
        assert "closed" in closed["detail"]
        await api.call("DELETE", "/sessions/s", 204)
        assert (await api.call("DELETE", "/sessions/s", 404))["code"] == "session_not_found"
        assert (await api.get("/sessions/s/messages", 404))["code"] == "session_not_found"


async def test_the_same_key_creates_one_session(redis_url, tmp_path):
    async with open_gateway(redis_url) as (api, _):
        first = await api.post("/sessions", {}, headers={"idempotency-key": "k"})
        assert await api.post("/sessions", {}, headers={"idempotency-key": "k"}) == first
        assert await api.post("/sessions", {}, headers={"idempotency-key": "l"}) != first
        assert await api.post("/sessions", {}) != first


async def test_a_question_is_edited_and_an_answer_made_again(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (_, api, _):
        await api.result(await api.submit("s", "one"))
        question = (await api.get("/sessions/s/messages"))["messages"][0]["id"]
        edited = await api.call("PUT", f"/sessions/s/messages/{question}", 202, json={"input": "two"})
        await api.result(edited["turn_id"])
        page = await api.get("/sessions/s/messages")
        assert page["messages"][0]["parts"][0]["text"] == "two"
        again = await api.post("/sessions/s/regenerate", {}, 202)
        await api.result(again["turn_id"])
        assert (await api.get("/sessions/s/messages"))["length"] == 2
        await api.call("PUT", "/sessions/s/messages/nothing", 404, json={"input": "two"})


async def test_a_snapshot_has_the_end_of_the_history_and_the_cursor(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (ensemble, api, _):
        await api.result(await api.submit("s", "one"))
        turn = await api.submit("s", "go gate:never")
        await ensemble.waits("never")
        whole = await api.get("/sessions/s/snapshot")
        page = await api.get("/sessions/s/snapshot?last=1")
        assert page["messages"] == whole["messages"][-1:]
        assert (page["turn_id"], [one["turn_id"] for one in page["pending"]]) == (turn, [turn])
        assert (await api.get("/sessions/s/snapshot?last=0"))["messages"] == []
        source = EventSource(f"{api.url}/sessions/s/events?after={page['cursor']}")
        messages, _ = await follow(source, "text_delta")
        assert json.loads(messages[-1].data)["text"] == FIRST_WORDS
        await api.post(f"/turns/{turn}/cancel", {"keep": "nothing"})


async def test_sessions_are_listed_in_pages(redis_url):
    async with open_gateway(redis_url) as (api, _):
        for number in range(5):
            await api.post("/sessions", {"session_id": f"s{number}", "metadata": {"even": number % 2 == 0}})
        seen, cursor = [], ""
        while True:
            page = await api.get(f"/sessions?limit=2{cursor}")
            seen += [one["session_id"] for one in page["sessions"]]
            if page["cursor"] is None:
                break
            cursor = f"&cursor={quote(page['cursor'])}"
        assert sorted(seen) == [f"s{number}" for number in range(5)]
        even = await api.get('/sessions?metadata={"even":true}')
        assert sorted(one["session_id"] for one in even["sessions"]) == ["s0", "s2", "s4"]
        await api.get("/sessions?cursor=forged", 400)
        await api.get("/sessions?metadata=[1]", 400)


async def test_a_session_may_have_any_name(redis_url):
    async with open_gateway(redis_url) as (api, _):
        for name in ("a/b", "a/turns", "..", "über uns", "100%", "a%2Fb", "*", "?x=1#y"):
            await api.post("/sessions", {"session_id": name})
            path = quote(name, safe="").replace(".", "%2E")
            assert (await api.get(f"/sessions/{path}"))["session_id"] == name


WRONG = [
    ("GET", "/nothing", None, 404, "route_not_found"),
    ("GET", "/sessions//turns", None, 404, "route_not_found"),
    ("GET", "/sessions/%ff", None, 400, "invalid_path"),
    ("DELETE", "/turns/t", None, 405, "method_not_allowed"),
    ("GET", "/turns/t", None, 404, "turn_not_found"),
    ("GET", "/turns/%00", None, 400, "invalid_id"),
    ("GET", "/sessions/%0a", None, 400, "invalid_id"),
    ("GET", f"/sessions/{'x' * 201}", None, 400, "invalid_id"),
    ("GET", "/sessions/s/events?after=-1", None, 400, "invalid_query"),
    ("GET", "/sessions/s/messages?strat=1", None, 400, "invalid_query"),
    ("GET", "/sessions?limit=1&limit=2", None, 400, "invalid_query"),
    ("GET", "/turns/t/result?wait=61", None, 400, "invalid_query"),
    ("POST", "/sessions/s/turns", b"{", 400, "invalid_body"),
    ("POST", "/sessions/s/turns", b'{"input":"x","temprature":1}', 400, "invalid_body"),
    ("POST", "/sessions/s/turns", b'{"input":""}', 400, "invalid_message"),
    ("POST", "/sessions/s/turns", b'{"input":"\\ud800"}', 400, "invalid_body"),
    ("POST", "/sessions/s/turns", b'{"input":' + b"[" * 5000, 400, "invalid_body"),
    ("POST", "/sessions/s/turns", b'{"input":"x","delay":-1}', 400, "invalid_body"),
    ("POST", "/sessions/s/turns", b'{"input":"x","params":{"api_key":"k"}}', 400, "usage"),
]


async def test_a_wrong_request_is_told_why(redis_url):
    async with open_gateway(redis_url) as (api, _):
        for method, path, body, status, code in WRONG:
            headers = {"content-type": "application/json"} if body else {}
            answer = await api.http.request(method, path, content=body, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (status, code), path
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["detail"]


async def test_a_busy_session_says_when_to_come_back(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (ensemble, api, _):
        turn = await api.submit("s", "go gate:never")
        await ensemble.waits("never")
        body = {"input": "x", "agent": STAGE, "if_busy": "reject"}
        answer = await api.http.post("/sessions/s/turns", json=body)
        assert (answer.status_code, answer.json()["code"]) == (409, "session_busy")
        assert int(answer.headers["retry-after"]) >= 1
        await api.post(f"/turns/{turn}/cancel", {})


async def test_it_can_be_mounted_in_an_application(redis_url, ensemble):
    async with ensemble.worker(), AsyncClient(redis_url) as client:
        app = FastAPI()
        app.mount("/ai", gateway(client))
        async with serving(app) as port:
            api = Api(f"http://127.0.0.1:{port}")
            async with api.http:
                answer = await api.http.post(
                    "/ai/sessions/a%2Fb/turns", json={"input": "Hello", "agent": STAGE}
                )
                turn = answer.json()
                assert answer.headers["location"] == f"/ai/turns/{turn['turn_id']}"
                messages, _ = await follow(EventSource(f"{api.url}{turn['events']}"))
                assert json.loads(messages[-1].data)["type"] == "turn_finished"
                assert (await api.get("/ai/sessions/a%2Fb"))["messages"] == 2


async def test_a_gateway_that_drains_ends_its_streams_without_an_end(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (ensemble, api, app):
        turn = await api.submit("s", "go gate:g")
        await ensemble.waits("g")
        seen: list[str] = []

        async def read() -> None:
            async with api.http.stream("GET", f"/turns/{turn}/events") as answer:
                async for line in answer.aiter_lines():
                    seen.extend([line])  # one by one: they are looked at meanwhile

        reading, polling = (
            asyncio.create_task(read()),
            asyncio.create_task(api.get(f"/turns/{turn}/result?wait=20", 503)),
        )
        await wait_until_async(lambda: any("text_delta" in line for line in seen))
        app.drain()
        await asyncio.wait_for(reading, patience(5))
        assert not any(line.startswith("event: end") for line in seen)
        assert (await asyncio.wait_for(polling, patience(5)))["code"] == "draining"
        assert (await api.get("/health", 503))["code"] == "draining"
        ensemble.stage.open("g")
        cursor = [line.partition(": ")[2] for line in seen if line.startswith("id:")][-1]
        async with open_gateway(redis_url) as (other, _):
            rest, _ = await follow(EventSource(f"{other.url}/turns/{turn}/events?after={cursor}"))
            assert [int(cursor) + n + 1 for n in range(len(rest))] == [int(message.id) for message in rest]
