"""`keep_variant`: a worker is told once to run a variant, and what came of it is kept as long as its turn."""

import pytest

from antiphon.errors import CorruptRecord, TurnNotFound, UsageError
from antiphon.model.recording import Variant, VariantRun
from antiphon.wire import variants
from antiphon.wire.connection.pubsub import LiveFeed
from antiphon.wire.editing import delete_session, forget_turn
from antiphon.wire.variants import keep_variant, variants_of


def run(number: int = 1, **fields) -> VariantRun:
    return VariantRun(f"v{number}", "support", "r1", "w1", number, **fields)


async def ended(cell):
    await cell.end(await cell.started("t1"))
    return await cell.turn("t1")


async def test_a_worker_that_listens_is_told_each_time(cell):
    """A command may be lost, and the worker knows what it has run."""
    record, feed = await ended(cell), LiveFeed(cell.redis)
    async with feed.listen(cell.keys.control("w1")) as listener:
        assert await listener.get(5) == b""  # it listens
        for _ in range(2):
            assert await keep_variant(cell, record, run(), tell=True)
            assert await listener.get(5) == b'{"command":"variant","turn_id":"t1","job_id":"v1"}'
    await feed.aclose()
    assert await keep_variant(cell, record, run(), tell=True), "it is kept, although nobody listens any more"
    assert [one.id for one in await variants_of(cell, record)] == ["v1"]


async def test_telling_again_does_not_replace_the_answer(cell):
    record = await ended(cell)
    await keep_variant(cell, record, run(status="finished", variant=Variant("m", text="Yes.")))
    await keep_variant(cell, record, run(), tell=True)
    [one] = await variants_of(cell, record)
    assert one.status == "finished"


async def test_a_variant_whose_worker_does_not_listen_is_not_kept(cell):
    record = await ended(cell)
    assert not await keep_variant(cell, record, run(), tell=True)
    assert await variants_of(cell, record) == []


async def test_the_answer_takes_the_place_of_the_question(cell):
    record = await ended(cell)
    for one in (run(2), run(1), run(1, status="finished", variant=Variant("m", text="Yes."))):
        assert await keep_variant(cell, record, one)
    first, second = await variants_of(cell, record)
    assert (first.id, first.status, first.variant.text) == ("v1", "finished", "Yes.")
    assert second.variant is None
    assert 0 < await cell.redis.pttl("ant:variants:t1") <= variants.LASTS_MS


async def test_variants_never_outlive_their_turn(cell):
    record = await ended(cell)
    await keep_variant(cell, record, run(1))
    await cell.redis.pexpire("ant:turn:t1", 60_000)
    for one in (run(2), run(1, status="finished", variant=Variant("m", text="Yes."))):
        await cell.redis.persist("ant:variants:t1")
        await keep_variant(cell, record, one)
        assert 0 < await cell.redis.pttl("ant:variants:t1") <= 60_000


async def test_variants_of_a_turn_that_does_not_expire_do(cell):
    record = await ended(cell)
    await cell.redis.persist("ant:turn:t1")
    await keep_variant(cell, record, run())
    await cell.redis.expire("ant:turn:t1", 60)
    assert 0 < await cell.redis.pttl("ant:variants:t1") <= variants.LASTS_MS


async def test_a_turn_has_no_more_variants_than_it_may(cell, monkeypatch):
    monkeypatch.setattr(variants, "MOST", 1)
    record = await ended(cell)
    await keep_variant(cell, record, run(1))
    await keep_variant(cell, record, run(1))
    with pytest.raises(UsageError, match="1 variants"):
        await keep_variant(cell, record, run(2))


async def test_a_deleted_session_leaves_no_variant_and_takes_none(cell):
    record = await ended(cell)
    await keep_variant(cell, record, run())
    await delete_session(cell, "s")
    assert await cell.redis.exists("ant:variants:t1") == 0
    with pytest.raises(TurnNotFound):
        await keep_variant(cell, record, run())
    assert await cell.redis.exists("ant:variants:t1") == 0


async def test_a_forgotten_turn_leaves_no_variant_and_nothing_that_models_received(cell):
    record = await ended(cell)
    await keep_variant(cell, record, run())
    await cell.redis.hset("ant:requests:t1", "1", "what a model received")
    await cell.redis.expire("ant:requests:t1", 60)
    await forget_turn(cell, record.turn_id)
    assert await cell.redis.exists("ant:variants:t1", "ant:requests:t1") == 0


async def test_a_damaged_variant_is_an_error_that_names_the_turn(cell):
    record = await ended(cell)
    await cell.redis.hset("ant:variants:t1", "v1", "no JSON")
    await cell.redis.expire("ant:variants:t1", 60)
    with pytest.raises(CorruptRecord) as raised:
        await variants_of(cell, record)
    assert raised.value.turn_id == "t1"
