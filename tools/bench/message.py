"""``python -m bench.message [MIB]``: what one long message costs Redis, at rest and at its peak.

Each step resets the peak: the submit, and the time from the claim to the end of the turn. The memory before the
message is subtracted. ``maxmemory`` limits what Redis counts; the process also holds Lua's copies and freed memory.
"""

import asyncio
import sys
from pathlib import Path

from redis import Redis

from antiphon.client import AsyncClient
from bench.gauges import rss_bytes
from bench.load import AGENT, ONE_CHUNK, all_ended
from bench.stand import stand

MIB = 2**20
SESSION = "one-long-message"
SETTLE_SECONDS = 3.0
"""Redis frees its buffers within two seconds."""


class Memory:
    """Redis's memory beyond that at the start, in MiB: as counted by Redis, and of its process."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._pid = int(redis.info("server")["process_id"])
        self._start = (int(redis.info("memory")["used_memory"]), rss_bytes(self._pid))

    def fresh_peak(self) -> None:
        self._redis.config_resetstat()
        Path(f"/proc/{self._pid}/clear_refs").write_text("5")

    def seen(self) -> tuple[float, ...]:
        """Return what is counted now, its peak since ``fresh_peak``, and the peak of the process."""
        memory = self._redis.info("memory")
        counted, process = self._start
        return (
            (int(memory["used_memory"]) - counted) / MIB,
            (int(memory["used_memory_peak"]) - counted) / MIB,
            (self._process_peak() - process) / MIB,
        )

    def _process_peak(self) -> int:
        lines = Path(f"/proc/{self._pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


async def measure(mib: float, append_only: str) -> list[tuple[str, tuple[float, ...]]]:
    with stand() as built:
        async with AsyncClient(built.redis.url) as client:
            with Redis.from_url(built.redis.url) as redis:
                redis.config_set("appendonly", append_only)
                await client.submit(SESSION, "warm up", agent=AGENT, params=ONE_CHUNK)
                memory = Memory(redis)
                text = "word " * int(mib * MIB / 5)
                memory.fresh_peak()
                turn = await client.submit(SESSION, text, agent=AGENT, params=ONE_CHUNK)
                await asyncio.sleep(SETTLE_SECONDS)
                accepted = memory.seen()
                memory.fresh_peak()
                built.worker()
                await all_ended([turn])
                await asyncio.sleep(SETTLE_SECONDS)
                return [("accepted", accepted), ("ended", memory.seen())]


def main() -> None:
    mib = float(sys.argv[1]) if len(sys.argv) > 1 else 7.0
    for append_only in ("no", "yes"):
        print(f"A message of {mib:g} MiB in Redis with appendonly {append_only}, in MiB:")
        for step, (now, peak, process) in asyncio.run(measure(mib, append_only)):
            print(
                f"  {step:<9}{now:6.1f} at rest{peak:6.1f} at the peak{process:6.1f} of the process at its peak"
            )


if __name__ == "__main__":
    main()
