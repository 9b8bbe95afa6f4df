"""Live streams in one worker process, every delta logged and published: how many, how late, and overload."""

from bench.gauges import rss_bytes
from bench.live import MOST, LiveStreams, Stage, add_stage, live_streams
from bench.results import Plan, Result

TITLE = "live streams in one worker process, every delta logged and published"
PACES = (20, 50, 100)
NUMBERS = (50, 100, 200, 400, 500, 600, 700, 800, MOST)
MOST_CHUNKS = 60_000
SAMPLE = 40
LAG_LIMIT_MS = 50.0
CARRIED_SHARE = 0.98


async def measure(plan: Plan, result: Result) -> None:
    numbers = plan.pick(NUMBERS, (50, 100))
    for pace in plan.pick(PACES, (50,)):
        tried = [number for number in numbers if number * pace <= MOST_CHUNKS and number * pace >= 2000]
        await _one_pace(result, plan, pace, tried)
    if not plan.quick:
        await _all_followed(result)
    result.remarks.append(
        f"Within limits: a lag of {LAG_LIMIT_MS:g} ms p99, and {CARRIED_SHARE:.0%} of what is offered. The knee is "
        f"the largest number of streams within them; a number that is not is looked at twice. Lag and chunks are "
        f"taken from {SAMPLE} streams that another process follows; CPU is that of the whole process. Past the "
        f"knee, Redis grows by the log of the running turns, which is trimmed when they finish."
    )


def fine(stage: Stage) -> bool:
    return stage.lag_p99 <= LAG_LIMIT_MS and stage.share >= CARRIED_SHARE


def knee_of(stages: list[Stage]) -> Stage | None:
    """Return the stage with the largest number of streams within limits."""
    return next((stage for stage in reversed(stages) if fine(stage)), None)


async def _one_pace(result: Result, plan: Plan, pace: int, numbers: list[int]) -> None:
    seconds = plan.pick(3.0, 1.0)
    async with live_streams(pace, 12.0 * (len(numbers) + 2), SAMPLE) as live:
        stages: list[Stage] = []
        for number in numbers:
            await live.grow(number)
            stages.append(await _settled(live, seconds))
            if live.number < number:
                result.note(
                    f"{number} streams at {pace}/s", f"the worker took {live.number}: it was late already"
                )
                break
            if len(stages) > 1 and not fine(stages[-1]) and not fine(stages[-2]):
                break
        for stage in stages:
            add_stage(result, f"{stage.streams} streams at {pace}/s", stage)
            result.point(f"{pace} tokens/s, p50", stage.streams, stage.lag_p50)
            result.point(f"{pace} tokens/s, p99", stage.streams, stage.lag_p99)
        knee = knee_of(stages)
        _add_knee(result, pace, knee)
        if knee is not None:
            await _past_the_knee(result, live, knee.streams, plan.pick(4.0, 1.0))


async def _settled(live: LiveStreams, seconds: float) -> Stage:
    """Measure at this number; twice if it exceeds the limits, since anything may disturb one measurement."""
    stage = await live.stage(seconds)
    return stage if fine(stage) else min(stage, await live.stage(seconds), key=lambda one: one.lag_p99)


def _add_knee(result: Result, pace: int, knee: Stage | None) -> None:
    """Add the figures from which the sums for larger deployments start."""
    name = f"the knee at {pace}/s"
    if knee is None:
        result.fail(name, "no number of streams was within the limits")
        return
    result.add(name, "live streams", knee.streams, "")
    result.add(name, "carried", knee.carried, "chunks/s")
    result.add(name, "CPU of the worker, a chunk", knee.worker_us, "µs")
    result.add(name, "CPU of Redis, a chunk", knee.redis_us, "µs")


async def _past_the_knee(result: Result, live: LiveStreams, knee: int, seconds: float) -> None:
    """Measure twice as many streams as the knee: deltas are joined, and memory must not run away."""
    if 2 * knee > MOST + knee / 2:
        result.note(f"past the knee at {live.pace}/s", f"a process has connections for {MOST} streams only")
        return
    asked = min(2 * knee, MOST)
    await live.grow(asked)
    if live.number < asked:
        result.note(
            f"past the knee at {live.pace}/s",
            f"of {asked} streams the worker took {live.number}, and no more while it was late",
        )
    memory = [_memory(live)]
    stage = await live.stage(seconds)
    memory.append(_memory(live))
    later = await live.stage(seconds)
    memory.append(_memory(live))
    name = f"past the knee: {live.number} streams at {live.pace}/s"
    add_stage(result, name, stage)
    add_stage(result, f"{name}, {seconds:g} s later", later)
    name = f"resident at {live.number} streams at {live.pace}/s"
    for at, whose in enumerate(("worker", "Redis")):
        for number, seen in enumerate(memory):
            when = f"after {number * seconds:g} s" if number else "at first"
            result.add(name, f"{whose} {when}", seen[at] / 2**20, "MiB")


def _memory(live: LiveStreams) -> tuple[int, int]:
    """Return the resident memory of the worker and of Redis."""
    return rss_bytes(live.worker_pid), rss_bytes(live.built.redis.pid)


async def _all_followed(result: Result) -> None:
    """Measure as many subscribers as streams, in one process."""
    number, pace = 200, 50
    async with live_streams(pace, 20.0, number) as live:
        await live.grow(number)
        stage = await live.stage(3.0)
    add_stage(result, f"{number} streams at {pace}/s, all of them followed", stage)
