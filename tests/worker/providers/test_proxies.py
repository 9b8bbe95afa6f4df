"""Proxies: those that are given and those of the environment, who goes around them, and what is no proxy."""

import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from support.services.conversation import KINDS, hear, result, said, serve
from support.services.raw_server import RawConnection, RawServer
from support.services.wire_server import WireServer

from antiphon.errors import ProviderRejected, ProviderUnreachable
from antiphon_worker.providers.http.transport import proxies_of
from antiphon_worker.providers.service import ModelService

pytestmark = pytest.mark.usefixtures("any_loop", "no_proxies")
SERVICE = "http://service.invalid"


@pytest.fixture
def no_proxies(monkeypatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@asynccontextmanager
async def provider(kind: str, url: str, **options) -> AsyncGenerator[ModelService]:
    made = serve(kind, url, **options)
    try:
        yield made
    finally:
        await made.aclose()


async def heard_by(kind: str, brings: WireServer, url: str, **options) -> str:
    """The text of an answer, and that the proxy brought it."""
    async with provider(kind, url, **options) as asked:
        text = result(await hear(asked)).message.text
    assert brings.seen[0].target.startswith(url)
    return text


@pytest.mark.parametrize(
    ("given", "environment", "expected"),
    [
        (None, {}, {}),
        ("http://one:3128", {"HTTP_PROXY": "http://other"}, {"all": "http://one:3128"}),
        ("one:3128", {}, {"all": "http://one:3128"}),
        ("", {"HTTP_PROXY": "other:1"}, {"http": "http://other:1"}),
        (None, {"https_proxy": "one", "ALL_PROXY": "socks5://two:1080"}, {"https": "http://one", "all": "socks5://two:1080"}),
        (None, {"NO_PROXY": "*", "FTP_PROXY": "http://one"}, {}),
    ],
)  # fmt: skip
def test_which_proxies_count(given, environment, expected, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert proxies_of(given, environment=True) == expected
    assert proxies_of(given, environment=False) == (expected if given else {})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scheme", ["http://", ""])
async def test_a_given_proxy_brings_every_answer(kind, scheme, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")  # is about those of the environment
    async with WireServer(said(kind, "By proxy")) as proxy:
        given = f"{scheme}127.0.0.1:{proxy.port}"
        assert await heard_by(kind, proxy, SERVICE, proxy=given) == "By proxy"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("scheme", ["http://", ""])
async def test_a_proxy_of_the_environment_brings_the_answer(kind, name, scheme, monkeypatch):
    async with WireServer(said(kind, "By proxy")) as proxy:
        monkeypatch.setenv(name, f"{scheme}127.0.0.1:{proxy.port}")
        local = (
            "127.0.0.1,localhost"  # an exporter of traces, in a thread that another test began, asks there
        )
        monkeypatch.setenv("NO_PROXY", f"other.invalid,vice.invalid,{local}")
        assert await heard_by(kind, proxy, SERVICE) == "By proxy"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("around", ["127.0.0.1", "127.0.0.1:{port}", "*", "other.invalid, 127.0.0.1"])
async def test_no_proxy_names_who_is_asked_directly(kind, around, monkeypatch, unused_port):
    async with WireServer(said(kind, "Directly")) as server:
        monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{unused_port}")
        monkeypatch.setenv("NO_PROXY", around.format(port=server.port))
        async with provider(kind, server.url) as asked:
            for _ in range(2):
                assert result(await hear(asked)).message.text == "Directly"
        assert server.connections == 1


async def test_no_proxy_may_name_a_port_that_is_another(monkeypatch, unused_port):
    async with WireServer(said("anthropic", "Directly")) as server:
        monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{unused_port}")
        monkeypatch.setenv("NO_PROXY", f"127.0.0.1:{server.port + 1}")
        async with provider("anthropic", server.url) as asked:
            with pytest.raises(ProviderUnreachable, match="proxy"):
                await hear(asked)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_https_service_is_asked_through_a_tunnel(kind):
    """The name, not an address, goes to the proxy; a proxy that refuses is an error."""

    async def play(connection: RawConnection) -> None:
        connection.requests.append((await connection.head(), b""))
        await connection.send(b"HTTP/1.1 403 No\r\ncontent-length: 0\r\n\r\n")

    async with RawServer(play) as proxy:
        async with provider(kind, "https://service.invalid", proxy=proxy.url) as asked:
            with pytest.raises(ProviderUnreachable, match="403"):
                await hear(asked)
        assert proxy.requests[0][1].startswith(b"CONNECT service.invalid:443 HTTP/1.1\r\n")


WRONG = ["ftp://127.0.0.1", "http://", "http://user:secret", "http://127.0.0.1:many", "://"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", WRONG)
async def test_a_given_proxy_that_is_none_is_refused_in_one_sentence_without_its_password(kind, wrong):
    async with provider(kind, SERVICE, proxy=wrong) as asked:
        with pytest.raises(
            ProviderRejected, match=r"proxy is not the URL of a proxy: .*http://proxy"
        ) as raised:
            await hear(asked)
    assert "secret" not in str(raised.value)
    assert not raised.value.retryable


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", WRONG)
async def test_a_proxy_of_the_environment_that_is_none_is_named_by_its_variable(kind, wrong, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", wrong)
    async with provider(kind, SERVICE) as asked:
        with pytest.raises(ProviderRejected, match="HTTP_PROXY is not the URL of a proxy") as raised:
            await hear(asked)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_wrong_proxy_that_no_request_needs_is_no_matter(kind, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "ftp://127.0.0.1")
    async with WireServer(said(kind, "Directly")) as server, provider(kind, server.url) as asked:
        assert result(await hear(asked)).message.text == "Directly"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_socks_proxy_without_its_package_names_the_package(kind, monkeypatch):
    monkeypatch.setitem(sys.modules, "socksio", None)
    async with provider(kind, SERVICE, proxy="socks5://127.0.0.1:1080") as asked:
        with pytest.raises(ProviderRejected, match="pip install socksio"):
            await hear(asked)


@pytest.mark.parametrize("kind", KINDS)
async def test_where_the_network_is_forbidden_proxies_of_the_environment_do_not_count(
    kind, monkeypatch, unused_port
):
    monkeypatch.setenv("ANTIPHON_FORBID_NETWORK", "1")
    monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{unused_port}")
    monkeypatch.setenv("HTTP_PROXY", "ftp://wrong")
    async with WireServer(said(kind, "Directly")) as server, provider(kind, server.url) as asked:
        assert result(await hear(asked)).message.text == "Directly"
