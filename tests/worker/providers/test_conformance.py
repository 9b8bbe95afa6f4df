"""What every provider does the same, over real HTTP and through the real SDKs."""

import asyncio
import gzip
import json

import pytest
from support.eventually import wait_until_async
from support.services.conversation import (
    KINDS,
    answer,
    ask,
    body,
    hear,
    request,
    result,
    said,
    serve,
    texts,
    whole,
)
from support.services.wire_server import Reply, WireServer

from antiphon.errors import (
    ProviderOverloaded,
    ProviderRateLimited,
    ProviderRejected,
    ProviderStreamBroken,
    ProviderTimedOut,
    ProviderUnauthorized,
    ProviderUnreachable,
)
from antiphon.model import Text
from antiphon_worker.providers.base import StepResult

pytestmark = pytest.mark.parametrize("kind", KINDS)


async def test_text_comes_in_pieces_and_last_the_whole_answer(kind):
    heard = await ask(
        kind, said(kind, "Hel", "lo ", "wörld 🎶", headers={"x-request-id": "req_1", "request-id": "req_1"})
    )
    assert texts(heard) == ["Hel", "lo ", "wörld 🎶"]
    answered = result(heard)
    assert answered.message.parts == [Text("Hello wörld 🎶")]
    assert (answered.stop_reason, answered.model, answered.request_id) == ("end", "a-model-2", "req_1")
    assert (answered.message.role, answered.message.provider) == ("assistant", kind)
    assert sum(isinstance(increment, StepResult) for increment in heard) == 1


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
async def test_single_bytes_any_line_ending_and_comments_change_nothing(kind, newline):
    data = b"\xef\xbb\xbf: hello\n\n" + body(kind, answer(kind, "One ", 'wörd 🎶 \\ "', "\n")).replace(
        b"\n\n", b"\n\n: ping\n\n"
    )
    data = data.replace(b"\n", newline)
    heard = await ask(kind, Reply([data[i : i + 1] for i in range(len(data))]))
    assert result(heard).message.text == 'One wörd 🎶 \\ "\n'


async def test_an_answer_that_does_not_stream_is_the_same_answer(kind):
    heard = await ask(kind, whole(kind, "All at once"))
    assert texts(heard) == ["All at once"]
    assert result(heard).message.text == "All at once"
    assert result(heard).stop_reason == "end"


async def test_the_body_shows_what_it_is_where_the_headers_are_wrong(kind):
    events = said(kind, "As events", content_type="application/json")
    assert result(await ask(kind, events)).message.text == "As events"
    for content_type in ("text/event-stream", "text/plain", "application/octet-stream"):
        plain = whole(kind, "As JSON")
        plain.content_type = content_type
        plain.chunks = [b"\n ", *(plain.chunks[0][i : i + 7] for i in range(0, len(plain.chunks[0]), 7))]
        assert result(await ask(kind, plain)).message.text == "As JSON"


async def test_a_compressed_answer_is_read(kind):
    data = gzip.compress(body(kind, answer(kind, "small")))
    heard = await ask(kind, Reply([data[:20], data[20:]], headers={"content-encoding": "gzip"}))
    assert result(heard).message.text == "small"


async def test_a_compressed_answer_that_unpacks_to_too_much_ends(kind):
    comment = b": " + b"x" * 1020 + b"\n\n"
    bomb = gzip.compress(comment * (200 << 10), 1)  # a megabyte that holds 200
    with pytest.raises(ProviderStreamBroken, match="longer than"):
        await ask(kind, Reply([bomb], headers={"content-encoding": "gzip"}))


async def test_the_end_of_the_connection_may_be_the_end_of_the_body(kind):
    assert result(await ask(kind, said(kind, "Good", then="no_length"))).message.text == "Good"


async def test_characters_cut_in_half_between_two_events_are_put_together(kind):
    halves = (
        body(kind, answer(kind, "a", "XX", "YY", "b")).replace(b"XX", b"\\ud83c").replace(b"YY", b"\\udfb6")
    )
    heard = await ask(kind, Reply([halves]))
    assert result(heard).message.text == "a🎶b"
    assert "".join(texts(heard)) == "a🎶b"


async def test_half_a_character_alone_becomes_a_replacement_character(kind):
    halves = body(kind, answer(kind, "a", "XX")).replace(b"XX", b"\\ud83c")
    heard = await ask(kind, Reply([halves]))
    assert result(heard).message.text == "a\ufffd" == "".join(texts(heard))
    assert result(heard).message.to_json()


@pytest.mark.parametrize(
    ("status", "error", "retryable"),
    [
        (400, ProviderRejected, False),
        (401, ProviderUnauthorized, False),
        (403, ProviderUnauthorized, False),
        (404, ProviderRejected, False),
        (408, ProviderTimedOut, True),
        (409, ProviderOverloaded, True),
        (413, ProviderRejected, False),
        (422, ProviderRejected, False),
        (429, ProviderRateLimited, True),
        (500, ProviderOverloaded, True),
        (502, ProviderOverloaded, True),
        (503, ProviderOverloaded, True),
        (504, ProviderTimedOut, True),
        (529, ProviderOverloaded, True),
    ],
)
async def test_a_status_becomes_one_error_that_says_what_to_do(kind, status, error, retryable):
    reply = Reply(
        [b'{"type":"error","error":{"type":"some_kind","message":"Words of the service"}}'],
        status,
        "application/json",
        {"x-request-id": "req_9", "request-id": "req_9", "retry-after": "7"},
    )
    with pytest.raises(
        error, match=f"{kind} answered {status} .some_kind.: Words of the service. Request id: req_9"
    ) as e:
        await ask(kind, reply)
    assert (e.value.retryable, e.value.status, e.value.request_id) == (retryable, status, "req_9")
    assert e.value.retry_after == 7.0


@pytest.mark.parametrize(
    "data", [b"", b"<html>Bad gateway</html>", b"[]", b'"words"', b'{"error":null}', b'{"error":7}']
)
async def test_an_error_without_the_usual_body_is_an_error_all_the_same(kind, data):
    with pytest.raises(ProviderOverloaded) as e:
        await ask(
            kind, Reply([data] if data else [], 502, "text/html" if b"<" in data else "application/json")
        )
    assert e.value.status == 502


async def test_the_service_itself_may_say_whether_to_try_again(kind):
    with pytest.raises(ProviderOverloaded) as e:
        await ask(kind, Reply([b"{}"], 500, "application/json", {"x-should-retry": "false"}))
    assert not e.value.retryable


async def test_no_error_repeats_the_key(kind):
    words = "Incorrect API key provided: sk-test-of-a-key. Or sk-proj-ab12***wxyz, or Bearer abc."
    told = json.dumps({"error": {"message": words, "type": "x"}}).encode()
    with pytest.raises(ProviderUnauthorized) as e:
        await ask(kind, Reply([told], 401, "application/json"))
    assert "sk-" not in str(e.value)
    assert "abc" not in str(e.value)
    assert "[key]" in str(e.value)


async def test_a_retry_before_the_first_byte_is_the_sdk_s(kind):
    busy = Reply([b"{}"], 529, "application/json", {"retry-after-ms": "1"})
    assert result(await ask(kind, busy, said(kind, "Now"), max_retries=1)).message.text == "Now"


async def test_every_cut_of_an_answer_is_noticed(kind):
    data = body(kind, answer(kind, "Hello", " world"))
    replies = [Reply([data[:end]], then="cut") for end in range(1, len(data) - 60, 37)]
    async with WireServer(*replies) as server:
        provider = serve(kind, server.url)
        for _ in replies:
            with pytest.raises(ProviderStreamBroken) as e:
                await hear(provider)
            assert e.value.retryable
        await provider.aclose()


async def test_a_body_that_ends_early_without_a_cut_is_noticed_as_well(kind):
    data = body(kind, answer(kind, "Hello", " world"))
    early = data[: data.index(b" world")]
    for then in ("whole", "no_length"):
        with pytest.raises(ProviderStreamBroken, match="last event"):
            await ask(kind, Reply([early], then=then))


async def test_a_last_event_without_its_blank_line_counts(kind):
    data = body(kind, answer(kind, "Hello")).rstrip(b"\n")
    assert result(await ask(kind, Reply([data]))).message.text == "Hello"


async def test_silence_before_the_answer_is_a_time_out(kind):
    with pytest.raises(ProviderTimedOut, match=kind) as e:
        await ask(kind, Reply(silent=True), timeout=0.1)
    assert e.value.retryable


async def test_silence_within_the_answer_is_a_time_out(kind):
    data = body(kind, answer(kind, "Hello", " world"))
    with pytest.raises(ProviderTimedOut):
        await ask(kind, Reply([data[: data.index(b" world")]], then="hang"), timeout=0.1)


async def test_one_request_may_have_a_time_out_of_its_own(kind):
    with pytest.raises(ProviderTimedOut):
        await ask(kind, Reply(silent=True), asked=request(params={"timeout": 0.1}))


async def test_an_answer_that_is_complete_needs_no_end_of_the_body(kind):
    assert result(await ask(kind, said(kind, "Done", then="hang"))).message.text == "Done"
    assert result(await ask(kind, said(kind, "Done", then="cut"))).message.text == "Done"


async def test_a_dropped_connection_is_no_answer(kind):
    with pytest.raises(ProviderUnreachable, match="Check base_url") as e:
        await ask(kind, Reply(reset=True))
    assert e.value.retryable


async def test_nobody_there_is_no_answer(kind, unused_port):
    provider = serve(kind, f"http://127.0.0.1:{unused_port}")
    with pytest.raises(ProviderUnreachable):
        await hear(provider)
    await provider.aclose()


@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "127.0.0.1:99", "http://[::"])
async def test_a_base_url_that_is_none_is_refused(kind, url):
    provider = serve(kind, url)
    with pytest.raises(ProviderRejected, match="base_url"):
        await hear(provider)
    await provider.aclose()


async def test_an_event_that_is_too_long_ends_the_answer(kind):
    with pytest.raises(ProviderStreamBroken, match="longer than 1000"):
        await ask(kind, Reply([b"data: " + b"x" * 2000]), max_event_bytes=1000)


@pytest.mark.parametrize("content_type", ["text/event-stream", "application/json"])
async def test_an_answer_that_is_too_long_is_ended(kind, content_type):
    with pytest.raises(ProviderStreamBroken, match="longer than 5000"):
        await ask(kind, Reply([b": x\n\n" * 500] * 10, content_type=content_type), max_answer_bytes=5000)


@pytest.mark.parametrize(
    "nonsense",
    [
        b"data: {torn\n\n",
        b"data: [1]\n\n",
        b"data: \xff\xfe\n\n",
        b"data: 7\n\n",
        b"data: " + b"[" * 9000 + b"\n\n",
    ],
)
async def test_events_that_are_no_answer_are_a_broken_stream(kind, nonsense):
    with pytest.raises(ProviderStreamBroken, match="cannot be read"):
        await ask(kind, Reply([nonsense]))


@pytest.mark.parametrize("text", [b"", b"null", b"{}", b"[]", b"{torn", b'{"detail":"Not here"}', b"7"])
async def test_json_that_is_no_answer_is_an_error(kind, text):
    with pytest.raises(ProviderStreamBroken):
        await ask(kind, Reply([text] if text else [], content_type="application/json"))


async def test_leaving_an_answer_closes_its_connection(kind):
    data = body(kind, answer(kind, "Hello", " world"))
    async with WireServer(Reply([data[: data.index(b" world")]], then="hang")) as server:
        provider = serve(kind, server.url)
        stream = provider.stream(request())
        assert (await anext(stream)).text == "Hello"  # type: ignore[union-attr]
        await stream.aclose()
        await wait_until_async(lambda: not server.open)
        await provider.aclose()


async def test_a_cancelled_request_closes_its_connection(kind):
    async with WireServer(Reply(silent=True)) as server:
        provider = serve(kind, server.url)
        waiting = asyncio.create_task(hear(provider))
        await server.held.wait()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await wait_until_async(lambda: not server.open)
        await provider.aclose()
        assert waiting.cancelled()
