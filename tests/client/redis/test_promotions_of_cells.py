"""Promotions are written to one cell after the other: a call that failed halfway is repeated."""

import pytest

from antiphon.client import AsyncClient
from antiphon.errors import StoreUnavailable, UsageError
from antiphon.model.revisions import Promotion
from antiphon.redis import agents as module
from antiphon.wire.promotions import change_promotions, copy_promotions, promotions_of

pytestmark = [pytest.mark.one_server, pytest.mark.lasting_keys("ant:promotions")]


async def test_a_roll_back_that_names_its_revision_is_made_once_whatever_answer_was_lost(redis_url):
    promotion = Promotion(revision="bad", previous="base")
    async with AsyncClient(redis_url) as client:
        (cell,) = client.connections.cells
        await change_promotions(cell, lambda _: {"a": promotion})
        with pytest.raises(UsageError, match="a@base was not promoted last: a@bad was"):
            await client.agents().roll_back("a@base")
        for _ in range(3):
            found = await client.agents().roll_back("a@bad")
            assert (found.revision, found.previous, found.withdrawn) == ("base", "", ["bad"])
        stored = Promotion(revision="worse", previous="base", canary="bad", share=0.5, withdrawn=["worst"])
        await change_promotions(cell, lambda _: {"a": stored})
        for _ in range(2):
            found = await client.agents().roll_back("a@bad")
            assert (found.revision, found.canary, found.withdrawn) == ("worse", "", ["worst", "bad"])
        await client.agents().reset("a")


@pytest.mark.parametrize(
    "promotion",
    [
        Promotion(revision="base", previous="older", canary="bad", share=0.5),
        Promotion(revision="bad", previous="base"),
    ],
    ids=["canary", "all"],
)
async def test_a_roll_back_that_failed_halfway_is_completed_and_not_made_twice(
    redis_url, promotion, monkeypatch
):
    async def fails(*_):
        raise StoreUnavailable("The second cell is away.")

    async with AsyncClient([redis_url, redis_url.removesuffix("0") + "1"]) as client:
        first, second = client.connections.cells
        await copy_promotions(second, await change_promotions(first, lambda _: {"a": promotion}))
        with monkeypatch.context() as patch:
            patch.setattr(module, "copy_promotions", fails)
            with pytest.raises(StoreUnavailable):
                await client.agents().roll_back("a")
        assert await promotions_of(first) != await promotions_of(second)
        assert (await client.agents().roll_back("a")).revision == "base"
        for cell in (first, second):
            found = (await promotions_of(cell)).agents["a"]
            assert (found.revision, found.canary, found.withdrawn) == ("base", "", ["bad"])
        if promotion.canary:
            assert (await client.agents().roll_back("a")).revision == "older"
        with pytest.raises(UsageError, match="Nothing to roll back"):
            await client.agents().roll_back("a")
        await client.agents().reset("a")
