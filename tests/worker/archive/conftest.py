import pytest
from support.archives import OwnStore

from antiphon_worker import archive


@pytest.fixture
def own() -> OwnStore:
    return OwnStore()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The archiver looks at once for what ends."""
    monkeypatch.setattr(archive, "PAUSE_SECONDS", 0.01)
