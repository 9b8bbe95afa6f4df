"""Indexers of these tests look often, so that no test waits for them."""

import pytest

from antiphon_worker.memory import indexer


@pytest.fixture(autouse=True)
def _indexers_look_often(monkeypatch):
    monkeypatch.setattr(indexer, "PAUSE_SECONDS", 0.01)
