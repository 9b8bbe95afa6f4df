"""When the supervisor fills the place of a process that has ended, and how soon."""

import asyncio
import signal
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest
from redis import Redis
from support.eventually import wait_until_async
from support.network import free_port
from support.replacing import replace_here
from support.servers import RedisServer
from support.stage import Stage

from antiphon.client import Client
from antiphon_worker.settings import Settings
from antiphon_worker.supervisor.supervisor import Supervisor
from antiphon_worker.supervisor.watchdog import State


class Kept:
    """What is kept ready, as a number."""

    def __init__(self):
        self.times = 0

    def keep(self):
        self.times += 1


class Lives(Supervisor):
    """Its processes end as the test says: with these exit codes, and with so many turns in their hands."""

    def __init__(self, codes, held=0):
        super().__init__(Settings())
        self._codes = list(codes)
        self._held = held
        self.handed_back = 0
        self._spares = self.kept = Kept()

    async def _run_one(self, url):
        code = self._codes.pop(0)
        if isinstance(code, OSError):
            raise code
        states = {0: State.DONE, 2: State.LOADING}
        return SimpleNamespace(name="any", stalled=False, state=states.get(code, State.SERVING)), code

    async def _end_all(self, drain_seconds):
        return

    async def _hand_back(self, url, name, child):
        self.handed_back += 1
        return self._held


@pytest.fixture
def pauses(monkeypatch):
    found = []
    real = asyncio.sleep

    async def sleep(seconds):
        found.append(seconds)
        return await real(0)

    replace_here(monkeypatch, asyncio, "sleep", sleep)
    return found


async def test_a_process_that_had_turns_in_its_hands_is_followed_at_once_however_often_it_dies(pauses):
    lives = Lives([-9, -9, -9, -9, 0], held=3)
    await lives._keep_one("redis://any")
    assert pauses == []
    assert lives.kept.times == 4


async def test_a_process_that_a_signal_without_a_name_ended_is_followed(pauses, caplog):
    await Lives([-signal.SIGRTMIN - 6, 0], held=1)._keep_one("redis://any")
    assert "died (signal 40)" in caplog.text


async def test_one_that_dies_before_it_can_work_is_followed_later_and_later(pauses):
    lives = Lives([1] * 8 + [0])
    await lives._keep_one("redis://any")
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    assert (lives.handed_back, lives.kept.times) == (8, 0)


async def test_one_that_cannot_be_started_is_tried_again_later_and_later(pauses, caplog):
    out_of_processes = BlockingIOError(11, "Resource temporarily unavailable")
    lives = Lives(
        [OSError(12, "Cannot allocate memory"), out_of_processes, FileNotFoundError(2, "No such file"), 0]
    )
    await lives._keep_one("redis://any")
    assert pauses == [0.2, 0.4, 0.8]
    assert caplog.text.count("cannot start a worker process") == 3


async def test_one_that_can_never_start_is_not_followed(pauses):
    await Lives([2])._keep_one("redis://any")
    assert pauses == []


@pytest.mark.parametrize(("code", "died"), [(-signal.SIGTERM, 0), (-signal.SIGKILL, 1)])
async def test_one_that_is_stopped_while_it_starts_has_not_died(code, died, caplog, pauses):
    class Stopped(Lives):
        async def _run_one(self, url):
            self.drain()
            return await super()._run_one(url)

    lives = Stopped([code])
    await lives._keep_one("redis://any")
    assert (lives.handed_back, "died" in caplog.text) == (died, bool(died))


def status(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
            return answer.status
    except urllib.error.HTTPError as exc:
        return exc.code


@pytest.mark.main_path
def test_a_worker_that_starts_before_its_redis_waits_for_it(server_kind, processes, tmp_path):
    server, stage, port = RedisServer(server_kind), Stage(tmp_path / "stage"), free_port()
    url = server.url.replace("://", "://default:gehe1m@")
    worker = processes.worker(url, "--status-port", str(port), env=stage.env)
    worker.wait_for_output("[outage_began]")
    assert f"redis://default:***@127.0.0.1:{server.port}/0: Redis cannot be reached" in worker.output
    assert (status(port, "/health"), status(port, "/ready")) == (200, 503)
    with server:
        worker.wait_for_output("[outage_ended]")
        with Client(server.url) as client:
            assert client.submit("s", "Hello", agent="stage").result(30).text
        assert worker.terminate() == 0
    assert worker.output.count("[outage_began]") == 1
    assert "gehe1m" not in worker.output


def test_a_cell_is_served_while_another_one_is_away(redis_url, processes, tmp_path):
    stage = Stage(tmp_path / "stage")
    worker = processes.worker(f"redis://127.0.0.1:{free_port()}/0,{redis_url}", env=stage.env)
    worker.wait_for_output("takes turns")
    with Client(redis_url) as client:
        for number in range(8):  # the ledgers of half of these tenants would be in the other one
            assert client.submit(f"s{number}", "Hello", agent="stage", tenant=f"t{number}").result(30).text
    assert worker.terminate() == 0, "it also stops while it waits for the other one"


def test_a_worker_that_waits_for_its_redis_is_healthy_however_long_it_takes(monkeypatch):
    supervisor = Supervisor(Settings())
    supervisor._last -= 3600
    assert supervisor.unhealthy()
    supervisor._away["redis://a"] = 1.0
    assert not supervisor.unhealthy()
    assert supervisor.unready() == "Its Redis is away."


async def test_a_redis_that_is_unsuitable_when_it_answers_at_last_stops_no_other_cell(
    server_kind, caplog, monkeypatch, pauses
):
    server = RedisServer(server_kind, config={"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"})
    supervisor = Lives([0])
    await supervisor._check(server.url)
    with server:
        serving = asyncio.create_task(supervisor._serve(server.url))
        await wait_until_async(lambda: "maxmemory-policy noeviction" in caplog.text, 20)
        with Redis.from_url(server.url) as redis:
            redis.config_set("maxmemory-policy", "noeviction")
        await serving
    assert not supervisor._away
