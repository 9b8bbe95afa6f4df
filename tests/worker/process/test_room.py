"""The places of a process, which the claims of its cells share."""

import asyncio

from support.eventually import wait_until_async

from antiphon_worker.process.room import Room


async def test_every_cell_of_an_idle_process_comes_to_wait():
    """Also if the places do not suffice for a full claim in each cell at once."""
    cells, room = 10, Room(20, cells=10)
    waiting: set[int] = set()

    async def serve(cell: int) -> None:
        more = True
        while True:
            places, more = await room.reserve(8, more)
            if not more:
                waiting.add(cell)
                await asyncio.Event().wait()
            await asyncio.sleep(0)  # a claim that finds no turns
            room.leave(places)
            await asyncio.sleep(0)
            more = False

    serving = [asyncio.create_task(serve(cell)) for cell in range(cells)]
    await wait_until_async(lambda: len(waiting) == cells, 5, "each cell waits")
    for task in serving:
        task.cancel()
    await asyncio.gather(*serving, return_exceptions=True)
