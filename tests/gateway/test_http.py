"""What any HTTP client may send: HEAD, compressed bodies, a charset; and what is wrong is told in a sentence."""

import gzip
import json
import socket
import zlib

import msgspec
import pytest
from support.gateway import STAGE, open_gateway, stand

from antiphon.events import ToolCallEvent
from antiphon.model import OpenCall, encode
from antiphon_gateway.http.connection import Connection
from antiphon_gateway.settings import Limits

pytestmark = pytest.mark.one_server
JSON = {"content-type": "application/json"}
BODY = json.dumps({"input": "Hello", "agent": STAGE}).encode()


async def test_head_has_the_headers_of_get_and_no_body(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (_, api, app):
        turn = await api.submit("s", "Hello")
        await api.result(turn)
        for path in (
            "/health", "/openapi.json", f"/turns/{turn}", f"/turns/{turn}/events", "/sessions/s/events",
            "/events", f"/v1/responses/resp_{turn}?stream=true", "/live",
        ):  # fmt: skip
            answer = await api.http.head(path)
            assert (answer.status_code, answer.content) == (200, b""), path
            assert answer.headers["content-type"]
        assert app.streams == 0
        refused = await api.http.head("/turns/none")
        assert (refused.status_code, refused.content) == (404, b"")
        assert (await api.http.head("/sessions/s/turns/x")).status_code == 404
        wrong = await api.http.head("/sessions/s/close")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
        assert (await api.http.put("/health")).headers["allow"] == "GET, HEAD"


async def test_no_piece_of_an_answer_waits_until_the_client_acknowledges_the_one_before(
    redis_url, monkeypatch
):
    made, begin = [], Connection.connection_made

    def connection_made(self, transport):
        begin(self, transport)
        of_client = transport.get_extra_info("socket")
        made.append(of_client.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(Connection, "connection_made", connection_made)
    async with open_gateway(redis_url) as (api, _):
        await api.get("/health")
    assert made
    assert 0 not in made


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_a_body_may_be_compressed_and_no_larger_than_others(redis_url, tmp_path, coding):
    pack = gzip.compress if coding == "gzip" else zlib.compress
    headers = {**JSON, "content-encoding": coding}
    async with stand(redis_url, tmp_path, limits=Limits(body_bytes=10_000)) as (_, api, _):
        made = await api.call("POST", "/sessions/s/turns", 202, content=pack(BODY), headers=headers)
        await api.result(made["turn_id"])
        for content, status in (
            (BODY, 400), (pack(BODY)[:-4], 400), (pack(BODY) + b"x", 400), (pack(b"{"), 400), (b"", 400),
            (pack(json.dumps({"input": "x" * 1_000_000}).encode()), 413),
        ):  # fmt: skip
            found = await api.call("POST", "/sessions/s/turns", status, content=content, headers=headers)
            assert found["detail"].endswith(".")


async def test_an_unknown_encoding_or_charset_is_refused_with_what_is_possible(redis_url):
    async with open_gateway(redis_url) as (api, _):
        answer = await api.http.post("/sessions", content=b"{}", headers={**JSON, "content-encoding": "br"})
        assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "gzip, deflate")
        for kind, status in (
            ("application/json; charset=utf-8", 201), ('application/json;charset="UTF-8"', 201),
            ("Application/JSON", 201), ("application/json; charset=latin-1", 415),
            ("application/json; charset=utf-16", 415), ("text/plain", 415), ("", 415), ("application/json, x", 415),
        ):  # fmt: skip
            answer = await api.http.post("/sessions", content=b"{}", headers={"content-type": kind})
            assert answer.status_code == status, kind


async def test_what_is_wrong_with_a_request_is_told_in_a_sentence(redis_url):
    async with open_gateway(redis_url) as (api, _):
        for path, body, sentence in (
            ("/sessions/s/turns", {"input": "x", "agnt": "a"}, "The field 'agnt' is unknown: did you mean 'agent'?"),
            ("/sessions/s/turns", {}, "The field 'input' is missing: add it."),
            ("/sessions/s/turns", {"input": "x", "timeout": "1"}, "timeout must be a number or null, not text."),
            ("/sessions/s/close", None, None), ("/sessions/s/messages", {"messages": []},
             "messages must be a list with a length of at least 1."),
        ):  # fmt: skip
            if sentence is not None:
                assert (await api.post(path, body, 400))["detail"] == sentence
        found = await api.get("/sessions?limit=none", 400)
        assert found["detail"] == "Query: limit must be a whole number, not text."


async def test_input_takes_the_parts_that_messages_have(redis_url, tmp_path):
    parts = [
        {"type": "text", "text": "Look"}, {"type": "image", "url": "https://example.com/a.png", "detail": "low"},
        {"type": "image", "data": "AA==", "media_type": "image/png"},
        {"type": "file", "url": "https://example.com/a.pdf", "name": "a.pdf"},
    ]  # fmt: skip
    async with stand(redis_url, tmp_path) as (_, api, _):
        for number, given in enumerate((
            parts, {"role": "user", "parts": parts}, [{"role": "user", "parts": parts}],
            {"role": "user", "content": parts}, [{"role": "user", "content": parts}],
        )):  # fmt: skip
            turn = await api.submit(f"s{number}", given)
            assert (await api.result(turn))["status"] == "finished"
            (message, _) = (await api.get(f"/sessions/s{number}/messages"))["messages"]
            assert message["parts"] == parts
        history = [
            {"role": "user", "parts": [{"type": "text", "text": "x"}]},
            {"role": "assistant", "parts": [{"type": "reasoning", "text": "hm", "item": {"a": 1}},
             {"type": "tool_call", "call_id": "c", "name": "n", "arguments": {"a": 1}}]},
            {"role": "tool", "parts": [{"type": "tool_result", "call_id": "c", "content": "r", "name": "n"}]},
            {"role": "assistant", "parts": [{"type": "refusal", "text": "no"},
             {"type": "item", "provider": "p", "item": {"b": 2}}]},
        ]  # fmt: skip
        for name, key in (("h", "parts"), ("i", "content")):
            messages = [{"role": one["role"], key: one["parts"]} for one in history]
            if key == "content":
                messages[2]["role"] = "user"  # results have no role of their own in the form of Anthropic
            await api.post("/sessions", {"session_id": name, "messages": messages}, 201)
            found = (await api.get(f"/sessions/{name}/messages"))["messages"]
            assert [one["parts"] for one in found] == [one["parts"] for one in history]
        again = (await api.get("/sessions/h/messages"))["messages"]
        await api.post("/sessions", {"session_id": "j", "messages": again}, 201)
        wrong = await api.post(
            "/sessions/s/turns", {"input": [{"type": "image", "url": 7}], "agent": STAGE}, 400
        )
        assert "url must be text or null" in wrong["detail"]
        schemas = (await api.get("/openapi.json"))["components"]["schemas"]
        shapes = [
            one.get("$ref", one.get("type", "")) for one in schemas["Submit"]["properties"]["input"]["anyOf"]
        ]
        assert "#/components/schemas/Image" in shapes
        assert {shape.rpartition("/")[2] for shape in shapes if shape.startswith("#")} <= {*schemas}


async def test_json_that_pages_read_has_the_arguments_and_the_kind_of_a_call_and_the_tenant(
    redis_url, tmp_path
):
    async with stand(redis_url, tmp_path) as (ensemble, api, _):
        async with ensemble.client.subscribe_all() as events:
            asked = await ensemble.client.submit("s", "tool:guarded", agent="stage", tenant="acme")
            event, _ = await anext(events)
        turn = asked.id
        assert (event.type, event.tenant, event.turn_id) == ("turn_suspended", "acme", turn)
        info = await api.get(f"/turns/{turn}")
        assert (info["tenant"], info["calls"][0]["kind"]) == ("acme", "approval")
        assert b'"arguments":{}' in ToolCallEvent().to_json()
        assert OpenCall("c", "n") == msgspec.json.decode(b'{"call_id":"c","name":"n"}', type=OpenCall)
        assert b'"arguments":{},"kind":"approval"' in encode(OpenCall("c", "n"))
        await api.post(f"/turns/{turn}/cancel", {})
        await api.result(turn)
