"""``antiphon serve`` as a process beside real workers: they are killed, stopped and attacked in mid-answer (G18)."""

import asyncio
import json
import re
import socket
from contextlib import suppress

import httpx2
import openai
import pytest
from support import forks
from support.clients import running
from support.event_source import EventSource
from support.eventually import patience, wait_until_async
from support.gateway import Api, follow
from support.gateway_process import Stand, gathered
from support.network import free_port
from support.processes import COMMAND
from support.servers import RedisServer
from support.stage import FIRST_WORDS

from antiphon_gateway.access.caller import hash_of, new_key

pytestmark = pytest.mark.one_server

SECRET = "a secret that every replica has, 32 bytes"


@pytest.fixture
def stand(redis_url, processes, tmp_path) -> Stand:
    return Stand(redis_url, processes, tmp_path)


@pytest.mark.main_path
async def test_workers_and_gateways_are_killed_in_mid_answer_and_the_answer_comes_whole_and_once(stand):
    port = free_port()
    gateway, url = stand.gateway(port=port)
    worker = stand.worker()
    api = Api(url)
    async with api.http:
        turn = await api.submit("s", "go gate:g gate:h", key="k")
        source = EventSource(f"{url}/turns/{turn}/events")
        reading = asyncio.create_task(follow(source))
        await stand.waits("g")
        await wait_until_async(lambda: source.last_id not in ("", "1"))
        await asyncio.to_thread(gateway.kill)
        stand.stage.open("g")
        await stand.waits("h")
        await asyncio.to_thread(worker.kill)
        await asyncio.to_thread(stand.gateway, port=port)  # another one, where the browser comes back to
        await asyncio.to_thread(stand.worker)
        await stand.waits("h", 2)
        stand.stage.open("h")
        messages, end = await asyncio.wait_for(reading, patience(40))
    async with Api(url).http as http:  # the first one's connections are gone
        found = (await http.get(f"/turns/{turn}/result?wait=20")).json()
    assert end == {}
    assert source.connections >= 2
    assert [int(message.id) for message in messages] == list(range(1, len(messages) + 1))
    events = [json.loads(message.data) for message in messages]
    assert [event["type"] for event in events].count("turn_finished") == 1
    last = max(event.get("attempt", 1) for event in events)
    text = "".join(e["text"] for e in events if e["type"] == "text_delta" and e["attempt"] == last)
    assert text == found["response"]["text"]
    assert text.startswith(FIRST_WORDS)


async def test_openais_client_goes_on_at_another_gateway_when_gateway_and_worker_were_killed(stand):
    first, url = stand.gateway()
    _, other = stand.gateway()
    worker = stand.worker()
    asks = {"model": "stage/stage-1", "stream": True}
    seen, chunks = [], []
    async with of_openai(url) as client, of_openai(other) as second:
        streams = (
            await client.responses.create(**asks, input="go gate:g gate:h"),
            await client.chat.completions.create(
                **asks, messages=[{"role": "user", "content": "go gate:g gate:h"}],
                extra_headers={"Idempotency-Key": "k"},
            ),
        )  # fmt: skip
        reading = [
            asyncio.ensure_future(gathered(stream, into))
            for stream, into in zip(streams, (seen, chunks), strict=True)
        ]
        await stand.waits("g", 2)
        await wait_until_async(lambda: any("delta" in event.type for event in seen) and len(chunks) > 1)
        await asyncio.to_thread(first.kill)
        assert not any(await asyncio.gather(*reading)), "neither came to its end"
        stand.stage.open("g")
        await stand.waits("h", 2)
        await asyncio.to_thread(worker.kill)
        rest = second.responses.retrieve(
            seen[0].response.id, stream=True, starting_after=seen[-1].sequence_number
        )
        reading = asyncio.ensure_future(gathered(await rest, seen))
        await asyncio.to_thread(stand.worker)
        await stand.waits("h", 4)
        stand.stage.open("h")
        assert await asyncio.wait_for(reading, patience(40))
        made = seen[-1].response
        assert [event.sequence_number for event in seen] == list(range(len(seen)))
        text = "".join(
            event.delta
            for event in seen
            if event.type == "response.output_text.delta" and event.item_id == made.output[0].id
        )
        assert made.output_text.startswith(FIRST_WORDS)
        assert text.endswith(made.output_text), "what was said before the worker died, and then all of it"
        assert (await second.responses.retrieve(made.id)).output == made.output
        again = await second.chat.completions.create(
            **asks, messages=[{"role": "user", "content": "go gate:g gate:h"}],
            extra_headers={"Idempotency-Key": "k"},
        )  # fmt: skip
        chunks.clear()
        assert await gathered(again, chunks)
        said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert (said, chunks[-1].choices[0].finish_reason) == (made.output_text, "stop")


def of_openai(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


@pytest.mark.main_path
async def test_sigterm_ends_streams_at_a_cursor_and_the_next_gateway_goes_on(stand):
    port = free_port()
    gateway, url = stand.gateway("--drain", "5", port=port)
    stand.worker()
    api = Api(url)
    async with api.http:
        turn = await api.submit("s", "go gate:g words:20")
        source = EventSource(f"{url}/turns/{turn}/events")
        reading = asyncio.create_task(follow(source))
        await stand.waits("g")
        await wait_until_async(lambda: source.last_id not in ("", "1"))
    assert await asyncio.to_thread(gateway.terminate, 10) == 0
    assert "[draining]" in gateway.output
    assert "Traceback" not in gateway.output
    await asyncio.to_thread(stand.gateway, port=port)
    stand.stage.open("g")
    messages, end = await asyncio.wait_for(reading, patience(30))
    assert end == {}
    assert [int(message.id) for message in messages] == list(range(1, len(messages) + 1))


@pytest.mark.main_path
async def test_keys_and_tokens_appear_in_no_log(stand, tmp_path):
    key = new_key()
    (tmp_path / "keys.toml").write_text(f'[keys.shop]\nhash = "{hash_of(key)}"\ntenant = "acme"\n')
    gateway, url = stand.gateway("--keys", str(tmp_path / "keys.toml"), ANTIPHON_GATEWAY_SECRET=SECRET)
    api = Api(url, key)
    async with api.http:
        turn = await api.submit("s", "hello")
        token = (await api.post("/sessions/s/tokens", {}))["token"]
        await api.post(f"/turns/{turn}/cancel", {})
        assert (await api.http.get(f"/turns/{turn}/events?token={token}")).status_code == 200
        assert (await api.http.get(f"/turns/{turn}/events?token={token}x")).status_code == 401
    await wait_until_async(lambda: gateway.output.count(f"GET /turns/{turn}/events") == 2)
    for secret in (key, token, SECRET, "hello"):
        assert secret not in gateway.output
    assert "No keys are configured" not in gateway.output


@pytest.mark.main_path
def test_without_keys_it_listens_on_this_machine_only_and_says_so(stand):
    gateway, _ = stand.gateway()
    gateway.wait_for_output("No keys are configured")
    for flags in (("--host", "0.0.0.0"), ("--host", "::"), ("--secret", "short"), ("--keys", "/nowhere")):
        done = forks.run([COMMAND, "serve", *flags])
        assert done.returncode == 2, done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr


def test_a_gateway_that_starts_before_its_redis_says_so_and_when_it_is_there(server_kind, processes):
    server = RedisServer(server_kind)
    url = server.url.replace("://", "://default:gehe1m@")
    gateway = processes.start(COMMAND, "serve", "--redis-url", url, "--port", "0", name="serve")
    gateway.wait_for_output("[outage_began]")
    assert "[serving]" in gateway.output
    (line,) = [one for one in gateway.output.splitlines() if "[outage_began]" in one]
    assert f"redis://default:***@127.0.0.1:{server.port}/0: Redis cannot be reached" in line
    with server:
        gateway.wait_for_output("[outage_ended]")
        assert gateway.terminate(20) == 0
    assert gateway.output.count("[outage_began]") == 1
    assert "gehe1m" not in gateway.output


def test_a_gateway_whose_redis_answers_says_nothing_of_it(stand):
    gateway, url = stand.gateway()
    assert httpx2.get(f"{url}/sessions").status_code == 200
    assert gateway.terminate(20) == 0
    assert "outage" not in gateway.output


def said(url: str, sent: bytes, most: int = 65536) -> bytes:
    """What the gateway answers to these bytes, until it closes the connection or is silent for a second."""
    host, port = re.fullmatch(r"http://([\d.]+):(\d+)", url).groups()
    answer = b""
    with socket.create_connection((host, int(port)), timeout=1) as connection:
        connection.sendall(sent)
        try:
            while len(answer) < most and (part := connection.recv(most)):
                answer += part
        except TimeoutError:
            pass
    return answer


@pytest.mark.main_path
def test_requests_that_two_readers_would_read_differently_are_refused(stand):
    """A proxy in front must not see one request where the gateway sees two."""
    _, url = stand.gateway()
    hidden = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    body = b"0\r\n\r\n" + hidden
    head = b"POST /sessions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    for headers in (
        b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n" % len(body),
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: 5, 6\r\n",
        b"Content-Length: +5\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"X: y\rContent-Length: 5\r\n",
    ):
        answer = said(url, head + headers + b"\r\n" + body)
        assert answer.count(b"HTTP/1.1") <= 1, (headers, answer)
        assert b'"status":"ok"' not in answer, (headers, answer)
    twice = b"GET /sessions HTTP/1.1\r\nHost: localhost\r\nHost: evil.example.com\r\n\r\n"
    assert b"HTTP/1.1 2" not in said(url, twice)
    smuggled = b"GET http://evil.example.com/sessions HTTP/1.1\r\nHost: evil.example.com\r\n\r\n"
    assert b"HTTP/1.1 2" not in said(url, smuggled)
    assert b"HTTP/1.1 200" in said(url, hidden)


async def test_a_head_that_comes_slowly_or_is_too_large_ends_its_connection(stand):
    """Without that, a client that sends a byte now and then would hold as many connections as it likes."""
    _, url = stand.gateway()
    host, port = url.removeprefix("http://").split(":")
    begin = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"

    async def ended(*first: bytes) -> float:
        """How long the connection stays open, while a byte comes now and then."""
        reader, writer = await asyncio.open_connection(host, int(port))
        for part in first:
            writer.write(part)
        began = asyncio.get_running_loop().time()

        async def drip() -> None:
            with suppress(OSError):
                while not writer.is_closing():
                    writer.write(b"x")
                    await asyncio.wait([closed], timeout=0.5)

        closed = asyncio.ensure_future(reader.read())
        dripping = asyncio.ensure_future(drip())
        with suppress(OSError):
            await asyncio.wait_for(closed, patience(40))
        writer.close()
        await dripping
        return asyncio.get_running_loop().time() - began

    slow, further, large = await asyncio.gather(
        ended(begin + b"X-A: "),
        ended(begin + b"\r\n", begin + b"X-A: "),
        ended(begin + b"X-A: " + b"a" * 200_000),
    )
    assert 9 < slow < 30
    assert 9 < further < 30
    assert large < 9
    assert b"HTTP/1.1 200" in said(url, begin + b"\r\n")


@pytest.mark.main_path
@pytest.mark.parametrize("program_name", ["ai_sdk.mjs", "ag_ui.mjs"])
async def test_official_clients_end_with_the_whole_answer_though_all_is_killed(stand, program_name):
    gateway, url = stand.gateway()
    _, other = stand.gateway()
    worker = stand.worker()
    async with running(program_name, url, "survive", other) as program, Api(other).http as http:
        await stand.waits("g")
        assert await program.said() == "begun"
        await asyncio.to_thread(gateway.kill)
        assert await program.said() == "lost"
        stand.stage.open("g")
        await stand.waits("h")
        await asyncio.to_thread(worker.kill)
        await asyncio.to_thread(stand.worker)
        await stand.waits("h", 2)
        stand.stage.open("h")
        texts = await program.said()
        history = (await http.get("/sessions/k/messages")).json()["messages"]
    assert [message["role"] for message in history] == ["user", "assistant"]
    assert texts == [history[1]["parts"][0]["text"]]
    assert texts[0].startswith(FIRST_WORDS)


async def test_a_reader_that_takes_nothing_harms_only_itself(stand):
    gateway, url = stand.gateway()
    stand.worker()
    host, port = url.removeprefix("http://").split(":")
    api = Api(url)
    async with api.http:
        turn = await api.submit("s", "go gate:g words:200")
        await stand.waits("g")
        slow = []
        for _ in range(20):  # they ask, and read nothing
            connection = socket.create_connection((host, int(port)))
            connection.sendall(b"GET /turns/%s/events HTTP/1.1\r\nHost: localhost\r\n\r\n" % turn.encode())
            slow.append(connection)
        reading = asyncio.create_task(follow(EventSource(f"{url}/turns/{turn}/events")))
        stand.stage.open("g")
        messages, _ = await asyncio.wait_for(reading, patience(30))
        assert json.loads(messages[-1].data)["type"] == "turn_finished"
        for connection in slow:
            connection.close()
    assert await asyncio.to_thread(gateway.terminate, 15) == 0


def test_an_idle_connection_stays_open_and_the_header_tells_for_how_long(stand):
    _, url = stand.gateway()
    with httpx2.Client(base_url=url) as client:
        for _ in range(3):
            assert client.get("/health").headers["keep-alive"] == "timeout=75"
    one = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert said(url, one * 3).count(b"HTTP/1.1 200") == 3, "on one connection"
    closing = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert said(url, closing + one).count(b"HTTP/1.1 200") == 1, "which the client may close"
