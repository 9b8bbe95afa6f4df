"""`count`: the figures of worker processes are kept once each, and a key has few of them, however many there were."""

import random

import pytest

from antiphon.model.feedback import Feedback, Figures
from antiphon.wire.feedback import figures_of, keep_figures, rate
from antiphon_worker.process.figures import _Written

REVISION = ("support", "r1")
KEY = "ant:figures:support@r1"


async def whole(cell) -> Figures:
    [found] = await figures_of(cell, [REVISION])
    return found


async def test_what_a_process_writes_again_takes_the_place_of_what_it_wrote(cell):
    for found in (Figures(finished=1, seconds=0.5), Figures(finished=2, seconds=0.75, cost=0.1)):
        assert await keep_figures(cell, REVISION, "w1", found, known=False)
    assert await keep_figures(cell, REVISION, "w1", Figures(finished=3), known=True)
    assert await whole(cell) == Figures(finished=3)
    assert await cell.redis.pttl(KEY) > 30 * 86_400_000


async def test_figures_of_single_turns_are_added_up(cell):
    await keep_figures(cell, REVISION, "w1", Figures(finished=1, cost=0.25), known=False)
    for _ in range(3):
        await keep_figures(cell, REVISION, "", Figures(failed=1, tokens=7, cost=0.5), known=False)
    assert await whole(cell) == Figures(finished=1, failed=3, tokens=21, cost=1.75)
    assert await cell.redis.hlen(KEY) == 2


async def test_a_key_has_few_fields_however_many_processes_there_were(cell):
    await cell.put("t1")
    await rate(cell, await cell.turn("t1"), Feedback(1), REVISION)
    for number in range(250):
        await keep_figures(cell, REVISION, f"w{number}", Figures(finished=1, tokens=2), known=False)
        assert await cell.redis.hlen(KEY) <= 101
    assert await whole(cell) == Figures(finished=250, tokens=500, rated=1, scores=1.0)
    assert await cell.redis.hexists(KEY, "w249")
    assert not await cell.redis.hexists(KEY, "w0")


async def test_those_that_wrote_last_stay(cell):
    for number in range(100):
        await keep_figures(cell, REVISION, f"w{number}", Figures(finished=1), known=False)
    await cell.wait(10)
    assert await keep_figures(cell, REVISION, "w0", Figures(finished=2), known=True)
    await keep_figures(cell, REVISION, "new", Figures(finished=1), known=False)
    assert await cell.redis.hexists(KEY, "w0")
    assert await whole(cell) == Figures(finished=102)


async def test_a_process_whose_figures_were_added_up_counts_from_there(cell):
    assert await keep_figures(cell, REVISION, "w1", Figures(finished=5), known=False)
    await cell.redis.hset(KEY, mapping={"past": await cell.redis.hget(KEY, "w1")})
    await cell.redis.hdel(KEY, "w1")
    before = await cell.contents()
    assert not await keep_figures(cell, REVISION, "w1", Figures(finished=6), known=True)
    assert await cell.contents() == before


@pytest.mark.parametrize("damaged", ["no JSON", "[1]", '{"finished":"x"}', ""])
async def test_figures_that_cannot_be_read_do_not_stop_the_others(cell, damaged):
    await cell.redis.hset(KEY, mapping={"past": damaged, "bad": damaged})
    await keep_figures(cell, REVISION, "", Figures(finished=1), known=False)
    for number in range(120):
        await keep_figures(cell, REVISION, f"w{number}", Figures(finished=1), known=False)
    assert await whole(cell) == Figures(finished=121)


async def test_whatever_is_lost_and_added_up_every_turn_counts_once(cell, monkeypatch):
    """Answers get lost after the script has run, processes write in any order, and others are added up meanwhile."""
    choose, ended = random.Random(5), 0
    counting = [Figures() for _ in range(160)]
    writers = [
        _Written(cell, f"w{number}", lambda one=one: {REVISION: one}) for number, one in enumerate(counting)
    ]
    run, lost = cell.run, []

    async def run_and_lose(*arguments):
        answer = await run(*arguments)
        if choose.random() < 0.2:
            lost.append(arguments)
            raise ConnectionError
        return answer

    monkeypatch.setattr(cell, "run", run_and_lose)
    for _ in range(1500):
        number = choose.randrange(160) if choose.random() < 0.5 else choose.randrange(10)
        counting[number].finished += 1
        ended += 1
        for _ in range(10):
            try:
                await writers[number].write()
            except ConnectionError:
                continue
            break
        await cell.wait(1)
    monkeypatch.setattr(cell, "run", run)
    assert lost
    assert (await whole(cell)).finished == ended
