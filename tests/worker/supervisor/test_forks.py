"""Sockets that say when a process has ended are not kept open by what it starts."""

import multiprocessing
import os
import socket
import subprocess
import sys
import time

import pytest

from antiphon_worker.supervisor.forks import close_in_forks


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
