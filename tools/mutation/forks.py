"""Runs collected tests in forked processes, so that their side effects end with them."""

import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol


def in_a_fork(work: Callable[[], int], said: Path = Path(os.devnull)) -> int:
    """Run this in a forked process, and return its exit code: 0, 2, or 1 for any other."""
    pid = os.fork()
    if not pid:
        os.setsid()
        sys.stdout = sys.stderr = said.open("w")
        os.dup2(sys.stderr.fileno(), 1)
        os.dup2(sys.stderr.fileno(), 2)
        code = 1
        try:
            code = work()
        except BaseException:  # noqa: BLE001  (pytest ends a process with some that are not an Exception)
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    status = os.waitpid(pid, os.WUNTRACED)[1]
    with suppress(ProcessLookupError):  # the processes it has started
        os.killpg(pid, signal.SIGKILL)
    if os.WIFSTOPPED(status):  # by a signal that was meant for another process
        status = os.waitpid(pid, 0)[1]
    code = os.waitstatus_to_exitcode(status)
    return code if code in (0, 2) else 1


def one_fails(items: Sequence[pytest.Item], patience: Callable[[pytest.Item], float]) -> bool:
    """Run tests until one fails. A test that takes longer than ``patience`` ends the process, which also counts."""
    for item, following in zip(items, [*items[1:], None], strict=True) if items else ():
        faulthandler.dump_traceback_later(patience(item), file=2, exit=True)
        reports = runtestprotocol(item, log=False, nextitem=following)
        faulthandler.cancel_dump_traceback_later()
        for report in reports:
            if report.failed:
                print(report.longreprtext, file=sys.stderr, flush=True)
                return True
    return False
