"""Sockets that say when a process has ended are not kept open by what it starts."""

import asyncio
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import time

import pytest
import uvloop

from antiphon.wire.connection.open import close_in_forks, open_redis

pytestmark = pytest.mark.main_path


@pytest.fixture
def line():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(10)
        close_in_forks(ours)
        yield ours, theirs


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_does_not_keep_it_open(line):
    ours, theirs = line
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    try:
        ours.close()
        assert theirs.recv(1) == b""
    finally:
        child.kill()
        child.join()


def test_a_program_does_not_inherit_it(line):
    ours, theirs = line
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False) as child:
        ours.close()
        assert theirs.recv(1) == b""
        child.kill()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_its_number_stays_taken_in_the_fork_so_that_no_other_file_is_closed_for_it(line):
    ours, _ = line
    child = os.fork()
    if child == 0:
        opened = os.open(os.devnull, os.O_RDONLY)
        os._exit(0 if opened != ours.fileno() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def sockets():
    """The open sockets of this process, by their number in the kernel."""
    links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return {os.readlink(link) for link in links if os.path.exists(link)} - {os.devnull}


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_fork_keeps_no_connection_to_redis_open(run, redis_url):
    """A claim may wait on one behind the doorbell: Redis would give the next turn to a dead process."""

    async def opened_and_forked():
        redis, before = open_redis(redis_url), sockets()
        try:
            await redis.ping()
            await redis.eval("return 1", 0)
            opened, (reading, writing) = sockets() - before, os.pipe()
            child = os.fork()
            if child == 0:
                os.write(writing, json.dumps([*opened & sockets()]).encode())
                os._exit(0)
            os.close(writing)
            with os.fdopen(reading) as answer:
                kept = json.load(answer)
            await asyncio.to_thread(os.waitpid, child, 0)
            assert await redis.ping()
            assert await redis.eval("return 1", 0) == 1
            return opened, kept
        finally:
            await redis.aclose()

    opened, kept = run(opened_and_forked())
    assert len(opened) == 2
    assert kept == []
