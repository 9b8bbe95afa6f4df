"""Connections: pooled, kept alive, limited, closed without a word, and on their own after a fork."""

import asyncio
import gc
import os
import sys
import traceback
import warnings
from pathlib import Path

import pytest
from support.eventually import wait_until_async
from support.services.conversation import KINDS, answer, body, hear, request, result, said, serve
from support.services.wire_server import Reply, WireServer

from antiphon.errors import ProviderRateLimited, ProviderRejected, ProviderUnauthorized
from antiphon_worker.providers.anthropic.provider import Anthropic
from antiphon_worker.providers.openai_chat.provider import OpenAIChat
from antiphon_worker.providers.openai_responses.provider import OpenAIResponses

pytestmark = pytest.mark.parametrize("kind", KINDS)


def shown(error: BaseException) -> str:
    """What a log shows of an error."""
    return "".join(traceback.format_exception(error)) + repr(error)


VARIABLE = {"openai-chat": "OPENAI_API_KEY", "openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}


async def test_requests_after_each_other_share_a_connection(kind):
    async with WireServer(said(kind, "Hi")) as server:
        provider = serve(kind, server.url)
        for _ in range(5):
            await hear(provider)
        assert [seen.connection for seen in server.seen] == [1] * 5
        await provider.aclose()


async def test_closing_leaves_no_warning_and_the_next_request_connects_anew(kind):
    async with WireServer(said(kind, "Hi")) as server:
        provider = serve(kind, server.url)
        await hear(provider)
        gc.collect()  # what other tests have left behind is not this one's
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            await provider.aclose()
            await provider.aclose()
            gc.collect()
        assert not heard
        assert result(await hear(provider)).message.text == "Hi"
        assert server.connections == 2
        await provider.aclose()


async def test_making_and_closing_a_provider_connects_to_nothing(kind):
    async with WireServer(said(kind, "Hi")) as server:
        await serve(kind, server.url).aclose()
        assert server.connections == 0


async def test_hundreds_of_streams_run_side_by_side(kind):
    data = body(kind, answer(kind, "Hello", " world"))
    split = data.index(b" world")
    async with WireServer(Reply([data[:split], data[split:]])) as server:
        provider = serve(kind, server.url, timeout=30.0)
        heard = await asyncio.gather(*(hear(provider) for _ in range(300)))
        assert {result(increments).message.text for increments in heard} == {"Hello world"}
        await provider.aclose()


async def test_no_more_connections_than_allowed_are_open(kind):
    async with WireServer(said(kind, "Hi")) as server:
        provider = serve(kind, server.url, max_connections=3)
        await asyncio.gather(*(hear(provider) for _ in range(20)))
        assert server.most_open <= 3
        assert len(server.seen) == 20
        await provider.aclose()


async def test_a_key_goes_into_the_header(kind):
    async with WireServer(said(kind, "Hi")) as server:
        provider = serve(kind, server.url, api_key="sk-one", headers={"x-mine": "yes"})
        await hear(provider)
        assert server.seen[0].headers["authorization"] == "Bearer sk-one"
        assert server.seen[0].headers["x-mine"] == "yes"
        await provider.aclose()


@pytest.mark.parametrize("wait", [False, True])
async def test_a_function_brings_a_key_for_each_request(kind, wait):
    keys = iter(["sk-first", "sk-second"])

    async def later() -> str:
        return next(keys)

    async with WireServer(said(kind, "Hi")) as server:
        provider = serve(kind, server.url, api_key=later if wait else lambda: next(keys))
        await hear(provider)
        await hear(provider)
        assert [seen.headers["authorization"] for seen in server.seen] == [
            "Bearer sk-first",
            "Bearer sk-second",
        ]
        await provider.aclose()


async def test_a_function_without_a_key_is_an_error(kind):
    async with WireServer(said(kind, "Hi")) as server:
        provider = serve(kind, server.url, api_key=lambda: "")
        with pytest.raises(ProviderUnauthorized, match="api_key"):
            await hear(provider)
        await provider.aclose()


@pytest.mark.parametrize(
    "error", [OSError("vault is closed"), ValueError("vault is closed"), KeyError("vault is closed")]
)
async def test_a_function_that_fails_to_bring_a_key_is_an_error_worth_another_try(kind, error):
    def fail() -> str:
        raise error

    provider = serve(kind, "http://127.0.0.1:9", api_key=fail)
    with pytest.raises(ProviderUnauthorized, match=f"api_key failed with {type(error).__name__}") as raised:
        await hear(provider)
    assert raised.value.retryable
    assert "vault" not in shown(raised.value), "its text may hold what it read"
    await provider.aclose()


@pytest.mark.parametrize("options", [{"api_key": "torn-\nkey"}, {"headers": {"x-a": "b\nc"}}])
async def test_a_key_or_header_that_cannot_be_sent_is_refused_without_being_repeated(kind, options):
    async with WireServer(said(kind, "Hi")) as server:
        provider = serve(kind, server.url, **options)
        with pytest.raises(ProviderRejected) as raised:
            await hear(provider)
        assert "torn" not in str(raised.value)
        await provider.aclose()


async def test_a_key_may_come_from_the_environment(kind, monkeypatch):
    monkeypatch.setenv(VARIABLE[kind], "sk-of-the-environment")
    async with WireServer(said(kind, "Hi")) as server:
        provider = serve(kind, server.url, api_key=None)
        await hear(provider)
        assert server.seen[0].headers["authorization"] == "Bearer sk-of-the-environment"
        await provider.aclose()


async def test_without_a_key_the_error_names_the_variable(kind, monkeypatch, tmp_path):
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(tmp_path))
    make = {"openai-chat": OpenAIChat, "openai": OpenAIResponses, "anthropic": Anthropic}[kind]
    provider = make(max_retries=0)
    with pytest.raises(ProviderUnauthorized, match=VARIABLE[kind]) as raised:
        await hear(provider)
    assert not raised.value.retryable
    assert "worker" not in raised.value.message, "there is none in a local run"
    await provider.aclose()


async def test_a_key_that_a_service_repeats_is_taken_out_of_its_words(kind):
    told = Reply([b'{"error":{"message":"Unknown key opaque.token.77 given"}}'], 401, "application/json")
    for key in ("opaque.token.77", lambda: "opaque.token.77"):
        async with WireServer(told) as server:
            provider = serve(kind, server.url, api_key=key)
            with pytest.raises(ProviderUnauthorized, match=r"Unknown key \[key\] given"):
                await hear(provider)
            await provider.aclose()


async def test_a_request_may_bring_headers_query_and_body_of_its_own(kind):
    extra = {"extra_headers": {"x-trace": "yes"}, "extra_query": {"v": "1"}, "extra_body": {"top_k": 3}}
    async with WireServer(said(kind, "Hi")) as server:
        provider = serve(kind, server.url)
        await hear(provider, request(params=extra))
        (seen,) = server.seen
        assert seen.headers["x-trace"] == "yes"
        assert seen.target.endswith("?v=1")
        assert seen.body["top_k"] == 3
        await provider.aclose()


async def test_a_long_wait_is_left_to_the_caller(kind):
    later = Reply([b"{}"], 429, "application/json", {"retry-after": "30"})
    async with WireServer(later) as server:
        provider = serve(kind, server.url, max_retries=3)
        with pytest.raises(ProviderRateLimited) as raised:
            await hear(provider)
        assert (raised.value.retryable, raised.value.retry_after) == (True, 30.0)
        assert len(server.seen) == 1
        await provider.aclose()


async def test_a_proxy_is_used(kind):
    async with WireServer(said(kind, "By proxy")) as proxy:
        provider = serve(kind, "http://127.0.0.1:9", proxy=proxy.url)
        assert result(await hear(provider)).message.text == "By proxy"
        assert proxy.seen[0].target.startswith("http://127.0.0.1:9/")
        await provider.aclose()


async def test_a_proxy_of_the_environment_is_used(kind, monkeypatch):
    async with WireServer(said(kind, "By proxy")) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        # An exporter of traces, in a thread that another test began, asks there.
        monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
        provider = serve(kind, "http://service.invalid")
        assert result(await hear(provider)).message.text == "By proxy"
        await provider.aclose()


async def test_where_the_network_is_forbidden_only_this_machine_is_asked(kind, monkeypatch):
    monkeypatch.setenv("ANTIPHON_FORBID_NETWORK", "1")
    provider = serve(kind, "https://service.invalid")
    with pytest.raises(ProviderRejected, match="ANTIPHON_FORBID_NETWORK") as raised:
        await hear(provider)
    assert not raised.value.retryable
    await provider.aclose()
    async with WireServer(said(kind, "Hi")) as server:
        here = serve(kind, server.url)
        assert result(await hear(here)).message.text == "Hi"
        await here.aclose()


async def test_a_redirect_to_another_machine_is_refused_where_the_network_is_forbidden(kind, monkeypatch):
    monkeypatch.setenv("ANTIPHON_FORBID_NETWORK", "1")
    away = Reply(status=307, headers={"location": "https://service.invalid/v1"})
    async with WireServer(away) as server:
        provider = serve(kind, server.url)
        with pytest.raises(ProviderRejected, match=r"service\.invalid"):
            await hear(provider)
        await provider.aclose()


def test_a_provider_can_be_used_from_one_loop_after_another(kind):
    provider = None

    async def once() -> str:
        nonlocal provider
        async with WireServer(said(kind, "Hi")) as server:
            provider = serve(kind, server.url)
            heard = await hear(provider)
            await provider.aclose()
            return result(heard).message.text

    assert [asyncio.run(once()), asyncio.run(once())] == ["Hi", "Hi"]


async def test_a_loop_of_another_thread_has_connections_of_its_own(kind):
    async with WireServer(said(kind, "Hi")) as server:
        provider = serve(kind, server.url)
        await hear(provider)

        async def elsewhere() -> str:
            heard = await hear(provider)
            await provider.connection.aclose_here()
            return result(heard).message.text

        assert await asyncio.to_thread(lambda: asyncio.run(elsewhere())) == "Hi"
        assert server.connections == 2
        await hear(provider)
        assert server.connections == 2
        await provider.aclose()


async def test_closing_reaches_the_connections_of_a_loop_that_still_runs(kind):
    async with WireServer(said(kind, "Hi")) as server:
        provider = serve(kind, server.url)
        heard, go_on = asyncio.Event(), asyncio.Event()
        here = asyncio.get_running_loop()

        async def elsewhere() -> None:
            await hear(provider)
            here.call_soon_threadsafe(heard.set)
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(go_on.wait(), here))

        thread = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(elsewhere())))
        await heard.wait()
        await provider.aclose()
        await wait_until_async(lambda: not server.open)
        go_on.set()
        await thread


FORKING = """
import asyncio, os, sys
from support.services.conversation import hear, serve

provider = serve(sys.argv[1], sys.argv[2])
loop = asyncio.new_event_loop()
loop.run_until_complete(hear(provider))
child = os.fork()
if child == 0:
    status = 1
    try:
        async def once():
            await hear(provider)
            await provider.aclose()
        asyncio.run(once())
        status = 0
    finally:
        os._exit(status)
_, status = os.waitpid(child, 0)
loop.run_until_complete(hear(provider))
loop.run_until_complete(provider.aclose())
loop.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
async def test_a_forked_process_leaves_the_connections_of_its_parent_alone(kind):
    async with WireServer(said(kind, "Hi")) as server:
        command = [sys.executable, "-W", "error", "-c", FORKING, kind, server.url]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        process = await asyncio.create_subprocess_exec(
            *command, env=environment, stderr=asyncio.subprocess.PIPE
        )
        _, complaints = await process.communicate()
        assert process.returncode == 0, complaints.decode()
        assert not complaints
        assert [seen.connection for seen in server.seen] == [1, 2, 1]
