"""Reading, forking and restoring sessions of 10 to 10,000 messages."""

import time
from collections.abc import Awaitable, Callable
from typing import Any

from antiphon import Agent, Message, Session
from bench.gauges import percentile
from bench.results import Plan, Result
from bench.stand import stand

TITLE = "time to read, fork and restore a session, by the length of its history"
LENGTHS = (10, 1_000, 10_000)
PAIR = ("Asked. " * 20, "Said. " * 20)


async def measure(plan: Plan, result: Result) -> None:
    times = plan.pick(20, 3)
    with stand() as built:
        agent = Agent(provider="scripted", model="any", redis=built.redis.url)
        for length in plan.pick(LENGTHS, (10, 1_000)):
            for what, took in (await _one(agent, length, times)).items():
                result.add(f"{length:,} messages", what, percentile(took, 0.5), "ms")
                result.point(what, length, percentile(took, 0.5))
    result.remarks.append(f"The median of {times} calls by one caller; a message has about 130 characters.")


async def _one(agent: Agent, length: int, times: int) -> dict[str, list[float]]:
    question, answer = PAIR
    messages = [Message.user(question), Message.assistant(answer)] * (length // 2)
    session = agent.session(f"long-{length}", messages=messages)
    assert len(await session.messages_async()) == length
    saved = await session.to_dict_async()

    async def restore(number: int) -> None:
        copy = Session.from_dict({**saved, "session_id": f"restored-{length}-{number}"}, agent)
        await copy.history_async(-1)

    work: dict[str, Callable[[int], Awaitable[Any]]] = {
        "the last 20": lambda _: session.history_async(-20),
        "all messages": lambda _: session.messages_async(),
        "fork": lambda number: session.fork_async(f"fork-{length}-{number}"),
        "save": lambda _: session.to_dict_async(),
        "restore": restore,
    }
    return {what: [await _timed(call, number) for number in range(times)] for what, call in work.items()}


async def _timed(call: Callable[[int], Awaitable[Any]], number: int) -> float:
    began = time.perf_counter()
    await call(number)
    return (time.perf_counter() - began) * 1000
