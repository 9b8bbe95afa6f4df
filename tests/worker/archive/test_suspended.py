"""Turns that wait for decisions in sessions whose time to live is over, with an archive (G12)."""

import pytest
from redis import Redis
from support.archives import OwnStore, end_life, is_archived
from support.ensemble import agent_spec, open_ensemble
from support.eventually import wait_until_async

from antiphon.input.request import WAITS

pytestmark = [pytest.mark.one_server, pytest.mark.usefixtures("quick")]
TTL = 1.0  # seconds


async def archived(redis, session):
    await wait_until_async(lambda: is_archived(redis, session), 30, f"{session} is archived")


@pytest.mark.parametrize("passed_by", [False, True])
async def test_a_session_does_not_end_while_its_turn_waits(redis_url, tmp_path, passed_by):
    """Another session with the same life, used at the same time, has ended meanwhile and was archived."""
    store, agent = OwnStore(), agent_spec(approval=["pay"], version=WAITS)
    async with (
        open_ensemble(redis_url, tmp_path / "stage") as ensemble,
        ensemble.worker(store=store),
    ):
        with Redis.from_url(redis_url) as redis:
            await (await ensemble.submit("s", "before", ttl=TTL)).result(30)
            await archived(redis, "s")
            end_life(redis_url, "s")
            aside = {"while_suspended": "continue"} if passed_by else {}
            turn = await ensemble.submit("s", "buy tool:note tool:pay", agent=agent, ttl=TTL, **aside)

            async def waits():
                return await turn.status() == "suspended"

            await wait_until_async(waits, 30, "the turn is suspended")
            if passed_by:
                await (await ensemble.submit("s", "meanwhile")).result(30)
            await (await ensemble.submit("other", "hello", ttl=TTL)).result(30)
            await wait_until_async(
                lambda: not redis.exists("ant:session:other"), 30, "the other one has ended"
            )
            assert "other" in store.texts
            for kind in ("session", "history", "events", "turns"):
                assert redis.ttl(f"ant:{kind}:s") == -1
            assert redis.ttl(f"ant:turn:{turn.id}") == -1
            assert redis.ttl(f"ant:journal:{turn.id}") == -1
            (call,) = (await turn.info()).calls
            await turn.approve(call.call_id, by="ada")
            await turn.result(30)
            texts = [text for role, text in await ensemble.texts("s") if role == "user"]
            assert texts == ["before", *(["meanwhile"] if passed_by else []), "buy tool:note tool:pay"]
            assert [note["tool"] for note in ensemble.stage.notes("tool")] == ["note", "pay"], "each ran once"
            await archived(redis, "s")
            assert "buy tool:note" in store.texts["s"], "it is saved again when its time is over"
