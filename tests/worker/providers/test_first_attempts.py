"""A request that is sent without the SDK is the SDK's, and whatever does not succeed at once is the SDK's as well."""

import asyncio
import gzip
import logging
from typing import Any

import pytest
from support.services.conversation import KINDS, answer, body, hear, request, result, said, serve
from support.services.raw_server import RawConnection, RawServer, answering, chunked, direct
from support.services.wire_server import Reply, WireServer, json_reply

from antiphon.errors import ProviderError
from antiphon.model import Message
from antiphon_worker.providers.anthropic.clouds import AnthropicBedrock
from antiphon_worker.providers.http.first_attempts import MOST_KINDS, Attempt, Like
from antiphon_worker.providers.http.http1 import Exchange
from antiphon_worker.providers.service import ModelService

pytestmark = pytest.mark.usefixtures("any_loop")
OF_EACH_KIND = pytest.mark.parametrize("kind", KINDS)


def without_the_sdk(monkeypatch: pytest.MonkeyPatch, provider: ModelService) -> None:
    """Let every further request of the SDK fail."""
    monkeypatch.setattr(provider.connection.client_of_this_loop(), "request", None)


@OF_EACH_KIND
async def test_the_sdk_is_not_needed_for_a_second_request_like_the_first(kind, monkeypatch):
    async with WireServer(said(kind, "Hi")) as server:
        provider = serve(kind, server.url, headers={"X-Ours": "1"})
        await hear(provider)
        without_the_sdk(monkeypatch, provider)
        found = result(await hear(provider, request(Message.user("Another"))))
        await provider.aclose()
    assert found.message.text == "Hi"
    first, second = server.seen
    assert second.target == first.target
    different = {"content-length"}
    assert {**first.headers, **dict.fromkeys(different)} == {**second.headers, **dict.fromkeys(different)}
    assert list(first.headers) == list(second.headers)
    assert second.headers["x-ours"] == "1"
    assert second.headers["x-stainless-retry-count"] == "0"
    assert "Another" in str(second.body)


GZIPPED = {"content-encoding": "gzip"}
WAIT = {"retry-after": "3600"}
LIMIT = {"x-ratelimit-limit-requests": "10", "x-ratelimit-remaining-requests": "0"}


def outcomes(kind: str) -> dict[str, list[Reply]]:
    """Replies that are no plain success."""
    fine = said(kind, "Hi")
    wrong = json_reply({"error": {"message": "No such thing", "type": "odd"}}, 404)
    zipped = Reply([gzip.compress(body(kind, answer(kind, "Zipped")))], headers=GZIPPED)
    return {
        "it fails and succeeds": [Reply([b"{}"], 500, "application/json"), fine],
        "it fails twice": [Reply([b"{}"], 503, "application/json")] * 2,
        "it drops the connection and succeeds": [Reply(reset=True), fine],
        "it drops the connection twice": [Reply(reset=True)] * 2,
        "it refuses": [wrong],
        "it refuses the key": [json_reply({"error": {"message": "Bad key"}}, 401)],
        "it asks to wait long": [json_reply({"error": {"message": "Slow down"}}, 429, **WAIT)],
        "it is near its limit": [said(kind, "Hi", headers=LIMIT)],
        "it leads elsewhere": [Reply(status=307, headers={"location": "/elsewhere"}), fine],
        "it compresses": [zipped],
        "it answers in JSON": [json_reply({"odd": 1})],
        "it is cut off": [Reply([body(kind, answer(kind, "Hi"))[:40]], then="cut")],
        "it sends nothing": [Reply(status=204)],
        "it names its request": [said(kind, "Hi", headers={"x-request-id": "r-1", "request-id": "r-2"})],
    }


async def outcome(kind: str, replies: list[Reply], *, warm: bool) -> tuple[Any, Any]:
    """Return what a request comes to and how it was sent, the first one or one of which the like has succeeded."""
    async with WireServer(*([said(kind, "Before")] if warm else []), *replies) as server:
        provider = serve(kind, server.url, max_retries=1)
        if warm:
            await hear(provider)
        try:
            found = repr(result(await hear(provider)))
        except ProviderError as error:
            found = repr((type(error), str(error), error.retryable, error.retry_after, error.request_id))
        finally:
            await provider.aclose()
        asked = [(one.target, one.headers, one.body) for one in server.seen[warm:]]
        return found.replace(str(server.port), "PORT"), [
            (where, {**headers, "host": ""}, sent) for where, headers, sent in asked
        ]


@OF_EACH_KIND
@pytest.mark.parametrize("name", outcomes(KINDS[0]))
async def test_what_does_not_succeed_at_once_ends_as_with_the_sdk_alone(kind, name):
    alone = await outcome(kind, outcomes(kind)[name], warm=False)
    assert await outcome(kind, outcomes(kind)[name], warm=True) == alone


@OF_EACH_KIND
async def test_another_header_path_or_timeout_is_another_kind_of_request(kind, monkeypatch):
    async with WireServer(said(kind, "Hi")) as server:
        provider = serve(kind, server.url, allowed_headers=["X-A"])
        for params in (
            {"extra_headers": {"X-A": "1"}},
            {"extra_headers": {"X-A": "2"}},
            {},
            {"timeout": 7.0},
        ):
            for _ in range(2):
                await hear(provider, request(params=params))
        known = len(provider.connection._kinds._known)
        await provider.aclose()
    assert [seen.headers.get("x-a") for seen in server.seen] == ["1", "1", "2", "2", None, None, None, None]
    assert known == 4


@OF_EACH_KIND
async def test_how_many_kinds_are_known_is_limited(kind):
    async with WireServer(said(kind, "Hi")) as server:
        provider = serve(kind, server.url, allowed_headers=["X-A"])
        for number in range(MOST_KINDS + 2):
            await hear(provider, request(params={"extra_headers": {"X-A": str(number)}}))
        assert 0 < len(provider.connection._kinds._known) <= MOST_KINDS
        await provider.aclose()


@OF_EACH_KIND
async def test_cancelling_a_first_attempt_closes_its_connection(kind):
    async with WireServer(said(kind, "Hi"), Reply(silent=True), said(kind, "Again")) as server:
        provider = serve(kind, server.url, max_connections=1)
        await hear(provider)
        asking = asyncio.create_task(hear(provider))
        await server.held.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert result(await hear(provider)).message.text == "Again"
        assert len(server.seen) == 3
        await provider.aclose()


@OF_EACH_KIND
async def test_after_closing_nothing_of_it_is_used(kind):
    async with WireServer(said(kind, "Hi")) as server:
        provider = serve(kind, server.url)
        for _ in range(2):
            await hear(provider)
            await hear(provider)
            await provider.aclose()
        assert [seen.connection for seen in server.seen] == [1, 1, 2, 2]


@OF_EACH_KIND
async def test_who_wants_to_see_each_request_in_the_log_does(kind, caplog):
    caplog.set_level(logging.INFO, "httpx2")
    async with WireServer(said(kind, "Hi")) as server:
        provider = serve(kind, server.url)
        for _ in range(3):
            await hear(provider)
        await provider.aclose()
    assert caplog.text.count("HTTP Request: POST") == 3


@OF_EACH_KIND
async def test_requests_through_a_proxy_are_all_the_sdk_s(kind):
    async with WireServer(said(kind, "By proxy")) as proxy:
        provider = serve(kind, "http://127.0.0.1:9", proxy=proxy.url)
        for _ in range(2):
            assert result(await hear(provider)).message.text == "By proxy"
        assert [seen.target.startswith("http://127.0.0.1:9/") for seen in proxy.seen] == [True, True]
        await provider.aclose()


@OF_EACH_KIND
async def test_a_redirect_to_another_host_takes_no_key_along(kind):
    async with WireServer(said(kind, "Elsewhere")) as other:
        away = Reply(status=307, headers={"location": f"{other.url}/v1"})
        async with WireServer(said(kind, "Hi"), away) as server:
            provider = serve(kind, server.url)
            await hear(provider)
            assert result(await hear(provider)).message.text == "Elsewhere"
            await provider.aclose()
    assert "sk-test-of-a-key" in str(server.seen[1].headers)
    assert "sk-test-of-a-key" not in str(other.seen[0].headers)


async def test_an_outcome_that_nobody_takes_is_closed():
    closed = asyncio.Event()

    async def play(connection: RawConnection) -> None:
        await connection.request()
        await connection.send(b"HTTP/1.1 500 No\r\ncontent-length: 9\r\n\r\nhalf")
        await connection.closed()
        closed.set()

    async with RawServer(play) as server, direct() as client:
        like = Like(client._transport, ("http", "127.0.0.1", server.port), "", b"POST / HTTP/1.1\r\n", {})
        attempt = Attempt()
        assert await attempt.make(like, b"{}") is None
        assert attempt.made
        async with attempt.left_to_the_sdk():
            pass
        await closed.wait()


async def test_only_the_next_request_belongs_to_an_attempt():
    async with RawServer(answering(chunked(b"a"))) as server, direct() as client:
        attempt = Attempt()
        async with attempt.left_to_the_sdk():
            await client.post(server.url, content=b"1", headers={"X-A": "1"})
            like = attempt.like
            await client.post(server.url, content=b"2", headers={"X-A": "2"})
        await client.post(server.url, content=b"3", headers={"X-A": "3"})
        assert like is not None
        assert attempt.like is like
        assert b"X-A: 1" in like.head
        exchange = await Attempt().make(like, b"four")
        assert isinstance(exchange, Exchange)
        await exchange.aclose()
    assert server.requests[3][1:] == (server.requests[0][1].replace(b": 1\r\n\r\n", b": 4\r\n\r\n"), b"four")


async def test_requests_that_are_signed_are_all_the_sdk_s(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "of-a-test")
    async with WireServer(said("anthropic", "Hi")) as server:
        provider = AnthropicBedrock(base_url=server.url, region="us-east-1", max_retries=0)
        await hear(provider)
        await hear(provider, request(Message.user("Another")))
        assert provider.connection._kinds._known == {}
        await provider.aclose()
    assert server.seen[0].headers["authorization"] != server.seen[1].headers["authorization"]
