"""A worker's settings: read once from flags and ``ANTIPHON_*`` variables, checked together, frozen."""

from __future__ import annotations

import re
from dataclasses import Field, dataclass, fields
from typing import Any, cast

from antiphon.input.ids import check_queue
from antiphon.settings import ABOVE_ZERO, CommandSettings, Rule, at_least, one_of, setting
from antiphon.wire.connection.cluster import without_cell
from antiphon.wire.connection.open import cell_urls, redact, server_urls, with_durability
from antiphon.wire.connection.replicated import REPLICATED
from antiphon.wire.keys import PREFIX
from antiphon.wire.preflight import DURABILITIES
from antiphon.wire.records import DEFAULT_QUEUE

LETTERS = Rule(
    lambda text: re.fullmatch(r"[A-Za-z0-9_.-]+", text) is not None,
    "must be letters, digits, '_', '.' or '-'",
)
SAFE_LEASE = Rule(
    lambda lease: lease >= 0.5,
    "must be at least half a second: a shorter lease expires while a worker is busy",
)
NOT_EMPTY = Rule(bool, "must name at least one queue")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(CommandSettings):
    """How a worker runs. Every field is a flag (``--lease``) and a variable (``ANTIPHON_LEASE``)."""

    redis_url: str = setting(
        "redis://localhost:6379/0", "The Redis to use; separate several (cells) with commas", shown=False
    )
    cells: str = setting(
        "",
        "All Redis URLs of the deployment, if this worker serves only some of them; it refuses jobs of the others",
        shown=False,
    )
    queues: tuple[str, ...] = setting(
        (DEFAULT_QUEUE,), "Queues to serve, separated by commas, most urgent first", NOT_EMPTY
    )
    app: str = setting("", "The App with agents, tools and providers, as module:attribute")
    archive: str = setting(
        "",
        "Where to save sessions before they expire in Redis: sqlite:///path, redis://… or postgresql://…; or "
        "App(store=…)",
        shown=False,
    )
    prices: str = setting(
        "", "A JSON file with prices of models, in addition to the package's; or use App(prices=…)"
    )
    processes: int = setting(
        1, "Worker processes, each with its own event loop; a single one has a standby process", at_least(1)
    )
    concurrency: int = setting(100, "Concurrent turns in one process", at_least(1))
    lease: float = setting(
        10.0, "How long a worker that no longer responds keeps its sessions, in seconds", SAFE_LEASE
    )
    drain: float = setting(
        25.0, "How long turns may continue after SIGTERM before they are requeued, in seconds", at_least(0)
    )
    retire: bool = setting(
        False,
        "Drain once nothing needs the revisions of the App's agents any more, because others were promoted",
    )
    crash_limit: int = setting(10, "How many crashes of its worker fail a turn", at_least(1))
    isolated_turns: int = setting(
        16,
        "Concurrent turns with two crashes per worker process, each in its own process",
        at_least(1),
    )
    stall_timeout: float = setting(
        60.0,
        "How long an event loop may be blocked before its process is killed, in seconds; 0 for no limit",
        at_least(0),
    )
    retry_seconds: float = setting(
        600.0,
        "How long a turn is retried while its model service fails, in seconds, unless its agent has a Retry",
        at_least(0),
    )
    error_limit: int = setting(
        100, "How many retryable provider errors fail a turn, at any rate", at_least(0)
    )
    retry_delay: float = setting(
        1.0, "Delay before the first retry after a provider error, doubled each time, in seconds"
    )
    turn_timeout: float = setting(3600.0, "How long one run of a turn may take, in seconds", ABOVE_ZERO)
    batch_seconds: float = setting(
        60.0,
        "How long steps of turns with service=batch are collected before they are sent, in seconds",
        at_least(0),
    )
    batch_size: int = setting(1000, "How many such steps are sent in one batch", at_least(1))
    batch_deadline: float = setting(
        86400.0,
        "How long such a step waits for its batch before the usual endpoint answers it, in seconds",
        ABOVE_ZERO,
    )
    batch_poll: float = setting(30.0, "How often a batch is looked at, in seconds", ABOVE_ZERO)
    durability: str = setting(
        "everysec",
        "What Redis must guarantee when a worker starts: none, everysec or fsync; or replicated: a turn is accepted "
        "and a step finished when a replica has it",
        one_of(*DURABILITIES),
    )
    trace_content: str = setting(
        "",
        "Messages, prompts and tool results in spans: all, or what a function returns for each attribute and value, "
        "as module:attribute",
    )
    otel_metrics: bool = setting(
        False, "Export OpenTelemetry metrics of model calls, configured by the OTEL_* variables"
    )
    prefix: str = setting(PREFIX, "First part of every key", LETTERS)

    def check(self) -> None:
        """Check each setting and their combinations. Raises ``SettingsError``, which names the variable and the fix."""
        CommandSettings.check(self)
        within = set(self.redis_urls) <= set(self.cell_urls)
        self._require(within, "cells", "must include the URLs of ANTIPHON_REDIS_URL")

    @classmethod
    def parse(cls, known: Field[Any], text: str) -> Any:
        if isinstance(known.default, tuple):
            return tuple(check_queue(part.strip()) for part in text.split(",") if part.strip())
        return super(Settings, cls).parse(known, text)

    @property
    def redis_urls(self) -> list[str]:
        """The URLs of the cells that this worker serves."""
        return [cell for url in self.server_urls for cell in cell_urls(url)]

    @property
    def server_urls(self) -> list[str]:
        """One URL for each Redis or cluster that this worker serves: each has its own worker processes."""
        return [self.promised(url) for url in server_urls(self.redis_url)]

    @property
    def cell_urls(self) -> list[str]:
        """Return one URL for each cell of the deployment that this worker knows.

        Without ``cells``, the URL of a part of a cluster names the whole cluster.
        """
        urls = server_urls(self.cells or self.redis_url)
        if not self.cells and len(urls) == 1:
            urls = [without_cell(urls[0])]
        return [cell for url in urls for cell in cell_urls(self.promised(url))]

    @property
    def promise(self) -> str:
        """The ``durability`` of this worker's connections."""
        return REPLICATED if self.durability == REPLICATED else ""

    def promised(self, url: str) -> str:
        """Return the URL of a Redis with the durability of this worker's connections."""
        return with_durability(url, self.promise)

    def environ(self) -> dict[str, str]:
        """Return these settings as variables, for a process that starts with them."""
        return {self.variable(known.name): _text(getattr(self, known.name)) for known in fields(self)}


def _text(value: Any) -> str:
    return ",".join(cast("tuple[str, ...]", value)) if isinstance(value, tuple) else str(value)


def describe(settings: Settings) -> str:
    """Describe the settings in one line for the log, without secrets."""
    urls = ", ".join(dict.fromkeys(redact(url).partition("&cell=")[0] for url in settings.redis_urls))
    queues = ", ".join(settings.queues)
    return f"queues {queues}, concurrency {settings.concurrency}, lease {settings.lease:g} s, {urls}"
