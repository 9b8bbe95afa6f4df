"""What the tests of the adapters share."""

from __future__ import annotations

import os

os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"  # it would send traces to a service
os.environ["LANGSMITH_TRACING"] = "false"

import pytest

from antiphon.ext.turns import TurnFunction


@pytest.fixture
def use(runtime):
    """Lets a function run the turns of the runtime of the test."""

    def use(run):
        function = run if isinstance(run, TurnFunction) else TurnFunction(run)
        if runtime.name == "local":
            runtime.model = function
        else:
            runtime.app.script = function

    return use
