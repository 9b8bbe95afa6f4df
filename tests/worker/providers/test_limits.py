"""What the headers of the services say of rate limits."""

import asyncio
import json
from pathlib import Path

import pytest
from support.eventually import wait_until_async

from antiphon.errors import ProviderOverloaded, ProviderRateLimited
from antiphon.model import Message
from antiphon_demo.modelserver.directives import Behaviour
from antiphon_demo.modelserver.server import ModelServer
from antiphon_worker.providers.anthropic.provider import Anthropic
from antiphon_worker.providers.base import ModelRequest
from antiphon_worker.providers.http.limits import HeldBack, Pressure, pressure_of, pressure_of_error, scope_of
from antiphon_worker.providers.openai_chat.provider import OpenAIChat
from antiphon_worker.providers.openai_responses.provider import OpenAIResponses

RECORDED = Path(__file__).parents[4] / "shared" / "recorded"
KINDS = {"openai": OpenAIResponses, "openai-chat": OpenAIChat, "anthropic": Anthropic}


def raw(**headers):
    return [(name.replace("_", "-").encode(), str(value).encode()) for name, value in headers.items()]


def openai(left, *, limit=60, reset="1s", kind="requests"):
    names = (f"x-ratelimit-{name}-{kind}" for name in ("limit", "remaining", "reset"))
    return [
        (name.encode(), str(value).encode()) for name, value in zip(names, (limit, left, reset), strict=True)
    ]


def anthropic(left, *, limit=50, reset="2026-11-22T12:01:00Z", kind="requests"):
    values = {"limit": limit, "remaining": left, "reset": reset}
    found = [
        (f"anthropic-ratelimit-{kind}-{name}".encode(), str(value).encode()) for name, value in values.items()
    ]
    return [*found, (b"date", b"Sun, 22 Nov 2026 12:00:00 GMT")]


@pytest.mark.parametrize(
    ("headers", "pressure"),
    [
        ([], None),
        (openai(59), None),
        (openai(4), None),
        (openai(3, reset="57s"), Pressure(0, 1.0)),
        (openai(0, reset="6m0s"), Pressure(6.0, 6.0)),
        (openai(0, reset="120ms"), Pressure(0.002, 0.002)),
        (openai(0, limit=1000, reset="1m35s", kind="tokens"), Pressure(4.75, 0)),
        (openai(0) + openai(0, limit=1000, reset="95s", kind="tokens"), Pressure(4.75, 1 / 60)),
        (anthropic(0), Pressure(1.2, 1.2)),
        (anthropic(2), Pressure(0, 1.25)),
        (anthropic(3), None),
        (anthropic(0, kind="input-tokens", limit=1000), Pressure(3.0, 0)),
        (anthropic(0, kind="output-tokens", limit=1000), Pressure(3.0, 0)),
        (anthropic(0, reset="2026-11-22T11:00:00Z"), None),  # it is over
    ],
)
def test_a_limit_that_is_near_is_seen(headers, pressure):
    found = pressure_of([(name.title(), value) for name, value in headers])
    assert (found is None) is (pressure is None)
    if pressure:
        assert (found.wait, found.gap) == (pytest.approx(pressure.wait), pytest.approx(pressure.gap))


@pytest.mark.parametrize(
    "headers",
    [
        openai("x"), openai(-1), openai(0, limit=0), openai("nan"), openai(0, limit="inf"), openai(0)[:2],
        openai(0, reset="soon"), openai(0, reset=""), openai(0, reset="-1s"), openai(0, reset="1e999"),
        openai(0, reset="9999999h"), anthropic(0, reset="T"), anthropic(0, reset="2026-11-22T12:01:00"),
        [(b"x-ratelimit-\xff", b"\xff"), *openai(9)],
    ],
)  # fmt: skip
def test_headers_that_make_no_sense_say_nothing(headers):
    assert pressure_of(headers) is None


def test_an_error_says_how_long_to_wait():
    def said(error, **headers):
        return pressure_of_error(error, {name.replace("_", "-"): value for name, value in headers.items()})

    assert said(ProviderRateLimited(retry_after=2.5)) == Pressure(2.5)
    assert said(ProviderRateLimited(), retry_after_ms="250") == Pressure(0.25)
    assert said(ProviderRateLimited(), retry_after="3") == Pressure(3.0)
    assert said(ProviderRateLimited()) == Pressure(1.0), "a limit that says nothing"
    counters = {name.decode(): value.decode() for name, value in openai(0, reset="60s")}
    assert pressure_of_error(ProviderRateLimited(retry_after=7.0), counters) == Pressure(7.0, 1.0)
    assert pressure_of_error(ProviderRateLimited(), counters) == Pressure(1.0, 1.0)
    assert said(ProviderRateLimited(retryable=False)) is None, "no quota is no rate"
    assert said(ProviderOverloaded(retry_after=2.0)) is None


def test_a_scope_tells_keys_apart_and_holds_none():
    one = scope_of("openai", "gpt", "https://api", "sk-secret-1")
    assert one.startswith("openai/gpt/")
    assert "secret" not in one
    assert len({one, *(scope_of(*parts) for parts in [
        ("openai", "gpt", "https://api", "sk-secret-2"), ("openai", "gpt", "https://b", "sk-secret-1"),
        ("openai", "o", "https://api", "sk-secret-1"), ("o", "gpt", "https://api", "sk-secret-1"),
    ])}) == 5  # fmt: skip
    assert scope_of("openai", "gpt", "https://api", "sk-secret-1") == one
    assert len(scope_of("p", "m" * 10_000, "", "")) < 130


@pytest.mark.skipif(not RECORDED.exists(), reason="the folder ../shared/recorded is not here")
def test_what_services_really_sent_can_be_read():
    waits = []
    for path in RECORDED.glob("*.json"):
        headers = json.loads(path.read_text())["response_headers"]
        assert pressure_of([(name.encode(), value.encode()) for name, value in headers.items()]) is None
        if "retry-after" in headers:
            waits.append(pressure_of_error(ProviderRateLimited(), headers))
    assert waits == [Pressure(31.0)]


class Everything:
    def __contains__(self, scope):
        return True


class Gate:
    """Writes down who came."""

    known = Everything()

    def __init__(self, hold=()):
        self.came, self.told, self.hold = [], [], list(hold)

    async def enter(self, scope):
        self.came.append(scope)
        if self.hold:
            raise self.hold.pop()

    async def heard(self, scope, pressure):
        self.told.append((scope, pressure))


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_provider_says_at_the_gate_what_its_service_says(kind, told):
    async with ModelServer(Behaviour(length=2, limit=2, limit_seconds=60.0, limit_told=told)) as server:
        url = server.base_url if kind == "anthropic" else server.openai_url
        provider, gate = KINDS[kind](base_url=url, api_key="sk-very-secret"), Gate()
        request = ModelRequest("m", [Message.user("Hello")], gate=gate)
        for _ in range(2):
            async for _ in provider.stream(request):
                pass
        near = len(gate.told)
        assert near == (1 if told else 0), "the last one that the limit lets through"
        with pytest.raises(ProviderRateLimited) as caught:
            async for _ in provider.stream(request):
                pass
        assert server.statistics.limited == 1, "the SDK has not asked again"
        (scope, pressure) = gate.told[-1]
        assert gate.came == [scope] * 3
        assert "secret" not in scope
        assert 20 < caught.value.retry_after == pressure.wait <= 30
        assert pressure.gap == pytest.approx(30 if told else 0, abs=1.5)
        await provider.aclose()


async def test_a_call_that_the_gate_holds_back_is_not_sent():
    async with ModelServer() as server:
        provider = OpenAIChat(base_url=server.openai_url, api_key="any")
        held = Gate(hold=[HeldBack("Later.", retry_after=2.0)])
        with pytest.raises(HeldBack, match="Later"):
            async for _ in provider.stream(ModelRequest("m", [Message.user("Hello")], gate=held)):
                pass
        assert server.statistics.requests == 0
        await provider.aclose()


class Slow(Gate):
    """Never comes to the end of telling what it has heard."""

    def __init__(self):
        super().__init__()
        self.telling = asyncio.Event()

    async def heard(self, scope, pressure):
        self.telling.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_that_is_cancelled_while_it_tells_of_a_limit_closes_its_connection(kind):
    async with ModelServer(Behaviour(length=1000, pace=1.0, limit=1, limit_seconds=60.0)) as server:
        url = server.base_url if kind == "anthropic" else server.openai_url
        provider, gate = KINDS[kind](base_url=url, api_key="any"), Slow()
        call = asyncio.create_task(
            anext(provider.stream(ModelRequest("m", [Message.user("Hello")], gate=gate)))
        )
        await gate.telling.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await wait_until_async(lambda: server.statistics.abandoned == 1, description="the service is left")
        await provider.aclose()
        assert call.cancelled()
