"""Workers run ended turns again on their revisions: without tools, beside their turns."""

import asyncio
import json
from itertools import count

import pytest
from support.eventually import wait_until_async
from support.gateway import keys, programs, stand
from support.here import running_worker
from support.revisions import client_of

from antiphon import Agent, tool
from antiphon.cli.main import main
from antiphon.errors import StoreUnavailable, UsageError
from antiphon.redis import variants as reading
from antiphon.testing import script, tool_call
from antiphon_gateway import Access
from antiphon_worker.app import App
from antiphon_worker.process import variants

pytestmark = pytest.mark.one_server

RAN = []


@tool
def find_order(name: str) -> str:
    """Find an order."""
    RAN.append(name)
    return f"order {len(RAN)} of {name}"


@tool(approval=True)
def refund(order: str) -> str:
    """Refund."""
    RAN.append(order)
    return f"{order} is refunded"


CALLS = [tool_call("find_order", name="Ada"), tool_call("refund", order="7")]


def app(label: str, *said, **options) -> App:
    lines = script(*said, repeat=True)
    return App(
        agents=[Agent(lines, "any", name="support", label=label, tools=[find_order, refund], **options)]
    )


OLD = app("old", *CALLS, "It is refunded.")


async def ended(client, url, **options):
    """A turn of the old revision, with a tool and an approval."""
    async with running_worker(url, OLD):
        turn = await client.submit("s", "Refund my order.", agent="support", **options)

        async def waits() -> bool:
            return bool((await turn.info()).calls)

        await wait_until_async(waits, 30)
        [call] = (await turn.info()).calls
        await turn.approve(call.call_id, by="ada")
        await turn.result(30)
    RAN.clear()
    return turn


async def finished(turn, number: int = 1):
    async def so() -> bool:
        found = await turn.variants()
        return len(found) == number and all(one.status == "finished" for one in found)

    await wait_until_async(so, 30)
    return await turn.variants()


async def test_a_worker_with_the_revision_runs_variants_without_tools(redis_url):
    async with client_of(redis_url) as client:
        turn = await ended(client, redis_url)
        new = app("new", *CALLS, tool_call("find_order", name="Bob"), "Done.")
        async with running_worker(redis_url, OLD), running_worker(redis_url, new) as worker:
            started = await turn.replay("support@new", runs=1)
            [one] = await finished(turn)
        assert [one.id for one in started] == [one.id]
        assert (one.agent, one.revision, one.worker) == ("support", new.revisions["support"].id, worker.name)
        assert (one.variant.text, one.variant.error) == ("Done.", None)
        results = [each.text for message in one.variant.messages for each in message.tool_results]
        assert results[:2] == ["order 1 of Ada", "7 is refunded"]
        assert "no result" in results[2]
        assert RAN == []
        assert [each.id async for each in client.turns("s")] == [turn.id]


async def test_variants_fork_at_a_step_with_another_model_and_prompt(redis_url):
    async with client_of(redis_url) as client:
        turn = await ended(client, redis_url)
        seen = []

        def heard(request):
            seen.append((request.model, request.system))
            return "Maybe."

        async with running_worker(redis_url, app("new", heard)):
            await turn.replay("support@new", runs=3, step=3, model="other", system="Be brief.")
            found = await finished(turn, 3)
        assert seen == [("other", "Be brief.")] * 3
        assert {one.variant.text for one in found} == {"Maybe."}


async def test_the_same_key_starts_nothing_again(redis_url):
    async with client_of(redis_url) as client:
        turn, calls = await ended(client, redis_url), count()
        async with running_worker(redis_url, app("new", lambda _: f"answer {next(calls)}")):
            for _ in range(2):
                await turn.replay("support@new", runs=2, key="a key")
                found = await finished(turn, 2)
        assert sorted(one.variant.text for one in found) == ["answer 0", "answer 1"]


async def test_a_variant_that_fails_has_its_error_and_one_whose_worker_goes_is_lost(redis_url):
    async with client_of(redis_url) as client:
        turn, asked, stopped = await ended(client, redis_url), asyncio.Event(), asyncio.Event()

        async def hangs(_):
            asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        async with running_worker(redis_url, app("new", hangs)):
            await turn.replay("support@new", step=9)
            [one] = await finished(turn)
            assert one.variant.error.startswith("usage: The recording has 3 model calls")
            await turn.replay("support@new")
            await asked.wait()
        await wait_until_async(stopped.is_set, 20, "its model call is given up")
        assert sorted(one.status for one in await turn.variants()) == ["finished", "lost"]


@pytest.mark.parametrize("call", ["variants_of", "keep_variant"])
async def test_a_variant_is_run_and_kept_as_soon_as_redis_answers_again(call, redis_url, monkeypatch):
    real, fails, pauses, pause = getattr(variants, call), iter([True, True]), [], asyncio.sleep

    async def slept(seconds, *result):
        pauses.append(seconds)
        return await pause(seconds, *result)

    async def answers_later(*args, **options):
        if next(fails, False):
            raise StoreUnavailable("Redis does not answer.")
        return await real(*args, **options)

    monkeypatch.setattr(variants, call, answers_later)
    monkeypatch.setattr(variants, "AGAIN_SECONDS", 0.0101)
    monkeypatch.setattr(asyncio, "sleep", slept)
    async with client_of(redis_url) as client:
        turn = await ended(client, redis_url)
        async with running_worker(redis_url, app("new", "Done.")):
            await turn.replay("support@new")
            [one] = await finished(turn)
    assert (one.variant.text, next(fails, None), pauses.count(0.0101)) == ("Done.", None, 2)


async def test_a_variant_whose_command_was_lost_is_run_when_it_is_read(redis_url, monkeypatch):
    start, lost = variants.Variants.start, []

    def lose(self, *command):
        lost.append(command) if not lost else start(self, *command)

    monkeypatch.setattr(variants.Variants, "start", lose)
    async with client_of(redis_url) as client:
        turn = await ended(client, redis_url)
        async with running_worker(redis_url, app("new", "Done.")):
            [started] = await turn.replay("support@new")
            await wait_until_async(lambda: lost, 30)
            [one] = await finished(turn)
    assert (one.id, one.variant.text) == (started.id, "Done.")


async def test_a_worker_runs_each_variant_once_and_only_its_own(redis_url):
    async with client_of(redis_url) as client:
        turn, calls = await ended(client, redis_url), count()
        new = app("new", lambda _: f"answer {next(calls)}")
        async with running_worker(redis_url, new) as worker, running_worker(redis_url, new) as other:
            [one] = await turn.replay("support@new", key="a key")
            [cell], ids = client.connections.cells, {worker.name, other.name}
            [another] = ids - {one.worker}
            told = json.dumps({"command": "variant", "turn_id": turn.id, "job_id": one.id})
            for name in (another, one.worker, one.worker):
                await cell.redis.publish(cell.keys.control(name), told)
            [one] = await finished(turn)
            await cell.redis.publish(cell.keys.control(one.worker), told)
            await turn.replay("support@new", key="another key")
            await finished(turn, 2)
        assert next(calls) == 2


async def test_a_variant_that_runs_for_ever_is_lost(redis_url, monkeypatch):
    """Its worker goes on, and cannot write what has come of it."""
    async with client_of(redis_url) as client:
        turn = await ended(client, redis_url)
        monkeypatch.setattr(variants.Variants, "start", lambda *_: None)
        async with running_worker(redis_url, app("new", "Done.")):
            await turn.replay("support@new")
            assert [one.status for one in await turn.variants()] == ["running"]
            monkeypatch.setattr(reading, "LONGEST_MS", -1)
            assert [one.status for one in await turn.variants()] == ["lost"]


async def test_only_an_ended_turn_of_a_known_revision_is_replayed(redis_url):
    async with client_of(redis_url) as client:
        turn = await ended(client, redis_url)
        with pytest.raises(UsageError, match="No worker has support@new now"):
            await turn.replay("support@new")
        for wrong, options in (("support", {}), ("support@old", {"runs": 0}), ("support@old", {"step": 0})):
            with pytest.raises(UsageError):
                await turn.replay(wrong, **options)
        waiting = await client.submit("r", "Hello", agent="support")
        with pytest.raises(UsageError, match="only ended turns"):
            await waiting.replay("support@old")
        await waiting.cancel()


def test_a_turn_without_redis_has_no_variants():
    turn = Agent(script("Hello."), "any").session().submit("Hi")
    turn.result()
    assert turn.variants() == []
    with pytest.raises(UsageError, match="Only workers"):
        turn.replay("support@new")


async def test_the_command_compares_revisions(redis_url, capsys):
    async with client_of(redis_url) as client:
        turn = await ended(client, redis_url)

        def next_of(request):
            answers = [one for one in request.messages if one.role == "assistant"]
            return [*CALLS, "Done."][len(answers)]

        new = app("new", next_of)
        async with running_worker(redis_url, new):
            argv = ["replay", turn.id, "--redis-url", redis_url, "--agent"]
            assert await asyncio.to_thread(main, [*argv, "support@new", "-n", "2"]) == 0
            told = capsys.readouterr().out
            revision = new.revisions["support"].id
            assert [line.split()[:5] for line in told.splitlines()[1:4]] == [
                ["recorded", "-", "3", "-", "-"],
                ["run", "1", "of", f"support@{revision}", "any"],
                ["run", "2", "of", f"support@{revision}", "any"],
            ]
            assert told.count("in call 3") == 2
            assert await asyncio.to_thread(main, argv[:-1]) == 0
            assert capsys.readouterr().out == told, (
                "without --agent, the runs that are kept are compared again"
            )
            for _ in range(2):
                assert await asyncio.to_thread(main, [*argv, "support@new", "--json", "--key", "once"]) == 0
                assert json.loads(capsys.readouterr().out)["text"] == "Done."
            assert len(await turn.variants()) == 3
            assert await asyncio.to_thread(main, [*argv, "support@gone"]) != 0
            assert "No worker has support@gone" in capsys.readouterr().err


async def test_only_an_admin_replays_over_http_and_a_key_makes_it_once(redis_url, tmp_path):
    known, secrets = keys(
        user={"tenant": "a", "rights": ["read", "write"]},
        admin={"tenant": "a", "rights": ["admin"]},
        other={"tenant": "b", "rights": ["admin"]},
    )
    access = Access(known, secret="a secret that every replica has, 32 bytes")
    async with (
        client_of(redis_url) as client, stand(redis_url, tmp_path, access=access) as (_, api, _),
        programs(api, secrets) as all_,
    ):  # fmt: skip
        turn = await ended(client, redis_url, tenant="a")
        where, body = f"/turns/{turn.id}/variants", {"revision": "support@new"}
        async with running_worker(redis_url, app("new", "Done.")):
            await all_["user"].call("POST", where, 403, json=body)
            await all_["other"].call("POST", where, 404, json=body)
            for _ in range(2):
                await all_["admin"].call("POST", where, 202, json=body, headers={"idempotency-key": "once"})
            await finished(turn)
        [one] = await all_["admin"].get(where)
        assert one["variant"]["text"] == "Done."
