"""Reading a submitted turn of this process along."""

import asyncio
import threading

from antiphon import Agent
from antiphon.testing import script


async def test_whoever_waits_with_a_time_limit_misses_nothing():
    gate = threading.Event()
    lines = script(["Hello ", lambda: asyncio.to_thread(gate.wait), "World"])
    turn = await Agent(lines, "any").session().submit_async("hello")
    events, seen, gave_up = turn.stream(), [], 0
    while not seen or not seen[-1].terminal:
        try:
            seen.append(await asyncio.wait_for(anext(events), 0.002))
        except TimeoutError:
            gave_up += 1
            if gave_up > 3:
                gate.set()
    assert gave_up > 3
    assert [event.to_json() for event in seen] == [
        event.to_json() for event in [e async for e in turn.stream()]
    ]


async def test_a_silent_turn_gives_heartbeats():
    gate = threading.Event()
    lines = script([lambda: asyncio.to_thread(gate.wait), "World"])
    turn = await Agent(lines, "any").session().submit_async("hello")
    types = []
    async for event in turn.stream(heartbeat=0.01):
        types.append(event.type)
        if types.count("heartbeat") == 3:
            gate.set()
    assert types.count("heartbeat") >= 3
    assert [kind for kind in types if kind != "heartbeat"] == [
        "turn_queued", "turn_started", "text_delta", "step_finished", "turn_finished",
    ]  # fmt: skip


async def test_a_reader_that_is_closed_is_over():
    turn = await Agent(script("World"), "any").session().submit_async("hello")
    async with turn.stream() as events:
        first = await anext(events)
    assert first.type == "turn_queued"
    assert [event async for event in events] == []
