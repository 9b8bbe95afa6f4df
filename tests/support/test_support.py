"""Tests of the test tools: each requested fault must happen, and nothing may be left behind."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anthropic
import execnet
import pytest
from hypothesis import settings
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry
from support import forks, kinds
from support.coroutines import run_coroutine_test
from support.eventually import wait_until, wait_until_async
from support.fresh_python import imported_by, printed_by
from support.leaks import leaked_keys
from support.limits import limited
from support.models import ModelProcess
from support.offenders import for_each
from support.processes import COMMAND
from support.replacing import replace_here
from support.servers import RedisServer, Sentinel
from support.share import share_of_processor
from support.signals import kept_handlers

pytestmark = pytest.mark.main_path


def client(url, **options):
    return Redis.from_url(url, retry=Retry(NoBackoff(), 0), **options)


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_each_test_finds_an_empty_redis(redis_url):
    with client(redis_url) as redis:
        assert redis.dbsize() == 0
        redis.set("left-behind", 1)


def test_the_two_servers_are_what_they_are_called(redis_server):
    with client(redis_server.url) as redis:
        assert ("valkey_version" in redis.info("server")) is (redis_server.kind == "valkey")


def test_a_key_without_a_time_to_live_is_noticed(redis_url):
    pytest.importorskip("antiphon.wire.keys")
    with client(redis_url) as redis:
        redis.set("ant:turn:leaked", 1)
        redis.set("ant:turn:mortal", 1, ex=60)
        assert leaked_keys(redis_url) == ["ant:turn:leaked"]
        assert leaked_keys(redis_url, ["ant:turn:*"]) == []
        redis.delete("ant:turn:leaked")


def test_acknowledged_writes_survive_kill_where_every_write_is_synced():
    with RedisServer(appendonly=True, appendfsync="always") as server:
        with client(server.url) as redis:
            redis.set("kept", "yes")
        pid = server.pid
        server.restart()
        assert server.pid != pid
        with client(server.url) as redis:
            assert redis.get("kept") == b"yes"


def test_a_frozen_server_keeps_its_connections_and_does_not_answer():
    with RedisServer() as server, client(server.url, socket_timeout=0.2) as redis:
        redis.ping()
        server.freeze()
        with pytest.raises(RedisTimeoutError):
            redis.ping()
        server.thaw()
        assert redis.ping()


def test_a_sentinel_promotes_the_replica_of_a_dead_primary():
    with RedisServer() as primary, RedisServer(replica_of=primary) as replica, Sentinel(primary) as sentinel:
        with client(primary.url) as redis:
            wait_until(
                lambda: redis.info("replication")["connected_slaves"] == 1, 20, "the replica is connected"
            )
        with client(f"redis://127.0.0.1:{sentinel.port}") as redis:

            def primary_port():
                return int(
                    redis.execute_command("SENTINEL", "get-master-addr-by-name", sentinel.master_name)[1]
                )

            wait_until(
                lambda: len(redis.execute_command("SENTINEL", "replicas", sentinel.master_name)) == 1, 30
            )
            assert primary_port() == primary.port
            primary.kill()
            wait_until(lambda: primary_port() == replica.port, 40, "the replica is the primary")
        primary.start()


def test_a_server_does_not_outlive_a_killed_test_process(processes):
    program = """
        import sys
        from support.servers import RedisServer
        server = RedisServer().start()
        print("pid", server.pid, flush=True)
        sys.stdin.read()
        import threading
        threading.Event().wait()
    """
    owner = processes.python(
        "-c", textwrap.dedent(program), env={"PYTHONPATH": str(Path(__file__).parent.parent)}
    )
    wait_until(lambda: owner.output.startswith("pid ") and owner.output.endswith("\n"), 20)
    pid = int(owner.output.split()[1])
    assert not gone(pid)
    owner.send_signal(signal.SIGKILL)
    wait_until(lambda: gone(pid), 10, "the server is gone")


def test_a_cut_connection_breaks_and_the_next_one_is_served(proxy):
    with client(proxy.url) as redis:
        redis.ping()
        proxy.cut()
        assert proxy.connections == 0
        assert redis.ping()
        assert proxy.accepted == 2


def test_a_refusing_proxy_serves_again_after_heal(proxy):
    with client(proxy.url) as redis:
        proxy.refuse()
        with pytest.raises(RedisConnectionError):
            redis.ping()
        proxy.heal()
        assert redis.ping()


def test_a_lost_reply_is_one_whose_command_was_done(redis_url, proxy):
    with client(proxy.url) as redis, client(redis_url) as direct:
        proxy.drop_reply(b"INCR")
        redis.ping()
        with pytest.raises(RedisConnectionError):
            redis.incr("counter")
        assert proxy.lost_replies == 1
        assert direct.get("counter") == b"1"
        assert redis.incr("counter") == 2


def test_a_blackhole_holds_back_until_it_is_healed(proxy):
    with client(proxy.url, socket_timeout=0.2) as redis:
        redis.ping()
        proxy.blackhole()
        with pytest.raises(RedisTimeoutError):
            redis.ping()
        proxy.heal()
        assert redis.ping()


async def test_delayed_replies_arrive_late_and_in_order(proxy):
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    proxy.delay(0.15)
    began = asyncio.get_running_loop().time()
    writer.write(b"PING one\r\nPING two\r\n")
    assert await reader.readuntil(b"two\r\n") == b"$3\r\none\r\n$3\r\ntwo\r\n"
    assert asyncio.get_running_loop().time() - began >= 0.15
    writer.close()
    await writer.wait_closed()


def test_a_task_left_behind_fails_its_test_and_is_named():
    async def forever():
        await asyncio.Event().wait()

    kept = []

    async def leaky():
        kept.append(asyncio.create_task(forever()))

    with pytest.raises(AssertionError, match="forever"):
        run_coroutine_test(leaky())


def test_an_error_that_nobody_hears_fails_the_test():
    def broken():
        raise ValueError("nobody hears this")

    async def careless():
        asyncio.get_running_loop().call_soon(broken)

    with pytest.raises(AssertionError, match="nobody hears this"):
        run_coroutine_test(careless())


async def test_waiting_takes_coroutine_functions_and_says_what_did_not_come():
    answers = iter([False, False, "here"])

    async def ask():
        return next(answers)

    assert await wait_until_async(ask) == "here"
    with pytest.raises(AssertionError, match=r"a miracle\. The last answer was 0"):
        await wait_until_async(lambda: 0, 0.05, "a miracle")


def test_the_children_of_a_killed_process_go_with_it(processes):
    program = "import subprocess, sys; c = subprocess.Popen(['sleep', '60']); print('child', c.pid); c.wait()"
    parent = processes.python("-c", program)
    parent.wait_for_output("child")
    (child,) = parent.children()
    parent.kill()
    wait_until(lambda: gone(child), 10, "the child is gone")


def test_a_process_that_ends_too_early_fails_with_its_output(processes):
    process = processes.python("-c", "print('I give up'); raise SystemExit(3)")
    with pytest.raises(AssertionError, match="ended with code 3:\nI give up"):
        process.wait_for_output("ready")


@pytest.mark.skipif(sys.platform != "linux", reason="the address is one that Linux refuses at once")
def test_a_frozen_process_gets_no_share_of_a_processor(processes):
    with share_of_processor(processes) as share:
        (spinning,) = processes.started
        wait_until(lambda: 0 < share() <= 1)
        spinning.freeze()
        before = share()
        wait_until(lambda: share() < before / 2, description="time passes in which it does not run")
    assert not spinning.running


def test_tests_cannot_reach_other_machines():
    with socket.socket() as connection, pytest.raises(RuntimeError, match="local servers only"):
        connection.connect(("192.0.2.1", 9))


def test_a_model_server_for_worker_processes_says_where_it_is_and_what_it_did(processes):
    models = ModelProcess(processes, "--length", "5")
    assert models.environment["OPENAI_BASE_URL"] == f"{models.environment['ANTHROPIC_BASE_URL']}/v1"
    with anthropic.Anthropic(base_url=models.base_url, api_key="any") as sdk:
        sdk.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "hello"}])
    assert models.statistics()["requests"] == 1


def test_an_example_that_takes_long_on_a_busy_machine_is_no_failure():
    assert settings().deadline is None


def test_a_fresh_python_tells_what_a_program_has_imported():
    assert "colorsys" in imported_by("import colorsys")
    assert "colorsys" not in imported_by("")
    with pytest.raises(subprocess.CalledProcessError):
        imported_by("assert False")


def test_a_forked_command_has_streams_arguments_and_an_exit_code_of_its_own(tmp_path):
    done = forks.run([COMMAND, "submit"], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("antiphon submit: ")
    assert "antiphon submit" in forks.run([COMMAND, "submit", "--help"]).stdout


def test_a_forked_process_is_signalled_and_leads_its_own_session(processes):
    models = ModelProcess(processes).process
    assert os.getsid(models.pid) == models.pid
    assert models.running
    models.send_signal(signal.SIGKILL)
    assert models.wait() == -signal.SIGKILL


def test_what_hangs_outside_a_test_function_is_ended():
    with pytest.raises(TimeoutError, match="the fixtures took more than 1 s"), limited("the fixtures", 1):
        wait_until(lambda: False, 20)


def test_handlers_of_signals_are_put_back_and_named():
    with kept_handlers() as changed:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert changed == ["SIGINT"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with kept_handlers() as changed:
        asyncio.run(asyncio.sleep(0))
    assert changed == []


def test_a_report_with_half_a_character_reaches_the_process_that_shows_it(request):
    """The test of the report may well pass: what it logs is also sent."""
    report = pytest.TestReport(
        "t", ("t", 1, "t"), {}, "failed", "no \udcff", "call", [("log", "job \udcff\udcfeodd")]
    )
    sent = request.config.hook.pytest_report_to_serializable(config=request.config, report=report)
    assert execnet.loads(execnet.dumps(sent)) == sent
    assert (sent["longrepr"], sent["sections"]) == ("no \\udcff", [("log", "job \\udcff\\udcfeodd")])


def test_a_test_over_a_list_reports_all_offenders():
    @for_each([1, 2, 3, 4], lambda value: f"number {value}")
    def check(value, limit):
        assert value < limit, "too large"

    check(limit=5)
    with pytest.raises(
        AssertionError, match=r"2 offenders:\nnumber 3: too large[\s\S]*\nnumber 4: too large"
    ):
        check(limit=3)


def test_a_test_is_marked_with_what_it_needs(request):
    assert kinds._kind(request.node) == "process", "by what it names below"
    assert "subprocess" in kinds._names(printed_by)
    assert "Popen" in kinds._names(forks.run)
    assert "subprocess" not in kinds._names(test_what_hangs_outside_a_test_function_is_ended)


def test_a_replaced_function_is_that_of_the_tests_thread_alone(monkeypatch):
    replace_here(monkeypatch, time, "monotonic", lambda: 7.0)
    with ThreadPoolExecutor() as elsewhere:
        assert (time.monotonic(), elsewhere.submit(time.monotonic).result() > 7.0) == (7.0, True)
