"""A worker's settings: read once from flags and ``ANTIPHON_*`` variables, checked together, frozen."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, cast

from antiphon.client import DEFAULT_QUEUE
from antiphon.errors import SettingsError, UsageError
from antiphon.input.ids import check_queue
from antiphon.input.values import parse_switch
from antiphon.wire.connection.open import redact
from antiphon.wire.keys import PREFIX

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def _setting(default: Any, doc: str, *, shown: bool = True) -> Any:
    return field(default=default, metadata={"doc": doc}, repr=shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a worker runs. Every field is a flag (``--lease``) and a variable (``ANTIPHON_LEASE``)."""

    redis_url: str = _setting(
        "redis://localhost:6379/0", "The Redis to use; separate several (cells) with commas", shown=False
    )
    cells: str = _setting(
        "",
        "All Redis URLs of the deployment, if this worker serves only some of them; it refuses jobs of the others",
        shown=False,
    )
    queues: tuple[str, ...] = _setting(
        (DEFAULT_QUEUE,), "Queues to serve, separated by commas, most urgent first"
    )
    app: str = _setting("", "The App with agents, tools and providers, as module:attribute")
    archive: str = _setting(
        "",
        "Where to save sessions before they expire in Redis: sqlite:///path, redis://… or postgresql://…; or "
        "App(store=…)",
        shown=False,
    )
    prices: str = _setting(
        "", "A JSON file with prices of models, in addition to the package's; or use App(prices=…)"
    )
    processes: int = _setting(
        1, "Worker processes, each with its own event loop; a single one has a standby process"
    )
    concurrency: int = _setting(100, "Concurrent turns in one process")
    lease: float = _setting(10.0, "How long a worker that no longer responds keeps its sessions, in seconds")
    drain: float = _setting(
        25.0, "How long turns may continue after SIGTERM before they are requeued, in seconds"
    )
    crash_limit: int = _setting(10, "How many crashes of its worker fail a turn")
    isolated_turns: int = _setting(
        16, "Concurrent turns with two crashes per worker process, each in its own process"
    )
    stall_timeout: float = _setting(
        60.0, "How long an event loop may be blocked before its process is killed, in seconds; 0 for no limit"
    )
    retry_seconds: float = _setting(
        600.0,
        "How long a turn is retried while its model service fails, in seconds, unless its agent has a Retry",
    )
    error_limit: int = _setting(100, "How many retryable provider errors fail a turn, at any rate")
    retry_delay: float = _setting(
        1.0, "Delay before the first retry after a provider error, doubled each time, in seconds"
    )
    turn_timeout: float = _setting(3600.0, "How long one run of a turn may take, in seconds")
    durability: str = _setting(
        "everysec", "What Redis must guarantee when a worker starts: none, everysec or fsync"
    )
    prefix: str = _setting(PREFIX, "First part of every key")
    log_level: str = _setting("info", "debug, info, warning or error")
    log_format: str = _setting("text", "text, or json for a JSON object on each line")
    status_port: int = _setting(
        0, "Port for /health, /ready and, with antiphon[metrics], /metrics for Prometheus; 0 for none"
    )
    status_host: str = _setting("127.0.0.1", "The address on which status_port listens")
    traces: bool = _setting(
        False, "Export OpenTelemetry traces, configured by the OTEL_* variables; needs antiphon[otel]"
    )

    @classmethod
    def load(
        cls, flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ
    ) -> Settings:
        """Read settings: flags other than None, then variables, then defaults. Raises ``SettingsError``."""
        values: dict[str, Any] = {}
        for known in fields(cls):
            variable = variable_of(known.name)
            flag = (flags or {}).get(known.name)
            text = flag if flag is not None else environ.get(variable)
            if text not in (None, ""):
                values[known.name] = _parse(known.name, known.default, text, variable)
        settings = cls(**values)
        settings.check()
        return settings

    def check(self) -> None:
        """Check each setting and their combinations. Raises ``SettingsError``, which names the variable and the fix."""
        for name, low in (
            ("processes", 1), ("concurrency", 1), ("crash_limit", 1), ("error_limit", 0), ("isolated_turns", 1),
        ):  # fmt: skip
            _require(getattr(self, name) >= low, name, f"must be {low} or more")
        for name in ("lease", "turn_timeout"):
            _require(getattr(self, name) > 0, name, "must be more than 0 seconds")
        _require(
            self.lease >= 0.5,
            "lease",
            "must be at least half a second: a shorter lease expires while a worker is only busy",
        )
        for name in ("drain", "stall_timeout", "retry_seconds"):
            _require(getattr(self, name) >= 0, name, "must be 0 seconds or more")
        _require(
            self.durability in ("none", "everysec", "fsync"), "durability", "must be none, everysec or fsync"
        )
        _require(
            self.log_level.lower() in ("debug", "info", "warning", "error"),
            "log_level",
            "must be debug, info, warning or error",
        )
        _require(self.log_format in ("text", "json"), "log_format", "must be text or json")
        _require(0 <= self.status_port < 65536, "status_port", "must be a port, or 0 for none")
        _require(
            set(self.redis_urls) <= set(self.cell_urls),
            "cells",
            "must include the URLs of ANTIPHON_REDIS_URL",
        )
        _require(bool(self.queues), "queues", "must name at least one queue")
        _require(
            re.fullmatch(r"[A-Za-z0-9_.-]+", self.prefix) is not None,
            "prefix",
            "must be letters, digits, '_', '.' or '-'",
        )

    @property
    def redis_urls(self) -> list[str]:
        """Split into one URL for each cell. A Sentinel URL has commas of its own."""
        return _urls(self.redis_url)

    @property
    def cell_urls(self) -> list[str]:
        """Return one URL for each cell of the deployment that this worker knows."""
        return _urls(self.cells or self.redis_url)

    def environ(self) -> dict[str, str]:
        """Return these settings as variables, for a process that starts with them."""
        return {variable_of(known.name): _text(getattr(self, known.name)) for known in fields(self)}


def _urls(text: str) -> list[str]:
    return re.split(r",(?=[a-z+]+://)", text)


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return f"ANTIPHON_{name.upper()}"


def parse_seconds(text: str) -> float:
    """Convert ``30``, ``30s``, ``500ms``, ``5m`` or ``1h`` to seconds. Raises ``ValueError``."""
    number = text.strip()
    unit = next((unit for unit in ("ms", "s", "m", "h") if number.endswith(unit)), "")
    number = number.removesuffix(unit).rstrip()
    if not number.isascii() or not number.replace(".", "", 1).isdigit() or number.endswith("."):
        raise ValueError(f"{text!r} is not a duration like 30, 30s, 500ms, 5m or 1h")
    return float(number) * _UNITS[unit or "s"]


def _parse(name: str, default: Any, value: Any, variable: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        if isinstance(default, bool):
            return parse_switch(value)
        if isinstance(default, int):
            return int(value)
        if isinstance(default, float):
            return parse_seconds(value)
        if isinstance(default, tuple):
            return tuple(check_queue(part.strip()) for part in value.split(",") if part.strip())
    except (ValueError, UsageError) as exc:
        raise SettingsError(f"{variable} (--{name.replace('_', '-')}) cannot be read: {exc}") from exc
    return value


def _require(holds: bool, name: str, rule: str) -> None:
    if not holds:
        raise SettingsError(f"{variable_of(name)} (--{name.replace('_', '-')}) {rule}.")


def _text(value: Any) -> str:
    return ",".join(cast("tuple[str, ...]", value)) if isinstance(value, tuple) else str(value)


def describe(settings: Settings) -> str:
    """Describe the settings in one line for the log, without secrets."""
    urls = ", ".join(redact(url) for url in settings.redis_urls)
    queues = ", ".join(settings.queues)
    return f"queues {queues}, concurrency {settings.concurrency}, lease {settings.lease:g} s, {urls}"
