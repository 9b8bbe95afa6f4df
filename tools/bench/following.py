"""Controls a process that follows sessions: begin, wait, report."""

import json
import signal
from dataclasses import dataclass
from typing import Any

from support.eventually import wait_until
from support.processes import Process

from bench.stand import Stand

START_SECONDS = 60.0
REPORT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Report:
    """What a listener has seen since ``begin``. ``newest_ms`` is the age of the last piece that arrived."""

    pieces: int
    events: int
    seconds: float
    cpu_seconds: float
    lag_p50_ms: float
    lag_p99_ms: float
    newest_ms: float
    missed: int


def follow(built: Stand, *sessions: str, url: str = "") -> Process:
    """Start ``bench.listener``; when this returns, it follows these sessions."""
    listener = built.python("-m", "bench.listener", url or built.redis.url, *sessions, name="listener")
    listener.wait_for_output("listening", START_SECONDS)
    return listener


def begin(listener: Process) -> None:
    listener.send_signal(signal.SIGUSR1)


def report(listener: Process) -> Report:
    known = len(_reports(listener))
    listener.send_signal(signal.SIGUSR2)
    wait_until(lambda: len(_reports(listener)) > known, REPORT_SECONDS, "the listener reports")
    seen: dict[str, Any] = json.loads(_reports(listener)[-1])
    return Report(**seen)


def _reports(listener: Process) -> list[str]:
    """Return its complete lines of JSON, without what it may have logged."""
    return [line for line in listener.output.split("\n")[:-1] if line.startswith("{")]
