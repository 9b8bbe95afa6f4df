"""docs/redis.md and docs/states.md say what the code says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from support.redis_page import PAGE, with_table

from antiphon.model import TERMINAL, Status
from antiphon.wire.scripts import script_names

STATES = Path(PAGE).with_name("states.md")


def arrows() -> set[tuple[str, str]]:
    """The arrows of the chart."""
    return set(re.findall(r"^\s+(\S+) --> (\w+|\[\*\])", STATES.read_text(), re.MULTILINE))


def test_the_table_of_keys_is_the_one_in_the_code():
    page = PAGE.read_text()
    assert page == with_table(page), "Write it anew: PYTHONPATH=tests python -m support.redis_page"


def test_the_chart_has_the_states_of_the_model():
    named = {state for arrow in arrows() for state in arrow} - {"[*]"}
    assert named == set(get_args(Status))
    assert {old for old, new in arrows() if new == "[*]"} == TERMINAL


def test_the_chart_names_scripts_that_exist():
    labels = " ".join(re.findall(r"-->[^:\n]*: (.*)", STATES.read_text()))
    for verb in ("submit", "claim", "reap", "cancel", "finish", "give_back"):
        assert verb in labels
        assert verb in script_names()


def test_every_state_is_explained():
    explained = set(re.findall(r"\*\*(\w+)\*\*", STATES.read_text()))
    assert explained == set(get_args(Status))
