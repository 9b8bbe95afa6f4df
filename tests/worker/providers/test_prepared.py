"""The address and headers of a request are built once, and are those that the SDK builds."""

from __future__ import annotations

import sys
from typing import Any

import httpx2
import pytest
from support.calls import uncollected

from antiphon_worker.providers.anthropic.provider import AnthropicConnection
from antiphon_worker.providers.http.connection import Call, Connection, Options
from antiphon_worker.providers.http.prepared import MOST_KINDS, prepare_requests
from antiphon_worker.providers.openai_sdk import OpenAIConnection

# Calls of functions, Python's and C's, for a request that is like an earlier one. The SDK alone makes 1,900.
MOST_CALLS = 530


class Service(httpx2.AsyncBaseTransport):
    """Answers without a network: with these statuses first, then with 200."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.requests: list[httpx2.Request] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await request.aread()
        self.requests.append(request)
        status = self.statuses.pop(0) if self.statuses else 200
        return httpx2.Response(status, headers={"retry-after-ms": "1"}, stream=httpx2.ByteStream(b""))


class Pair:
    """The same connection twice: with prepared requests, and with those of the SDK alone."""

    def __init__(self, kind: type[Connection], **options: Any) -> None:
        self.connection = kind(Options(base_url="http://127.0.0.1:9/v1?a=b", api_key="key", **options))
        self.services = Service(), Service()
        self.clients = [
            self.connection.make_client(httpx2.AsyncClient(transport=one)) for one in self.services
        ]
        prepare_requests(self.clients[0])

    async def post(self, call: Call, headers: dict[str, str], *statuses: int) -> None:
        for client, service in zip(self.clients, self.services, strict=True):
            service.statuses = list(statuses)
            await (
                await self.connection.post(client, call, {"Accept-Encoding": "identity", **headers})
            ).aclose()

    def sent(self) -> list[list[tuple[Any, ...]]]:
        return [
            [
                (one.method, str(one.url), sorted(one.headers.multi_items()), one.content, one.extensions)
                for one in service.requests
            ]
            for service in self.services
        ]


CALL = Call("/chat/completions", b"{}")


@pytest.fixture(params=[OpenAIConnection, AnthropicConnection], ids=["openai", "anthropic"])
def pair(request):
    return Pair(request.param, headers={"X-Ours": "1"})


async def test_a_prepared_request_is_the_one_that_the_sdk_builds(pair):
    for body in (b'{"n":1}', b'{"n":22}', b"{}", b'{"n":"' + b"x" * 100_000 + b'"}'):
        await pair.post(Call("/chat/completions", body), {})
    prepared, alone = pair.sent()
    assert prepared == alone
    headers = dict(prepared[-1][2])
    assert headers["content-length"] == "100008"
    assert headers["x-ours"] == "1"
    assert "x-stainless-lang" in headers


async def test_whatever_differs_between_requests_is_sent(pair):
    calls = [
        (CALL, {}),
        (Call("/responses", b"{}"), {}),
        (Call("/chat/completions", b"{}", timeout=7.0), {}),
        (Call("/chat/completions", b"{}", query={"c": "d"}), {}),
        (CALL, {"X-Turn": "1"}),
        (CALL, {"X-Turn": "2"}),
        (CALL, {"Authorization": "Bearer other"}),
    ]
    for call, headers in calls * 2:
        await pair.post(call, headers)
    prepared, alone = pair.sent()
    assert prepared == alone
    assert prepared[:7] == prepared[7:]
    assert len({str(one) for one in prepared}) == 7


async def test_the_sdk_counts_its_retries_in_a_header(pair):
    for _ in range(2):
        await pair.post(CALL, {}, 500)
    prepared, alone = pair.sent()
    assert prepared == alone
    assert [dict(one[2])["x-stainless-retry-count"] for one in prepared] == ["0", "1", "0", "1"]


async def test_a_new_key_of_the_client_is_sent(pair):
    for key in ("key", "key2", "key"):
        for client in pair.clients:
            client.api_key = key
        await pair.post(CALL, {})
    prepared, alone = pair.sent()
    assert prepared == alone
    assert prepared[0] == prepared[2] != prepared[1]


async def test_what_a_hook_does_to_a_request_stays_with_that_request(pair):
    for _ in range(2):
        await pair.post(CALL, {})
        pair.services[0].requests[-1].headers["x-hook"] = "1"
        pair.services[0].requests[-1].extensions["hook"] = 1
    await pair.post(CALL, {})
    last = pair.services[0].requests[-1]
    assert "x-hook" not in last.headers
    assert "hook" not in last.extensions


async def test_requests_that_all_differ_are_not_kept(pair):
    for number in range(3 * MOST_KINDS):
        await pair.post(CALL, {"X-Turn": str(number)})
    assert len(pair.clients[0]._build_request._kinds) <= MOST_KINDS


async def test_a_request_like_an_earlier_one_takes_few_calls():
    pair, number, count = Pair(OpenAIConnection), 10, 0

    def note(_frame, event, _argument) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    async def post() -> None:
        await (await pair.connection.post(pair.clients[0], CALL, {})).aclose()

    await post()
    known = sys.getprofile()
    with uncollected():
        sys.setprofile(note)
        try:
            for _ in range(number):
                await post()
        finally:
            sys.setprofile(known)
    assert count / number <= MOST_CALLS
