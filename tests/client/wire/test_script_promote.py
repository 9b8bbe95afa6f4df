"""`promote`: each change follows the one before, and none gets lost."""

import asyncio

import msgspec
import pytest

from antiphon.errors import CorruptRecord
from antiphon.model.revisions import Promotion, Promotions
from antiphon.wire.promotions import change_promotions, copy_promotions, promotions_of


async def test_a_text_that_was_read_is_replaced_and_a_repetition_finds_its_own(cell):
    for _ in range(2):
        assert await cell.run("promote", "", '{"version":1}') == [b"PROMOTED"]
    assert await cell.run("promote", "", '{"version":2}') == [b"CHANGED", b'{"version":1}']
    assert await cell.redis.get("ant:promotions") == b'{"version":1}'
    for _ in range(2):
        assert await cell.run("promote", '{"version":1}', "") == [b"PROMOTED"]
    assert not await cell.redis.exists("ant:promotions")


async def test_concurrent_changes_all_count(cell):
    def add(name):
        return lambda known: known | {name: Promotion(revision=name)}

    await asyncio.gather(*(change_promotions(cell, add(f"a{n}")) for n in range(20)))
    assert (await promotions_of(cell)).agents.keys() == {f"a{n}" for n in range(20)}


async def test_the_last_promotion_leaves_no_key(cell):
    await change_promotions(cell, lambda _: {"a": Promotion(revision="r")})
    await change_promotions(cell, lambda _: {})
    assert not await cell.redis.exists("ant:promotions")
    assert await promotions_of(cell) == Promotions()


async def test_what_changes_nothing_writes_nothing(cell):
    before = await cell.contents()
    await change_promotions(cell, lambda known: known)
    assert await cell.contents() == before


async def test_a_copy_takes_the_place_of_older_ones_only(cell):
    first = await change_promotions(cell, lambda _: {"a": Promotion(revision="r1")})
    newer = await change_promotions(cell, lambda _: {"a": Promotion(revision="r2")})
    await copy_promotions(cell, first)
    assert await promotions_of(cell) == newer
    await copy_promotions(cell, Promotions(newer.version + 1, {"a": Promotion(revision="r3")}))
    assert (await promotions_of(cell)).agents["a"].revision == "r3"


async def test_the_repetition_of_a_reset_reaches_cells_that_still_have_promotions(cell):
    repeated = await change_promotions(cell, lambda _: {})
    of_another_cell = Promotions(repeated.version - 1, {"a": Promotion(revision="r")})
    await cell.redis.set("ant:promotions", msgspec.json.encode(of_another_cell))
    await copy_promotions(cell, repeated)
    assert not await cell.redis.exists("ant:promotions")


async def test_damaged_promotions_are_reported(cell):
    await cell.redis.set("ant:promotions", "no JSON")
    with pytest.raises(CorruptRecord, match="promotions"):
        await promotions_of(cell)


async def test_a_claim_returns_them_and_notes_no_app(cell):
    await cell.put("t1")
    await change_promotions(cell, lambda _: {"a": Promotion(revision="r1")})
    turn = await cell.take_one(app="a1")
    assert turn.app == ""
    assert b'"r1"' in (turn.promotions or b"")
