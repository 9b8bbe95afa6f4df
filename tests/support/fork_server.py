"""The process that has imported everything and forks the commands of tests; ``support.forks`` is its client.

It has one thread and no event loop. A forked process takes over streams, environment and folder, and runs its command
as a fresh interpreter would. If it starts processes with our commands, like a supervisor its workers, these are
forked from it: the last step of ``subprocess`` is replaced.
"""

import asyncio
import atexit
import fcntl
import gc
import importlib
import io
import json
import logging
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from support.forks import MOST_BYTES, is_ours  # noqa: E402

PACKAGES = ("antiphon", "antiphon_demo", "antiphon_gateway", "antiphon_worker")
# Modules that read the environment when imported, and modules that import those.
ANEW = (
    "support",
    "prometheus_client",
    "antiphon_gateway.observing.metrics",
    "antiphon_worker.observing.metrics",
)
APART = (*ANEW, "antiphon.ext", "antiphon.memory", "antiphon_worker.memory")  # they import whole frameworks
LAZY = (
    "anthropic.resources.messages", "asyncio.subprocess", "email.mime.text", "hiredis", "httptools", "httpx2",
    "openai.resources.chat", "openai.resources.responses", "redis.asyncio", "rich.live", "rq.cli",
    "uvicorn.protocols.http.httptools_impl", "uvicorn.protocols.websockets.websockets_sansio_impl",
    "uvicorn.lifespan.on", "uvloop", "zoneinfo",
)  # fmt: skip
_SYSTEM_PATH = [entry for entry in sys.path if entry != str(HERE.parent)]
_RESET = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ)


def preload() -> None:
    """Import what commands need; no module may start a thread."""
    for package in map(importlib.import_module, PACKAGES):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith(APART) and not module.name.endswith("__main__"):
                with suppress(ImportError):
                    importlib.import_module(module.name)
    for name in LAZY:
        with suppress(ImportError):
            importlib.import_module(name)
    assert threading.active_count() == 1
    gc.collect()
    gc.freeze()


def serve(requests: socket.socket) -> None:
    """Fork a process for each request, and report each exit code."""
    woken, wakes = socket.socketpair()
    for one in (woken, wakes):
        one.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes.fileno())
    lines: dict[int, socket.socket] = {}
    selector = selectors.DefaultSelector()
    selector.register(requests, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    while True:
        ready = {key.fileobj for key, _ in selector.select()}
        if requests in ready:
            request, descriptors, _, _ = socket.recv_fds(requests, MOST_BYTES, 8)
            if not request:
                return
            line = socket.socket(fileno=descriptors[0])
            if pid := os.fork():
                lines[pid] = line
                for descriptor in descriptors[1:]:
                    os.close(descriptor)
            else:
                become(json.loads(request), descriptors[1:], line)
        if woken in ready:
            woken.recv(4096)
            while lines:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                with lines.pop(pid) as line, suppress(OSError):
                    line.send(json.dumps(os.waitstatus_to_exitcode(status)).encode())


def become(request: dict[str, Any], streams: Sequence[int], line: socket.socket) -> None:
    """Run the command of a request in this process, which has just been forked."""
    os.setsid()
    line.send(json.dumps(os.getpid()).encode())
    os.chdir(request["cwd"])
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    _run(request["argv"], request["env"], keep=())


def _run(argv: list[str], env: Mapping[str, str], keep: Sequence[int]) -> None:
    """Run a command with the streams 0 to 2 as they are, and end. Never returns to earlier code."""
    code: Any = 1
    try:
        _forget(keep)
        os.environ.clear()
        os.environ.update(env)
        time.tzset()
        _open_streams()
        _leave_name()
        code = _outcome(argv)
    finally:
        _end(code)


def _forget(keep: Sequence[int]) -> None:
    """Drop the state of the process that this one was forked from."""
    gc.freeze()  # objects of closed descriptors are not collected
    signal.set_wakeup_fd(-1)
    for number in _RESET:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    last = 2
    for descriptor in sorted(keep):
        os.closerange(last + 1, descriptor)
        os.set_inheritable(descriptor, True)
        last = descriptor
    os.closerange(last + 1, os.sysconf("SC_OPEN_MAX"))
    asyncio._set_running_loop(None)
    asyncio.set_event_loop_policy(None)
    atexit._clear()
    for logger in [logging.root, *logging.root.manager.loggerDict.values()]:
        if isinstance(logger, logging.Logger):
            logger.handlers.clear()
            logger.filters.clear()
            logger.setLevel(logging.NOTSET if logger is not logging.root else logging.WARNING)
            logger.propagate, logger.disabled = True, False


def _open_streams() -> None:
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    for name, number in (("stdout", 1), ("stderr", 2)):
        raw: Any = open(number, "wb", buffering=0 if unbuffered else -1, closefd=False)  # noqa: SIM115
        stream = io.TextIOWrapper(
            raw, encoding="utf-8", errors="backslashreplace" if number == 2 else "strict",
            line_buffering=number == 2 or os.isatty(number), write_through=unbuffered,
        )  # fmt: skip
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _leave_name() -> None:
    """Show tests the name of a worker process: /proc has the environment of the forking process, not its own."""
    if name := os.environ.get("ANTIPHON_WORKER_NAME"):
        os.memfd_create(f"worker {name}")


def _outcome(argv: list[str]) -> Any:
    given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    module = argv[2] if argv[0] == sys.executable else ""
    first = [] if os.environ.get("PYTHONSAFEPATH") else [os.getcwd() if module else str(Path(argv[0]).parent)]
    sys.path[:] = [*first, *given, *_SYSTEM_PATH]
    sys.argv[:] = argv[2:] if module else argv
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    importlib.invalidate_caches()
    for name in [name for name in sys.modules if name.startswith(ANEW)]:
        folder, _, own = name.rpartition(".")
        del sys.modules[name]
        if own in vars(sys.modules.get(folder, object)):
            delattr(sys.modules[folder], own)
    try:
        if module:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as exc:
        if exc.code is None or isinstance(exc.code, int):
            return exc.code or 0
        print(exc.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        return -signal.SIGINT
    except BaseException:  # noqa: BLE001 - any exception ends a program
        traceback.print_exc()
        return 1
    return 0


def _end(code: Any) -> None:
    with suppress(BaseException):
        threading._shutdown()
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


_fork_exec = subprocess._fork_exec  # type: ignore[attr-defined]


def fork_ours(*given: Any) -> int:
    """Fork where ``subprocess`` would fork and execute, if the command is one of ours."""
    args, pass_fds, cwd, env, ends = given[0], given[3], given[4], given[5], given[6:14]
    argv = [os.fsdecode(part) for part in args]
    if not (len(argv) > 2 and is_ours(argv)):
        return _fork_exec(*given)
    if pid := os.fork():
        return pid
    stdin, _, _, stdout, _, stderr, _, failure = ends
    try:
        new_session = given[15]
        if new_session:
            os.setsid()
        if cwd:
            os.chdir(cwd)
        for number, descriptor in enumerate((stdin, stdout, stderr)):
            if descriptor >= 0:
                os.dup2(descriptor, number)
        pairs = [os.fsdecode(pair).partition("=") for pair in env] if env is not None else None
        environ = dict(os.environ) if pairs is None else {name: value for name, _, value in pairs}
    except OSError:
        os._exit(255)
    _run(
        argv,
        environ,
        keep=[descriptor for descriptor in pass_fds if descriptor > 2 and descriptor != failure],
    )
    raise AssertionError("a forked process has ended")


if __name__ == "__main__":
    sys.modules["support.fork_server"] = sys.modules["__main__"]
    own = socket.socket(fileno=int(sys.argv[1]))
    subprocess._fork_exec = fork_ours  # type: ignore[attr-defined]
    preload()
    with suppress(KeyboardInterrupt):
        serve(own)
    os._exit(0)
