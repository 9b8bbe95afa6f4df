"""The peers that Antiphon is compared with: what their modules do, how a stream is read, and what they need."""

import asyncio
import json
import subprocess
import sys

import pytest
from aiohttp import ClientSession, web
from bench.peers import services
from bench.peers.catalogue import DURABLE, PEERS, SERVERS, Peer, missing
from bench.peers.comparison import Found, _try
from bench.peers.driver import CONCURRENCY, WAVES
from bench.peers.services import surroundings, wait_until_it_listens
from bench.peers.sse import events
from bench.results import Plan
from bench.stand import MODULES
from support.network import free_port

SILENT = "turn-3"
CALLER = f"""
from bench.peers.driver import drive
running = most = 0
async def streamer():
    async def stream(session, text):
        global running, most
        running += 1
        most = max(most, running)
        await __import__("asyncio").sleep(0)
        if not (session == "{SILENT}" and SILENT_ONE):
            yield text
        running -= 1
        print(most)
    return stream
drive(lambda: print("working"), streamer=streamer)
"""


def run(*argv: str, silent: bool = False) -> subprocess.CompletedProcess[str]:
    code = CALLER.replace("SILENT_ONE", str(silent))
    env = {"PYTHONPATH": MODULES, "REDIS_URL": "redis://127.0.0.1:1"}
    return subprocess.run(
        [sys.executable, "-c", code, *argv], capture_output=True, text=True, env=env, check=False
    )


def test_a_caller_keeps_turns_in_flight_and_reports_each_end():
    number = CONCURRENCY * WAVES + 1
    lines = run("flow", "3", str(number)).stdout.splitlines()
    report = json.loads(lines[-1])
    assert (len(report["first"]), len(report["ends"])) == (3, number)
    assert lines[-2] == str(CONCURRENCY)
    assert report["ends"] == sorted(report["ends"])


def test_a_short_run_has_fewer_turns_in_flight():
    lines = run("flow", "1", "20").stdout.splitlines()
    assert lines[-2] == str(20 // WAVES)


def test_a_turn_without_a_delta_fails_the_measurement():
    done = run("flow", "1", "20", silent=True)
    assert done.returncode != 0
    assert f"RuntimeError: {SILENT} has ended without a delta" in done.stderr


def test_a_peer_without_a_queue_is_handed_nothing_in_advance():
    assert run("worker").stdout == "working\n"
    done = run("submit", "1", "turn-", "hi")
    assert done.returncode != 0
    assert "``submit NUMBER PREFIX TEXT``" in done.stderr


STREAM = b": ping\n\nevent: RunStarted\ndata: {}\n\nevent: RunContent\ndata: one\n\nevent: RunContent\ndata: two\n\n"


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [(200, STREAM, ""), (200, b"event: RunError\ndata: no model\n\n", "no model"), (500, b"", "500")],
)
async def test_the_wanted_events_of_a_stream_are_read_and_errors_raised(status, body, error):
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, body=body, content_type="text/event-stream")

    app = web.Application()
    app.router.add_post("/runs", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        async with ClientSession(f"http://127.0.0.1:{port}") as http:
            reading = events(http, "/runs", b"RunContent")
            if error:
                with pytest.raises(Exception, match=error):
                    await anext(reading)
            else:
                assert [data async for data in reading] == [b"one", b"two"]
    finally:
        await runner.cleanup()


def test_a_peer_whose_database_is_not_installed_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(services, "postgres_binaries", lambda: None)
    with pytest.raises(RuntimeError, match="apt-get install postgresql"), surroundings(DURABLE[0], None):
        pass


def test_a_server_that_ends_is_not_waited_for(processes):
    server = processes.python("-c", "print('no licence')")
    with pytest.raises(AssertionError, match="has ended"):
        wait_until_it_listens(server, free_port(), 20)


async def test_a_peer_that_cannot_be_installed_is_not_started():
    found = Found()
    peer = Peer("no such peer", "no_such_peer", "no-such-package")
    await asyncio.to_thread(
        _try, found, {"no_such_peer": "not installed: no network"}, Plan(1), peer, 10, True
    )
    assert (found.rates, found.failed) == ([], ["not installed: no network"])


def test_each_peer_is_declared_once():
    names = [peer.name for peer in PEERS]
    assert len(names) == len(set(names))
    assert all(peer.server == ("in flight" in peer.name) for peer in PEERS)


@pytest.mark.nightly
@pytest.mark.parametrize("peer", [*DURABLE, *SERVERS], ids=lambda peer: peer.module)
async def test_a_peer_does_the_work(peer):
    if why := missing().get(peer.module):
        pytest.skip(f"{peer.name} is {why}: `make bench ARGS=peers` installs it")
    found = Found()
    await asyncio.to_thread(_try, found, {}, Plan(1, quick=True), peer, 40, True)
    assert not found.failed
    assert (len(found.rates), len(found.first_ms)) == (1, 1)
    assert found.rates[0] > 0
