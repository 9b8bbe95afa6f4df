"""Secrets of a provider stay in its process: no error, no log and no repr has them, in whatever form they come back."""

import asyncio
import base64
import json
import logging
import traceback
from typing import Any
from urllib.parse import quote

import pytest
from support.growth import adversarial, superlinear
from support.services.conversation import KINDS, hear, said, serve
from support.services.wire_server import Reply, WireServer

from antiphon.errors import ProviderError
from antiphon_worker.providers.secrets import MASK, REMEMBERED, WIDTH, Secrets, secrets_in_url, without_keys

KEY = "vault/opaque+key.of=this~tenant"
HEADER = "s3cret of the header"


def forms(key: str) -> dict[str, str]:
    """What a service may make of a key, by what it did."""
    raw, half = key.encode(), len(key) // 2
    return {
        "whole": key,
        "first half": key[:half],
        "second half": key[half:],
        "two halves": f"{key[:half]}…{key[half:]}",
        "escaped": quote(key, safe=""),
        "hex": raw.hex(),
        "base64": base64.b64encode(raw).decode(),
        "base64 for URLs": base64.urlsafe_b64encode(raw).decode(),
        "basic": base64.b64encode(b":" + raw).decode(),
        "basic of a user": base64.b64encode(b"me:" + raw + b":more").decode(),
    }


def secret_in(text: str, *secrets: str) -> list[str]:
    """The parts of secrets that stand in a text."""
    return [
        part
        for secret in secrets
        for form in (secret, secret.encode().hex(), base64.b64encode(secret.encode()).decode())
        for at in range(len(form) - WIDTH)
        if (part := form[at : at + WIDTH + 1]) in text
    ]


def shown(error: BaseException) -> str:
    """What a log shows of an error, with all that led to it."""
    fields = [str(value) for value in vars(error).values()]
    return "".join(traceback.format_exception(error)) + repr(error) + "".join(fields)


WHERE = ["message", "kind", "header", "text", "event"]
CASES = [("openai-chat", where, form) for where in WHERE for form in forms(KEY)]
CASES += [(kind, where, "two halves") for where in WHERE for kind in ("openai", "anthropic")]


def log_all(caplog: pytest.LogCaptureFixture) -> None:
    """Everything of this project, and of the libraries what they log where nobody asked for more."""
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.DEBUG, "antiphon")
    caplog.set_level(logging.INFO, "httpx2")  # a command that has run in this process may have made it quiet


@pytest.mark.parametrize(("kind", "where", "form"), CASES)
async def test_a_key_that_a_service_repeats_is_in_no_error(kind, form, where, caplog):
    log_all(caplog)
    told = f"Wrong: {forms(KEY)[form]} given"
    error = {"message": "No", "type": "x"} | ({"type": told} if where == "kind" else {"message": told})
    data, headers, status = json.dumps({"type": "error", "error": error}).encode(), {}, 401
    if where == "header":
        headers = {"x-request-id": quote(told, safe="+/=~. "), "request-id": quote(told, safe="+/=~. ")}
    elif where == "text":
        data = told.encode()
    elif where == "event":
        data, status = b"event: error\ndata: " + data + b"\n\n", 200
    content = "text/event-stream" if where == "event" else "application/json"
    async with WireServer(Reply([data], status, content, headers)) as server:
        provider = serve(kind, server.url, api_key=KEY)
        with pytest.raises(ProviderError) as raised:
            await hear(provider)
        assert secret_in(shown(raised.value), KEY, quote(KEY, safe="")) == []
        assert secret_in(caplog.text, KEY) == []
        await provider.aclose()


@pytest.mark.parametrize("kind", KINDS)
async def test_earlier_keys_of_a_function_are_known_too(kind):
    keys = iter(["vault-first.token", "vault-second.token"])
    told = Reply(
        [b'{"error":{"message":"not vault-first.token nor vault-second.token"}}'], 401, "application/json"
    )
    async with WireServer(said(kind, "Hi"), told) as server:
        provider = serve(kind, server.url, api_key=lambda: next(keys))
        await hear(provider)
        with pytest.raises(ProviderError, match=r"not \[key\] nor \[key\]"):
            await hear(provider)
        await provider.aclose()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["X-Vault", "Api-Key", "Authorization"])
async def test_a_secret_header_that_a_service_repeats_is_in_no_error(kind, name):
    told = Reply([json.dumps({"error": {"message": f"no such {HEADER}"}}).encode()], 403, "application/json")
    async with WireServer(told) as server:
        provider = serve(kind, server.url, headers={name: HEADER})
        with pytest.raises(ProviderError) as raised:
            await hear(provider)
        assert HEADER not in shown(raised.value)
        await provider.aclose()


URLS = [
    f"http://user:{KEY}@127.0.0.1:1/v1",
    f"http://{KEY}@127.0.0.1:1/v1",
    f"http://127.0.0.1:1/v1?api_key={KEY}",
    f"http://127.0.0.1:{KEY}/v1",
    f"http://[{KEY}/v1",
    f"{KEY}",
    f"https//{KEY}@host/v1",
    f"http://a b:{KEY}@@127.0.0.1:1/v1",
    f"ftp://me:{KEY}@127.0.0.1/v1",
    f"http://127.0.0.1:1/v1#{KEY}\n",
]


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("kind", ["openai-chat", "anthropic"])
async def test_a_key_in_a_base_url_is_in_no_error_no_log_and_no_repr(kind, url, caplog):
    log_all(caplog)
    provider = serve(kind, url, connect_timeout=0.5)
    with pytest.raises(ProviderError) as raised:
        await hear(provider)
    assert secret_in(shown(raised.value), KEY, quote(KEY, safe="")) == []
    assert secret_in(repr(provider) + repr(provider.options), KEY) == []
    assert secret_in(caplog.text, KEY, quote(KEY, safe="")) == []
    await provider.aclose()


@pytest.mark.parametrize("kind", KINDS)
async def test_what_the_http_library_logs_holds_no_password(kind, caplog):
    log_all(caplog)
    async with WireServer(said(kind, "Hi")) as server:
        url = server.url.replace("//", "//me:open-sesame-17@") + "/at?token=open-sesame-18"
        provider = serve(kind, url)
        await hear(provider)
        assert "HTTP Request" in caplog.text
        assert "sesame" not in caplog.text
        await provider.aclose()


@pytest.mark.parametrize("kind", KINDS)
def test_a_provider_shows_none_of_its_secrets(kind):
    options: dict[str, Any] = {
        "headers": {"x-a": HEADER},
        "proxy": f"http://me:{KEY}@127.0.0.1:1",
        "api_key": KEY,
    }
    provider = serve(kind, "http://127.0.0.1:1", **options)
    for one in (provider, provider.options, provider.connection):
        assert secret_in(f"{one!r} {one!s}", KEY, HEADER) == []
    assert "127.0.0.1" in repr(provider)


class LoudError(Exception):
    """An exception that says what it should not."""

    def __str__(self) -> str:
        return KEY

    __repr__ = __str__


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wait", [False, True])
async def test_what_the_function_of_a_key_raises_is_named_and_not_told(kind, wait, caplog):
    log_all(caplog)

    def fail() -> str:
        raise LoudError from ValueError(KEY)

    async def later() -> str:
        await asyncio.sleep(0)
        return fail()

    provider = serve(kind, "http://127.0.0.1:1", api_key=later if wait else fail)
    with pytest.raises(ProviderError, match="LoudError") as raised:
        await hear(provider)
    assert secret_in(shown(raised.value) + caplog.text, KEY) == []
    await provider.aclose()


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("http://me:secret@host/path", f"http://{MASK}@host/path"),
        ("http://me:p@ss/word?@host:1/path, yes", f"http://{MASK}@host:1/path, yes"),
        ("redis://:secret@host", f"redis://{MASK}@host"),
        ("http://token@host", f"http://{MASK}@host"),
        ("GET http://h/v1?api_key=abc&v=1", f"GET http://h/v1?api_key={MASK}&v=1"),
        ("GET http://h/v1?v=1&token=abc", f"GET http://h/v1?v=1&token={MASK}"),
        ("Authorization: Bearer abc", f"Authorization: {MASK}"),
        ("Basic bWU6eW91", MASK),
        ("write to me@example.com // now", "write to me@example.com // now"),
        ("see https://medium.com/@somebody", "see https://medium.com/@somebody"),
        ("see https://example.com/a?b=c#d", "see https://example.com/a?b=c#d"),
        ("the basic plan", "the basic plan"),
    ],
)
def test_what_looks_like_a_secret_is_taken_out(text, clean):
    assert without_keys(text) == clean


def test_the_secrets_of_a_url_are_found_or_else_all_of_it_is_one():
    assert secrets_in_url("http://me:p%40ss@h/v1?key=k&v=1") == ["me", "p%40ss", "p@ss", "k"]
    assert secrets_in_url("http://h/v1?v=1") == []
    assert secrets_in_url("http://h:port/v1") == ["http://h:port/v1"]


def test_only_the_last_keys_are_remembered_and_short_words_are_none():
    secrets = Secrets(["abc"])
    secrets.learn("word")
    for letter in "ABCDEFGHIJKLMNOPQ"[: REMEMBERED + 1]:
        secrets.learn(letter * 12)
    assert secrets.out_of("abc word") == "abc word"
    assert secrets.out_of("A" * 12) == "A" * 12
    assert secrets.out_of("B" * 12) == secrets.out_of("Q" * 12) == MASK


@pytest.mark.parametrize("key", ["abc12", "a-b!", "x", "pä%"])
def test_a_short_key_is_taken_out_where_it_is_a_word(key):
    secrets = Secrets()
    secrets.learn(key)
    for form in (key, quote(key, safe="")):
        assert secrets.out_of(f"{form}: wrong key {form!r} ({form},{form})") == (
            f"{MASK}: wrong key {MASK!r} ({MASK},{MASK})"
        )
    assert secrets.out_of(f"9{key}9 a{key}") == f"9{key}9 a{key}"


@pytest.mark.parametrize(("kind", "key"), [(kind, key) for kind in KINDS for key in ("abc12", "k")])
async def test_a_short_key_is_in_no_error(kind, key):
    data = json.dumps({"error": {"message": f"The key {key} is wrong: Bearer {key}", "type": "x"}}).encode()
    async with WireServer(Reply([data], 401, "application/json")) as server:
        provider = serve(kind, server.url, api_key=key)
        with pytest.raises(ProviderError, match=r"The key \[key\] is wrong: ") as raised:
            await hear(provider)
        assert f" {key} " not in shown(raised.value)
        await provider.aclose()


def test_secrets_are_looked_for_in_time_that_grows_with_the_text_alone():
    secrets = Secrets([HEADER])
    secrets.learn(KEY)
    texts = adversarial(
        ["//", "//a:", "//a@", "Bearer ", "sk-", "sk-a", "?key=", KEY, KEY[:9], "a" * 31, "https://a/"],
        [*"a0 :@/?&=-_.*", "\n"],
    )
    assert next((text(30) for text in texts if superlinear(secrets.out_of, text)), None) is None
