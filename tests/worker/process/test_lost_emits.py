"""An emit or its answer is lost, and the worker cannot know which: no delta is missing, none is doubled (G5)."""

import asyncio
import logging

import pytest
from support.ensemble import open_ensemble
from support.eventually import wait_until_async
from support.proxy import Proxy
from support.stage import FIRST_WORDS

from antiphon.wire.scripts import load_script

pytestmark = pytest.mark.one_server
WORDS = 40
OFTEN = 6  # more often than a call is repeated by the connection itself


@pytest.mark.parametrize("lost", ["its answer", "its answers", "itself"])
async def test_each_delta_is_published_once_when_an_emit_is_lost(
    lost, redis_url, redis_server, tmp_path, caplog
):
    caplog.set_level(logging.INFO)
    with Proxy(redis_server.port) as proxy:
        async with open_ensemble(redis_url, tmp_path / "stage") as ensemble, ensemble.worker(url=proxy.url):
            seen = []
            reader = asyncio.create_task(read_along(ensemble, seen))
            turn = await ensemble.submit("s", f"go on gate:g words:{WORDS}")
            await ensemble.waits("g")
            await ensemble.seen("s", "text_delta")
            if lost == "itself":
                proxy.refuse()
            else:
                proxy.drop_reply(load_script("emit").sha.encode(), times=1 if lost == "its answer" else OFTEN)
            ensemble.stage.open("g")
            if lost == "itself":
                await wait_until_async(lambda: "events cannot be published" in caplog.text)
                proxy.heal()
            response = await turn.result(60)
            assert proxy.lost_replies == {"its answer": 1, "its answers": OFTEN, "itself": 0}[lost]
            events = await ensemble.events("s")
            await wait_until_async(lambda: len(seen) >= len(events), 10, "the reader has seen everything")
            assert [event.to_json() for event in seen] == [event.to_json() for event in events]
            said = "".join(event.text for event in events if event.type == "text_delta")
            counted = "".join(f"{number} " for number in range(WORDS))
            assert said == FIRST_WORDS + counted + response.text.removeprefix(FIRST_WORDS)
            assert await ensemble.field(turn, "attempt") == "1"
            await ensemble.whole("s")
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)


async def read_along(ensemble, seen):
    async for event in ensemble.client.subscribe("s", 0):
        seen.append(event)
