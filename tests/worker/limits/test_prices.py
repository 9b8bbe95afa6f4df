"""Prices of models: the table of the package, the App's own, and what a call costs."""

import json
from datetime import date
from importlib.resources import files
from types import SimpleNamespace

import pytest

from antiphon import Agent
from antiphon.errors import SettingsError
from antiphon.model import Message
from antiphon.model.usage import Limits, Usage
from antiphon_worker.app import App
from antiphon_worker.loop.costs import Meter, Price, prices_of
from antiphon_worker.providers.anthropic.stream import AnthropicDecoder
from antiphon_worker.providers.base import ModelRequest
from antiphon_worker.settings import Settings

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
