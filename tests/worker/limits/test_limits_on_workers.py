"""What holds on workers alone: limits of the App, limits over several attempts, what is used before a death."""

import json
from datetime import date
from importlib.resources import files
from types import SimpleNamespace

import pytest
from support.cells import body, open_cell
from support.eventually import wait_until_async
from support.here import running_worker

from antiphon import Agent
from antiphon.client import AsyncClient
from antiphon.errors import LimitReached, SettingsError, StepLimitReached, UnknownTool
from antiphon.model import Message, ToolCall, encode
from antiphon.model.usage import Limits, Usage
from antiphon.tools import tool
from antiphon_worker.app import App
from antiphon_worker.inline_agents import Allow
from antiphon_worker.loop.costs import Meter, Price, prices_of
from antiphon_worker.loop.steps import StepEntry, encode_entry
from antiphon_worker.providers.anthropic.stream import AnthropicDecoder
from antiphon_worker.providers.base import ModelRequest
from antiphon_worker.settings import Settings


@tool
def look() -> str:
    """Look."""
    return "seen"


CALL = {"type": "tool_call", "call_id": "c", "name": "look"}
CALLS = [[CALL | {"call_id": f"c{n}"}] for n in range(9)]


def travelling(**limits) -> Agent:
    return Agent("scripted", "any", tools=[look], limits=Limits(**limits), script=CALLS)


async def end_of(url, app, agent, **options):
    async with running_worker(url, app), AsyncClient(url) as client:
        return await (await client.submit("s", "Hello", agent=agent, **options)).result(20)


@pytest.mark.parametrize("limits", [{}, {"tokens": 10**9}, {"steps": 30}])
@pytest.mark.parametrize(
    ("of_app", "error"), [({"tokens": 1}, LimitReached), ({"steps": 1}, StepLimitReached)]
)
async def test_an_agent_that_comes_with_a_turn_cannot_raise_the_limits_of_the_app(
    redis_url, limits, of_app, error
):
    allow = Allow(providers=["scripted"], parameters="any")
    app = App(tools=[look], travelling=allow, limits=Limits(**of_app))
    with pytest.raises(error):
        await end_of(redis_url, app, travelling(**limits))


async def test_an_agent_that_comes_with_a_turn_may_be_stricter(redis_url):
    allow = Allow(providers=["scripted"], parameters="any")
    app = App(tools=[look], travelling=allow, limits=Limits(tokens=10**9))
    with pytest.raises(LimitReached, match="of the 1 that it may use"):
        await end_of(redis_url, app, travelling(tokens=1))


async def test_a_stop_condition_has_a_name_on_its_way_to_the_worker(redis_url):
    def enough(steps):
        return True

    app = App(
        agents=[Agent("scripted", "any", name="a", tools=[look], limits=Limits(stop=[enough]), script=CALLS)]
    )
    assert (await end_of(redis_url, app, "a")).limit == "enough"
    with pytest.raises(UnknownTool, match="Unknown stop condition 'never'"):
        await end_of(redis_url, App(tools=[look], travelling=Allow(providers="any", parameters="any")),
                     travelling(stop=["never"]))  # fmt: skip


async def test_the_steps_of_earlier_attempts_count(redis_url, tmp_path):
    """A worker that died has left two steps in the journal; the third call is not made."""
    agent = Agent("scripted", "any", tools=[look], limits=Limits(tokens=200), script=CALLS)
    async with open_cell(redis_url) as cell, AsyncClient(redis_url) as client:
        turn = await client.submit("s", "Hello", agent=agent)
        claimed = await cell.take_one()
        entries = [encode_entry(step(n, Usage(50, 50))) for n in (1, 2)]
        await cell.append_step(claimed, length=0, step=3, entries=entries, bodies=[body(turn=turn.id)])
        await cell.reap(holder="w1")
        async with running_worker(
            redis_url, App(tools=[look], travelling=Allow(providers="any", parameters="any"))
        ):
            with pytest.raises(LimitReached, match="has used 200 tokens"):
                await turn.result(20)
        assert (await turn.info()).usage.tokens == 200


def step(number, usage):
    message = Message("assistant", [ToolCall(f"c{number}", "look")])
    return StepEntry(number, message, usage, "tool_use", None, "any")


async def test_seconds_count_from_the_first_start(redis_url):
    agent = Agent("scripted", "any", limits=Limits(seconds=5))
    async with open_cell(redis_url) as cell, AsyncClient(redis_url) as client:
        turn = await client.submit("s", "Hello", agent=agent)
        claimed = await cell.take_one()
        await cell.give_back(claimed, "error", reason="It failed.")
        key = cell.keys.turn(turn.id)
        accepted = int(await cell.redis.hget(key, "created"))  # the clock of the cell is that of the tests
        await cell.redis.hset(key, "started_at", accepted - 6000)
        async with running_worker(redis_url):
            with pytest.raises(LimitReached, match="5 s"):
                await turn.result(20)


@pytest.mark.parametrize(("back", "over"), [("suspended", False), ("ran", True)])
async def test_seconds_leave_out_the_time_while_a_turn_was_suspended(redis_url, back, over):
    lines = [[CALL], "Done."]
    own = Agent(
        "scripted", "any", name="a", tools=[look], limits=Limits(seconds=60), approval=True, script=lines
    )
    async with (
        open_cell(redis_url) as cell,
        AsyncClient(redis_url) as client,
        running_worker(redis_url, App([own])),
    ):
        turn = await client.submit("s", "Hello", agent="a")

        async def waits():
            return await turn.status() == "suspended"

        await wait_until_async(waits, 20, "the turn is suspended")
        key = cell.keys.turn(turn.id)
        for field in ["started_at", "suspended_at"] if back == "suspended" else ["started_at"]:
            await cell.redis.hincrby(key, field, -3_600_000)
        await turn.approve((await turn.info()).calls[0].call_id)
        if over:
            with pytest.raises(LimitReached, match="60 s"):
                await turn.result(20)
        else:
            assert (await turn.result(20)).text == "Done."
            assert int(await cell.redis.hget(key, "waited")) >= 3_600_000


async def test_what_a_turn_used_counts_for_its_session_where_its_workers_died_too_often(cell):
    await cell.redis.hset(cell.keys.session("s"), "usage", encode(Usage(1, 1)))
    turn = await cell.started("t1", "s")
    total = encode(Usage(101, 51, cost=0.5, unpriced_tokens=2))
    await cell.append_step(turn, length=0, step=2, entries=[b"{}"], bodies=[], usage=total)
    assert await cell.redis.hget(cell.keys.session("s"), "usage") == encode(Usage(1, 1))
    await cell.reap(holder="w1", crash_limit=1)
    assert await cell.redis.hget(cell.keys.session("s"), "usage") == total


async def test_a_turn_that_runs_again_counts_each_run_once(ensemble, redis_url):
    async with ensemble.worker():
        turn = await ensemble.submit("s", "tool:note fail:refused*2 Hello")
        with pytest.raises(Exception, match="refuses"):
            await turn.result(20)
        first = (await turn.info()).usage.tokens
        await turn.requeue()
        await turn.result(20)
        second = (await turn.info()).usage.tokens
    agent = Agent("scripted", "any", redis=redis_url)
    used = await agent.session("s").usage_async()
    await agent.runtime.aclose()
    assert (first, second, used.tokens) == (2, 4, 6)


async def test_a_total_that_cannot_be_read_stops_no_turn(cell, redis_url):
    await cell.redis.hset(cell.keys.session("s"), "usage", "{")
    async with running_worker(redis_url), AsyncClient(redis_url) as client:
        await (await client.submit("s", "Hello", agent=Agent("scripted", "any"))).result(20)
    assert b"input_tokens" in await cell.redis.hget(cell.keys.session("s"), "usage")


SHIPPED = json.loads(files("antiphon_worker.loop").joinpath("prices.json").read_text())


def test_the_table_has_a_date_and_its_sources_and_prices_that_fit_together():
    assert date.fromisoformat(SHIPPED["date"]) >= date(2026, 11, 22)
    assert all(source.startswith("https://") for source in SHIPPED["sources"])
    for model, price in SHIPPED["models"].items():
        cached = price["cached_input"]
        assert 0 < cached < price["input"] < price["output"], model
        assert price["input"] <= price.get("cache_write", price["input"]) <= 2 * price["input"], model


def test_each_kind_of_token_has_its_price():
    usage = Usage(1_000_000, 100_000, cached_input_tokens=500_000, cache_write_tokens=200_000)
    assert Price(10.0, 50.0, cached_input=1.0, cache_write=20.0).of(usage) == 3.0 + 0.5 + 4.0 + 5.0
    assert Price(10.0, 50.0).of(usage) == 15.0


@pytest.mark.parametrize("model", ["gpt-4o", "gpt-4o-2024-08-06", "gpt-4o-latest", "gpt-4o-20240806"])
def test_a_name_with_a_date_has_the_price_of_the_name(model):
    assert prices_of(None).price(model) == Price(2.5, 10.0, 1.25)


@pytest.mark.parametrize("model", ["gpt-4o-mega", "gpt-", "", "my-claude-opus-5"])
def test_an_unknown_name_has_none(model):
    assert prices_of(None).price(model) is None


def test_own_prices_stand_before_those_of_the_package(tmp_path):
    file = tmp_path / "prices.json"
    file.write_text('{"models": {"gpt-4o": {"input": 1, "output": 2}}}')
    for app, given in (
        (App(), str(file)), (App(prices=str(file)), ""), (App(prices={"gpt-4o": Price(1.0, 2.0)}), "")
    ):  # fmt: skip
        prices = app.prices(given)
        assert prices.price("gpt-4o") == Price(1.0, 2.0)
        assert prices.price("gpt-4o-mini") is not None


@pytest.mark.parametrize(
    "given",
    [
        5,
        "no such file",
        {"m": Price(float("nan"), 1.0)},
        {"m": Price(-1.0, 1.0)},
        {"m": {"input": 1}},
        {"m": {"input": 1, "output": 1, "in": 1}},
        {"m": 3},
    ],
)
def test_prices_that_cannot_be_read_are_refused_at_the_start(given):
    with pytest.raises(SettingsError):
        App(prices=given).prices()


def test_a_file_that_is_no_json_is_named(tmp_path):
    file = tmp_path / "prices.json"
    file.write_text("[")
    with pytest.raises(SettingsError, match=r"prices\.json"):
        App().prices(str(file))


def test_the_app_and_the_setting_do_not_both_give_prices():
    with pytest.raises(SettingsError, match="ANTIPHON_PRICES"):
        App(prices={"m": Price(1.0, 1.0)}).prices("prices.json")
    assert Settings.load({"prices": "prices.json"}, {}).prices == "prices.json"


async def test_an_app_says_which_of_its_agents_has_a_cost_that_cannot_be_limited():
    def enough(steps):
        return True

    app = App(
        agents=[
            Agent("scripted", "gpt-4o", name="known", limits=Limits(cost=1.0, stop=[enough])),
            Agent("scripted", "any", name="unknown", limits=Limits(session_cost=1.0)),
            Agent("scripted", "any", name="stops", limits=Limits(stop=["enough", "never"])),
        ]
    )
    lacking = await app.lacks()
    assert lacking["unknown"] == [
        "The model 'any' has no price, so that its cost cannot be limited: add it to App(prices=…)."
    ]
    assert lacking["stops"] == [
        "The App has no stop condition 'never': pass its function in Limits(stop=[…])."
    ]
    assert "known" not in lacking


def test_two_stop_conditions_of_one_name_are_refused():
    def agent(name):
        def enough(steps):
            return True

        return Agent("scripted", "any", name=name, limits=Limits(stop=[enough]))

    with pytest.raises(SettingsError, match="Two stop conditions"):
        App(agents=[agent("a"), agent("b")])


def test_what_a_service_has_counted_of_a_stopped_call_precedes_the_estimate():
    began = b'{"type":"message_start","message":{"usage":{"input_tokens":900,"output_tokens":1}}}'
    decoder = AnthropicDecoder("anthropic", "m")
    decoder.event(b"message_start", began, [])
    meter = Meter()
    meter.count_stopped(ModelRequest("m", [Message.user("Hello")]), decoder, SimpleNamespace(received=400))
    assert meter.used == Usage(900, 100, estimated_tokens=99)
