"""What the tests of the adapters share."""

import os

os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"  # it would send traces to a service
os.environ["LANGSMITH_TRACING"] = "false"

import pytest
from agents import set_default_openai_client
from openai import AsyncOpenAI
from support.models import ModelProcess

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


@pytest.fixture
def models(processes, monkeypatch):
    """A model server that the SDKs of this process find, with connections of its own."""
    server = ModelProcess(processes)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    set_default_openai_client(AsyncOpenAI(base_url=server.openai_url, api_key="any"), use_for_tracing=False)
    return server
