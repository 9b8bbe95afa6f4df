"""The pool of connections: what is reused, how long is waited, and that room is given back once, whatever happens."""

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from support.eventually import patience, wait_until_async
from support.services.conversation import KINDS, answer, body, hear, result, said, serve
from support.services.raw_server import RawConnection, RawServer, answering, begun, chunked, deaf, direct
from support.services.wire_server import Reply, WireServer

from antiphon.errors import ProviderRejected, ProviderTimedOut, ProviderUnreachable
from antiphon_worker.providers.http import http1, transport
from antiphon_worker.providers.http.transport import DirectTransport

pytestmark = pytest.mark.usefixtures("any_loop")
CERTIFICATE = Path(__file__).parent / "certificates" / "localhost.pem"
OK = b"HTTP/1.1 200 OK\r\n"
HI = OK + b"content-length: 2\r\n\r\nHi"


@pytest.fixture
def tls(monkeypatch) -> ssl.SSLContext:
    """A server's side of TLS, for localhost; clients trust it."""
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE)
    return context


def by_name(server: RawServer) -> str:
    """The server's URL, with the name that its certificate has."""
    return server.url.replace("127.0.0.1", "localhost")


# ---- reuse ----------------------------------------------------------------------------------------------------


async def test_requests_after_each_other_share_a_connection():
    async with RawServer(answering(HI)) as server, direct() as client:
        for _ in range(10):
            assert (await client.post(server.url, content=b"{}")).text == "Hi"
        assert len(server.connections) == 1


async def test_the_connection_that_was_used_last_is_used_next():
    gates = [asyncio.Event() for _ in range(3)]

    async def play(connection: RawConnection) -> None:
        while True:
            await connection.request()
            await gates[connection.number - 1].wait()
            await connection.send(HI)

    async with RawServer(play) as server, direct() as client:
        answers = [asyncio.create_task(client.post(server.url, content=b"{}")) for _ in range(3)]
        await wait_until_async(lambda: len(server.requests) == 3)
        for number in (1, 3, 2):
            gates[number - 1].set()
            await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
            answers = [answer for answer in answers if not answer.done()]
        for _ in range(3):
            await client.post(server.url, content=b"{}")
        assert [len(one.requests) for one in server.connections] == [1, 4, 1]


async def test_a_connection_whose_reader_had_stopped_is_read_again_by_the_next_request():
    go_on = asyncio.Semaphore(0)

    async def play(connection: RawConnection) -> None:
        while True:
            await connection.request()
            await connection.send(OK + b"content-length: 2\r\n\r\n")
            await go_on.acquire()
            await connection.send(b"Hi")

    async with RawServer(play) as server, direct() as client:
        for _ in range(3):
            _, exchange = await begun(client, server.url)
            reading = asyncio.create_task(exchange.into(lambda _: False))
            await asyncio.sleep(0)
            go_on.release()
            assert await reading, "that was all"
        assert len(server.connections) == 1


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nHi",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nHi",
    ],
)
async def test_a_connection_that_the_service_will_close_is_not_used_again(reply):
    async with RawServer(answering(reply)) as server, direct() as client:
        for _ in range(3):
            assert (await client.post(server.url, content=b"{}")).text == "Hi"
        assert [number for number, _, _ in server.requests] == [1, 2, 3]


async def test_http_1_0_keeps_a_connection_where_it_says_so():
    reply = b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nHi"
    async with RawServer(answering(reply)) as server, direct() as client:
        for _ in range(3):
            await client.post(server.url, content=b"{}")
        assert len(server.connections) == 1


async def test_a_connection_that_the_service_closed_meanwhile_is_no_error():
    async with RawServer(answering(HI, then_close=True)) as server, direct() as client:
        for number in (1, 2, 3):
            assert (await client.post(server.url, content=b"{}")).text == "Hi"
            assert len(server.connections) == number
            await wait_until_async(lambda: not pool_of(client)._origins)


async def test_a_connection_that_was_closed_while_the_loop_was_busy_is_no_error_either():
    with serving_elsewhere() as (url, closed):
        async with direct() as client:
            for _ in range(3):
                assert (await client.post(url, content=b"{}")).text == "Hi"
                assert closed.wait(10)  # this loop does nothing meanwhile: it cannot know
                closed.clear()


@contextlib.contextmanager
def serving_elsewhere() -> Generator[tuple[str, threading.Event]]:
    """A server in a thread of its own, which answers one request a connection and closes it."""
    listener = socket.create_server(("127.0.0.1", 0))
    closed = threading.Event()

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(HI)
                closed.set()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/", closed
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


async def test_a_connection_that_still_holds_a_part_of_a_request_is_not_used_again():
    async def play(connection: RawConnection) -> None:
        await connection.head()
        await connection.send(HI)
        await connection.closed()

    async with RawServer(play, limit=65536) as server, direct() as client:
        for number in (1, 2):
            assert (await client.post(server.url, content=b"x" * 30_000_000)).text == "Hi"
            assert len(server.connections) == number


async def test_connections_to_one_host_make_way_for_those_to_another():
    async with RawServer(answering(HI)) as one, RawServer(answering(HI)) as other, direct(most=2) as client:
        for server in (one, other):
            await asyncio.gather(*(client.post(server.url, content=b"{}") for _ in range(2)))
        await wait_until_async(lambda: one.open + other.open <= 2)
        assert other.open == 2


async def test_a_silent_connection_shows_that_it_lives():
    async with RawServer(answering(HI)) as server, direct() as client:
        await client.post(server.url, content=b"{}")
        (connection,) = pool_of(client)._origins
        option = connection.transport.get_extra_info("socket").getsockopt
        assert option(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert option(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        if hasattr(socket, "TCP_KEEPIDLE"):
            assert option(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60


# ---- room -----------------------------------------------------------------------------------------------------

MOST = 2


def pool_of(client: httpx2.AsyncClient) -> DirectTransport:
    found = client._transport
    assert isinstance(found, DirectTransport)
    return found


class Stage:
    """A server that does what the path of a request says, and a client with room for two."""

    def __init__(self, server: RawServer, client: httpx2.AsyncClient, hung: list[bytes], dead: int) -> None:
        self.url = server.url
        self.server = server
        self.client = client
        self.pool = pool_of(client)
        self.hung = hung
        self.dead = f"http://127.0.0.1:{dead}/"

    def send(self, path: str, **extra: Any) -> Any:
        return self.client.send(
            self.client.build_request("POST", self.url + path, content=b"{}", **extra), stream=True
        )

    async def into(self, path: str, take: Callable[[bytes], bool] = lambda _: True) -> None:
        response, exchange = await begun(self.client, self.url + path)
        try:
            while not await exchange.into(take):
                continue
        finally:
            await response.aclose()

    async def cancelled_once(self, work: Awaitable[Any], hangs: bool = True) -> None:
        """Run it until the server has its request, and cancel it there."""
        before = len(self.hung)
        task = asyncio.ensure_future(work)
        if hangs:
            await wait_until_async(lambda: len(self.hung) > before)
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


REPLIES = {
    b"/": [HI],
    b"/close": [b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nHi"],
    b"/early": [HI],
    b"/garbage": [b"SSH-2.0\r\n"],
    b"/cut-head": [b"HTTP/1.1 200 O"],
    b"/cut-body": [OK + b"content-length: 5\r\n\r\nHell"],
    b"/no-answer": [],
    b"/hang": [],
    b"/hang-body": [OK + b"content-length: 5\r\n\r\nHell"],
    b"/101": [b"HTTP/1.1 101 Now\r\n\r\n"],
}


@asynccontextmanager
async def staged() -> AsyncGenerator[Stage]:
    hung: list[bytes] = []

    async def play(connection: RawConnection) -> None:
        while True:
            head, _ = await connection.request()
            path = head.split()[1]
            await connection.send(*REPLIES[path])
            if path.startswith(b"/hang"):
                hung.append(path)
                await connection.closed()
                return
            if path.startswith((b"/cut", b"/no")):
                return

    with deaf() as port:
        async with RawServer(play) as server, direct(most=MOST, timeout=None, pool=None) as client:
            yield Stage(server, client, hung, port)


def refuse(_piece: bytes) -> bool:
    raise ValueError("mine")


async def stop_at_once(stage: Stage) -> None:
    response, exchange = await begun(stage.client, stage.url + "hang-body")
    assert not await exchange.into(lambda _: False)
    await response.aclose()
    await response.aclose()
    await exchange.aclose()


async def leave_an_iteration(stage: Stage) -> None:
    response = await stage.send("hang-body")
    async for _ in response.aiter_bytes():
        break
    await response.aclose()


async def answer_before_the_request_is_over(stage: Stage) -> None:
    async def early(connection: RawConnection) -> None:
        await connection.head()
        await connection.send(HI)
        await connection.closed()

    async with RawServer(early) as server:
        response = await stage.client.post(server.url, content=b"x" * 30_000_000)
        assert response.text == "Hi"


async def time_out(stage: Stage, path: str) -> None:
    request = stage.client.build_request("POST", stage.url + path, content=b"{}", timeout=0.02)
    response = await stage.client.send(request, stream=True)
    await response.aread()


async def cancel_a_waiter(stage: Stage) -> None:
    """Each way round: before there is room for it, and when there is but it has not noticed."""
    held = [await stage.send("hang-body") for _ in range(MOST)]
    await stage.cancelled_once(stage.send(""), hangs=False)
    late = asyncio.ensure_future(stage.send(""))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await held[0].aclose()
    late.cancel()
    with pytest.raises(asyncio.CancelledError):
        await late
    await held[1].aclose()


async def wait_too_long_for_room(stage: Stage) -> None:
    held = [await stage.send("hang-body") for _ in range(MOST)]
    request = stage.client.build_request("POST", stage.url, timeout=httpx2.Timeout(None, pool=0.01))
    with pytest.raises(httpx2.PoolTimeout, match=r"0\.01 s"):
        await stage.client.send(request)
    for response in held:
        await response.aclose()


async def request_where_nobody_answers(stage: Stage) -> None:
    request = stage.client.build_request("POST", stage.dead, timeout=httpx2.Timeout(None, connect=0.02))
    with pytest.raises(httpx2.ConnectTimeout, match="did not answer"):
        await stage.client.send(request)


async def cancel_a_handshake(stage: Stage) -> None:
    accepted = asyncio.Event()

    async def silent(connection: RawConnection) -> None:
        await connection.reader.read(1)
        accepted.set()
        await connection.closed()

    async with RawServer(silent) as server:
        url = server.url.replace("http:", "https:")
        task = asyncio.ensure_future(stage.client.post(url))
        await accepted.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await wait_until_async(lambda: not server.open)


WAYS: dict[str, Callable[[Stage], Awaitable[Any]]] = {
    "finished": lambda stage: stage.into(""),
    "finished and closed": lambda stage: stage.into("close"),
    "answered early": answer_before_the_request_is_over,
    "take raises": lambda stage: stage.into("hang-body", refuse),
    "cancelled while it connects": lambda stage: stage.cancelled_once(stage.client.post(stage.dead), hangs=False),
    "cancelled in its handshake": cancel_a_handshake,
    "cancelled before the head": lambda stage: stage.cancelled_once(stage.send("hang")),
    "cancelled in the body": lambda stage: stage.cancelled_once(stage.into("hang-body")),
    "closed in the middle": stop_at_once,
    "an iteration is left": leave_an_iteration,
    "no answer": lambda stage: stage.send("no-answer"),
    "cut in the head": lambda stage: stage.send("cut-head"),
    "cut in the body": lambda stage: stage.into("cut-body"),
    "garbage": lambda stage: stage.send("garbage"),
    "another protocol": lambda stage: stage.send("101"),
    "silent before the head": lambda stage: time_out(stage, "hang"),
    "silent in the body": lambda stage: time_out(stage, "hang-body"),
    "no room": wait_too_long_for_room,
    "a waiter is cancelled": cancel_a_waiter,
    "nobody answers": request_where_nobody_answers,
    "a header with a line break": lambda stage: stage.send("", headers={"x-a": "b\r\nc: d"}),
    "no http": lambda stage: stage.client.post("ftp://127.0.0.1/"),
    "no host": lambda stage: stage.client.post("http:///a"),
    "nobody there": lambda stage: stage.client.post("http://127.0.0.1:1/"),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
async def test_room_is_given_back_once_however_a_request_ends(way):
    async with staged() as stage:
        for _ in range(MOST + 1):
            with suppress(httpx2.HTTPError, ValueError):
                await WAYS[way](stage)
            assert stage.pool._room._value == MOST
        waiting = [asyncio.create_task(stage.into("hang-body")) for _ in range(MOST + 1)]
        before = len(stage.hung)
        await wait_until_async(lambda: len(stage.hung) >= before + MOST - len(stage.hung[before:]))
        await wait_until_async(lambda: stage.server.open == MOST)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await asyncio.wait_for(asyncio.gather(*(stage.into("") for _ in range(3 * MOST))), patience(5))
        assert stage.server.most_open <= MOST + 1  # one that is being closed may still be there
        await wait_until_async(lambda: len(stage.pool._origins) <= MOST)


async def test_closing_ends_all_that_is_under_way_with_an_error():
    async with staged() as stage:
        response, exchange = await begun(stage.client, stage.url + "hang-body")
        reading = asyncio.create_task(exchange.into(lambda _: True))
        beginning = asyncio.create_task(stage.send("hang"))
        waiting = asyncio.create_task(stage.send(""))
        await wait_until_async(lambda: len(stage.hung) == 2)
        await stage.pool.aclose()
        for task in (reading, beginning, waiting):
            with pytest.raises(httpx2.TransportError, match="The connections were closed"):
                await asyncio.wait_for(task, patience(5))
        await wait_until_async(lambda: not stage.server.open)
        assert stage.pool._room._value == MOST
        await response.aclose()


async def test_a_connection_that_is_there_after_closing_is_closed(monkeypatch):
    async with staged() as stage:
        connecting = asyncio.create_task(stage.send(""))
        await wait_until_async(lambda: stage.pool._room._value == MOST - 1, interval=0)
        assert not stage.pool._origins
        await stage.pool.aclose()
        with pytest.raises(httpx2.ConnectError, match="closed"):
            await connecting
        await wait_until_async(lambda: not stage.server.open)
        assert stage.pool._room._value == MOST


# ---- time -----------------------------------------------------------------------------------------------------


class Clock:
    """The time of the connections of a test, which passes when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: dict[object, tuple[float, Callable[..., object]]] = {}

    def time(self) -> float:
        return self.now

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    def call_later(self, seconds: float, callback: Callable[..., object]) -> Any:
        timer = object()
        self.timers[timer] = (self.now + seconds, callback)
        return SimpleNamespace(cancel=lambda: self.timers.pop(timer, None))

    def pass_(self, seconds: float) -> None:
        """Let time pass, and the timers ring that are due."""
        until = self.now + seconds
        while self.timers and min(due for due, _ in self.timers.values()) <= until:
            timer = min(self.timers, key=lambda timer: self.timers[timer][0])
            self.now, callback = self.timers.pop(timer)
            callback()
        self.now = until


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    names = {name: getattr(asyncio, name) for name in ("Protocol", "Transport", "Future", "TimerHandle")}
    monkeypatch.setattr(http1, "asyncio", SimpleNamespace(**names, get_running_loop=lambda: clock))
    return clock


async def goes_on(task: asyncio.Task[Any]) -> None:
    """What the time that has passed has brought about is known; a task has not ended of it."""
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()


async def test_a_service_that_is_silent_is_given_up_before_its_head(clock):
    async with staged() as stage:
        request = stage.client.build_request("POST", stage.url + "hang", timeout=30)
        sending = asyncio.create_task(stage.client.send(request))
        await wait_until_async(lambda: stage.hung)
        clock.pass_(29.9)
        await goes_on(sending)
        clock.pass_(0.2)
        with pytest.raises(httpx2.ReadTimeout, match="30 s"):
            await sending
        assert clock.timers == {}


async def test_pieces_that_come_in_time_keep_an_answer_alive_and_silence_ends_it(clock):
    more = asyncio.Semaphore(0)

    async def play(connection: RawConnection) -> None:
        await connection.request()
        await connection.send(OK + b"transfer-encoding: chunked\r\n\r\n")
        while True:
            await more.acquire()
            await connection.send(b"1\r\na\r\n")

    async with RawServer(play) as server, direct(timeout=30.0) as client:
        _, exchange = await begun(client, server.url)
        taken: list[bytes] = []
        reading = asyncio.create_task(exchange.into(lambda piece: bool(taken.append(piece)) or True))
        for number in range(1, 11):
            clock.pass_(29.9)
            more.release()
            await wait_until_async(lambda: len(taken) == number)  # noqa: B023
        clock.pass_(29.9)
        await goes_on(reading)
        clock.pass_(0.2)
        with pytest.raises(httpx2.ReadTimeout):
            await reading
        assert clock.timers == {}


async def test_a_reader_that_has_stopped_has_all_the_time_it_wants(clock):
    more = asyncio.Semaphore(0)

    async def play(connection: RawConnection) -> None:
        await connection.request()
        await connection.send(OK + b"content-length: 3\r\n\r\n")
        while True:
            await more.acquire()
            await connection.send(b"a")

    async with RawServer(play) as server, direct(timeout=30.0) as client:
        _, exchange = await begun(client, server.url)
        for _ in range(2):
            reading = asyncio.create_task(exchange.into(lambda _: False))
            await asyncio.sleep(0)
            more.release()
            assert not await reading
            clock.pass_(1000)
        reading = asyncio.create_task(exchange.into(lambda _: True))
        await asyncio.sleep(0)
        clock.pass_(29.9)
        await goes_on(reading)
        clock.pass_(30.2)  # now it is the service that is silent
        with pytest.raises(httpx2.ReadTimeout):
            await reading


async def test_a_pause_is_no_silence_of_the_service(clock):
    async def play(connection: RawConnection) -> None:
        await connection.request()
        await connection.send(OK + b"content-length: 2\r\n\r\na")
        await connection.closed()

    async with RawServer(play) as server, direct(timeout=30.0) as client:
        _, exchange = await begun(client, server.url)
        reading = asyncio.create_task(exchange.into(lambda _: True))
        await asyncio.sleep(0)
        exchange.pause()
        clock.pass_(1000)
        await goes_on(reading)
        exchange.resume()
        clock.pass_(60.1)
        with pytest.raises(httpx2.ReadTimeout):
            await reading


@pytest.mark.parametrize("over", ["tcp", "tls"])
async def test_a_service_that_reads_slowly_is_alive_and_one_that_stops_is_not(clock, tls, over):
    go_on = asyncio.Semaphore(0)
    content = b"x" * 60_000_000

    async def play(connection: RawConnection) -> None:
        await connection.head()
        while True:
            await go_on.acquire()
            await connection.reader.readexactly(3_000_000)

    secure = tls if over == "tls" else None
    async with RawServer(play, tls=secure, limit=65536) as server, direct(timeout=30.0) as client:
        sending = asyncio.create_task(client.post(by_name(server), content=content))
        await wait_until_async(lambda: pool_of(client)._origins)
        (connection,) = pool_of(client)._origins
        await wait_until_async(lambda: connection._exchange is not None)
        await at_rest(lambda: connection.unsent)
        for _ in range(8):
            before = connection.unsent
            clock.pass_(29.9)
            await goes_on(sending)
            go_on.release()
            await wait_until_async(lambda: connection.unsent < before)  # noqa: B023
            await at_rest(lambda: connection.unsent)
        assert connection.unsent > 1_000_000
        clock.pass_(61)
        with pytest.raises(httpx2.ReadTimeout):
            await sending
        assert clock.timers == {}


async def at_rest(amount: Callable[[], int]) -> None:
    """Return when an amount changes no more."""
    last, count = -1, 0
    while count < 200:
        now = amount()
        last, count = now, count + 1 if now == last else 0
        await asyncio.sleep(0)


async def test_an_idle_connection_is_closed_after_its_time_and_not_before(clock):
    async with RawServer(answering(HI)) as server, direct(keepalive=30.0) as client:
        for _ in range(3):
            await client.post(server.url, content=b"{}")
            clock.pass_(29)
        await client.post(server.url, content=b"{}")
        assert len(server.connections) == 1
        clock.pass_(30)
        await wait_until_async(lambda: not server.open)
        await client.post(server.url, content=b"{}")
        assert len(server.connections) == 2


@pytest.mark.parametrize("way", [way for way in WAYS if not way.startswith("silent")])
async def test_no_timer_is_left_behind(way, clock):
    async with staged() as stage:
        stage.client.timeout = httpx2.Timeout(60, pool=None, connect=None)
        with suppress(httpx2.HTTPError, ValueError):
            await WAYS[way](stage)
        await wait_until_async(lambda: len(stage.pool._origins) == len(clock.timers))
        resting = [one for idle in stage.pool._idle.values() for one in idle]
        assert len(clock.timers) == len(resting)
        await stage.pool.aclose()
        await wait_until_async(lambda: not clock.timers)


# ---- TLS and names --------------------------------------------------------------------------------------------


async def test_the_certificates_of_the_environment_are_trusted(tls):
    async with RawServer(answering(HI), tls=tls) as server, direct() as client:
        for _ in range(3):
            assert (await client.post(by_name(server), content=b"{}")).text == "Hi"
        assert len(server.connections) == 1
        await pool_of(client).aclose()
        await wait_until_async(lambda: not server.open)


async def test_the_name_of_the_host_is_sent_in_the_handshake(tls):
    names: list[str | None] = []
    tls.sni_callback = lambda _socket, name, _context: names.append(name)
    async with RawServer(answering(HI), tls=tls) as server, direct() as client:
        await client.post(by_name(server), content=b"{}")
        await pool_of(client).aclose()
    async with RawServer(answering(HI), tls=tls) as server, direct() as client:
        extensions = {"sni_hostname": "localhost"}
        await client.post(server.url, content=b"{}", extensions=extensions)
    assert names == ["localhost", "localhost"]


async def test_a_service_that_offers_more_speaks_http_1_1(tls):
    tls.set_alpn_protocols(["h2", "http/1.1"])
    async with RawServer(answering(HI), tls=tls) as server, direct() as client:
        assert (await client.post(by_name(server), content=b"{}")).text == "Hi"
        chosen = server.connections[0].writer.get_extra_info("ssl_object").selected_alpn_protocol()
        assert chosen == "http/1.1"


@pytest.mark.parametrize(
    ("host", "trusted", "said"),
    [
        ("127.0.0.1", True, "not valid for '127.0.0.1'"),
        ("localhost", False, "self.signed certificate"),
    ],
)
async def test_a_certificate_that_does_not_fit_is_an_error_that_says_why(
    tls, monkeypatch, host, trusted, said
):
    if not trusted:
        monkeypatch.delenv("SSL_CERT_FILE")
    asyncio.get_running_loop().set_exception_handler(None)  # the server's half of the handshake complains
    async with RawServer(answering(HI), tls=tls) as server, direct() as client:
        url = server.url.replace("127.0.0.1", host)
        with pytest.raises(httpx2.ConnectError, match=said):
            await client.post(url, content=b"{}")


@pytest.mark.parametrize("kind", KINDS)
async def test_certificates_that_cannot_be_read_are_named(kind, monkeypatch, tmp_path):
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing.pem"))
    provider = serve(kind, "https://127.0.0.1:1")
    with pytest.raises(ProviderUnreachable, match="SSL_CERT_FILE"):
        await hear(provider)
    await provider.aclose()


async def test_a_service_that_speaks_no_tls_is_an_error():
    async def play(connection: RawConnection) -> None:
        await connection.reader.read(1)
        await connection.send(b"HTTP/1.1 400 What?\r\n\r\n")

    async with RawServer(play) as server, direct() as client:
        with pytest.raises(httpx2.ConnectError):
            await client.post(server.url.replace("http:", "https:"), content=b"{}")
        await wait_until_async(lambda: not server.open)


@pytest.mark.parametrize("head", [b"\r\n", b"connection: close\r\n\r\n"])
async def test_a_body_over_tls_may_end_without_a_farewell(tls, head):
    async def play(connection: RawConnection) -> None:
        await connection.request()
        await connection.send(OK + head + b"Hello")
        connection.writer.transport.abort()

    async with RawServer(play, tls=tls) as server, direct() as client:
        assert (await client.post(by_name(server), content=b"{}")).text == "Hello"


async def test_a_body_over_tls_that_lacks_its_end_is_an_error(tls):
    async def play(connection: RawConnection) -> None:
        await connection.request()
        await connection.send(OK + b"content-length: 6\r\n\r\nHello")
        connection.writer.transport.abort()

    async with RawServer(play, tls=tls) as server, direct() as client:
        with pytest.raises(httpx2.RemoteProtocolError, match="before the answer's end"):
            await client.post(by_name(server), content=b"{}")


async def test_a_reader_over_tls_that_stops_gets_all_that_was_sent_before_the_end(tls):
    data = b"".join(b"%07d\n" % number for number in range(200_000))

    async def play(connection: RawConnection) -> None:
        await connection.request()
        connection.writer.write(OK + b"content-length: %d\r\n\r\n" % len(data) + data)
        await connection.writer.drain()
        connection.close()

    async with RawServer(play, tls=tls) as server, direct() as client:
        _, exchange = await begun(client, by_name(server))
        taken: list[bytes] = []
        while not await exchange.into(lambda piece: bool(taken.append(piece))):
            continue
        assert b"".join(taken) == data


async def test_a_long_body_over_tls_arrives_as_it_is(tls):
    content = b"".join(b"%09d," % number for number in range(500_000))
    async with RawServer(answering(chunked(b"ok")), tls=tls) as server, direct() as client:
        for _ in range(2):
            assert (await client.post(by_name(server), content=content)).text == "ok"
        assert [body == content for _, _, body in server.requests] == [True, True]
        assert len(server.connections) == 1


async def test_ipv6_hosts_are_reached():
    try:
        server = await RawServer(answering(HI), host="::1").__aenter__()
    except OSError:
        pytest.skip("this machine has no IPv6")
    async with direct() as client:
        assert (await client.post(server.url, content=b"{}")).text == "Hi"
        assert b"host: [::1]:%d\r\n" % server.port in server.requests[0][1].lower()
    await server.__aexit__()


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://service.example/v1", ("http", "service.example", 80)),
        ("https://service.example/v1", ("https", "service.example", 443)),
        ("https://service.example:8443/v1", ("https", "service.example", 8443)),
        ("https://dienst.exämple/v1", ("https", "dienst.xn--exmple-cua", 443)),
        ("http://[::1]:8080/", ("http", "::1", 8080)),
    ],
)
async def test_where_a_url_leads(url, origin):
    assert transport._origin(httpx2.Request("POST", url)) == origin


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("ftp://127.0.0.1", ProviderRejected),
        ("127.0.0.1:80", ProviderRejected),
        ("http://", ProviderRejected),
        (f"http://{'a' * 64}.example", ProviderRejected),
        ("http://127.0.0.1:1", ProviderUnreachable),
    ],
)
async def test_a_base_url_that_leads_nowhere_is_one_error_that_names_it(kind, url, error):
    provider = serve(kind, url)
    with pytest.raises(error, match="base_url"):
        await hear(provider)
    await provider.aclose()


# ---- requests -------------------------------------------------------------------------------------------------


async def test_a_request_is_sent_as_it_was_made():
    async with RawServer(answering(HI)) as server, direct() as client:
        headers = [("X-One", "1"), ("X-One", "2"), ("x-latin", "caf\xe9".encode("latin-1"))]
        await client.post(server.url + "a%20b?q=%C3%A4&r", content=b"body", headers=headers)
        ((_, head, body),) = server.requests
        assert head.startswith(b"POST /a%20b?q=%C3%A4&r HTTP/1.1\r\n")
        assert b"\r\nX-One: 1\r\nX-One: 2\r\nx-latin: caf\xe9\r\n" in head
        assert head.lower().count(b"\r\nhost: 127.0.0.1:%d\r\n" % server.port) == 1
        assert body == b"body"


async def test_a_body_that_comes_piece_by_piece_is_sent_whole():
    async def pieces() -> AsyncGenerator[bytes]:
        yield b"Hel"
        yield b"lo"

    async with RawServer(answering(HI)) as server, direct() as client:
        await client.post(server.url, content=pieces())
        ((_, head, body),) = server.requests
        assert b"transfer-encoding" not in head.lower()
        assert body == b"Hello"


@pytest.mark.parametrize("header", [("x-a", "b\r\nc: d"), ("x-a", "b\nc"), ("x-a\r\nb", "c"), ("x-a", "b\0")])
async def test_a_header_that_would_be_two_is_not_sent(header):
    async with RawServer(answering(HI)) as server, direct() as client:
        with pytest.raises(ValueError, match="header"):
            await client.post(server.url, headers=[header])
        assert not server.connections


@pytest.mark.parametrize("kind", KINDS)
async def test_a_header_that_cannot_be_sent_is_refused(kind):
    provider = serve(kind, "http://127.0.0.1:1", headers={"x-a": "b\r\nc: d"})
    with pytest.raises(ProviderRejected, match="headers"):
        await hear(provider)
    await provider.aclose()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_redirect_is_followed_with_its_body(kind):
    async with WireServer(said(kind, "There")) as there:
        reply = Reply([b"gone"], 307, "text/plain")
        async with WireServer(reply) as here:
            provider = serve(kind, here.url)
            path = "/v1/messages" if kind == "anthropic" else "/v1/chat/completions"
            reply.headers["location"] = f"{there.url}{path}"
            assert result(await hear(provider)).message.text == "There"
            assert there.seen[0].body == here.seen[0].body is not None
            await provider.aclose()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_turn_that_is_cancelled_in_its_answer_closes_the_connection(kind):
    data = body(kind, answer(kind, "Hello", " world"))
    async with WireServer(Reply([data[: len(data) // 2]], then="hang")) as server:
        provider = serve(kind, server.url)
        hearing = asyncio.create_task(hear(provider))
        await server.held.wait()
        hearing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hearing
        await wait_until_async(lambda: not server.open)
        await provider.aclose()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_service_that_does_not_accept_is_a_time_out(kind):
    with deaf() as port:
        provider = serve(kind, f"http://127.0.0.1:{port}", connect_timeout=0.02)
        with pytest.raises(ProviderTimedOut):
            await hear(provider)
        await provider.aclose()


@pytest.mark.parametrize("encrypted", [False, True])
async def test_when_it_is_closed_its_sockets_are(encrypted, tls):
    async with RawServer(answering(HI), tls=tls if encrypted else None) as server, direct() as client:
        await client.post(by_name(server) if encrypted else server.url, content=b"{}")
        pool: Any = client._transport
        (connection,) = pool._origins
        own = connection.transport.get_extra_info("socket")
        assert own.fileno() >= 0
        await client.aclose()
        assert own.fileno() < 0
