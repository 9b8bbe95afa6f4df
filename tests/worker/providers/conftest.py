"""Fixtures for the tests of providers."""

import asyncio
import socket

import pytest


@pytest.fixture
def unused_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(params=["asyncio", "uvloop"])
def any_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coroutines of a test run on each loop that a worker may have."""
    if request.param == "uvloop":
        uvloop = pytest.importorskip("uvloop")
        monkeypatch.setattr(asyncio.events, "new_event_loop", uvloop.new_event_loop)
