"""Each parameter and event of the SDKs is known: a release that adds one fails a test that names it."""

import re

import provider_fields as fields
import pytest

PAGE = fields.PAGE.read_text().partition(fields.BEGIN)[2].partition(fields.END)[0]
SERVICES = sorted(fields.PARAMETERS)


def listed(what):
    """The names in the table with this heading."""
    table = PAGE.partition(f"| {what} | here |")[2].partition("\n\n")[0]
    return set(re.findall(r"`([^`]+)`", table))


@pytest.mark.parametrize("service", SERVICES)
def test_every_parameter_of_the_sdk_is_on_the_page(service):
    missing = {*fields.parameters(service)} - listed(f"parameter of `{service}`")
    assert not missing, (
        "new in the SDK: see what the provider does with them, and run tools/provider_fields.py"
    )


@pytest.mark.parametrize("service", SERVICES)
def test_every_event_of_the_sdk_is_on_the_page_and_read_or_explained(service):
    what = "field of a chunk" if service == "openai-chat" else "event"
    found = fields.events(service)
    missing = {*found} - listed(f"{what} of `{service}`")
    assert not missing, "new in the SDK: read them or say why not, and run tools/provider_fields.py"
    assert [name for name, here in found.items() if not here] == []


def test_the_tables_are_current():
    page = fields.PAGE.read_text()
    assert fields.page_with(page, fields.table()) == page, "run: python tools/provider_fields.py"


def test_a_new_parameter_and_a_new_event_are_named(monkeypatch):
    class Newer(fields.PARAMETERS["anthropic"]):
        telepathy: str

    monkeypatch.setitem(fields.PARAMETERS, "anthropic", Newer)
    with pytest.raises(AssertionError, match="telepathy"):
        test_every_parameter_of_the_sdk_is_on_the_page("anthropic")
    monkeypatch.setattr(fields, "_kinds", lambda union: ["response.smell.delta"])
    with pytest.raises(AssertionError, match=r"response\.smell\.delta"):
        test_every_event_of_the_sdk_is_on_the_page_and_read_or_explained("openai")


@pytest.mark.parametrize("service", SERVICES)
def test_a_parameter_that_nobody_knows_is_passed_through(service):
    assert fields.treatment(service, "not_yet_known") == "passed through"
