"""Stores that tests watch, hold up and break, and the end of a session's life in Redis."""

import json
import threading
from typing import Any

from redis import Redis

from antiphon.stores.base import SessionStore

WAIT_SECONDS = 20.0


class OwnStore(SessionStore):
    """A store as a user writes one. It counts its saves, fails when told to, and waits where it is held."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.saves: list[str] = []
        self.failing = False
        self.fails_with: type[BaseException] = ConnectionError
        self.held: set[str] = (
            set()
        )  # "save" and "load" wait, once begun, until let go; a save waits before it saves
        self.begun = {"save": threading.Event(), "load": threading.Event()}
        self._go = threading.Event()

    def let_go(self) -> None:
        self.held.clear()
        self._go.set()

    def save(self, session_id: str, data: dict[str, Any]) -> None:
        self._enter("save")
        self.texts[session_id] = json.dumps(data)
        self.saves.append(session_id)

    def load(self, session_id: str) -> dict[str, Any] | None:
        self._enter("load")
        text = self.texts.get(session_id)
        return json.loads(text) if text else None

    def delete(self, session_id: str) -> bool:
        self._enter("delete")
        return self.texts.pop(session_id, None) is not None

    def list_sessions(self) -> list[str]:
        return list(self.texts)

    def _enter(self, what: str) -> None:
        if self.failing:
            raise self.fails_with("the database is away")
        if what in self.held:
            self.begun[what].set()
            assert self._go.wait(WAIT_SECONDS)


def session_keys(session: str) -> list[str]:
    """The keys whose life is that of a session."""
    return [f"ant:{kind}:{session}" for kind in ("session", "history", "media", "events", "turns")]


def is_archived(redis: Redis, session: str) -> bool:
    """Whether a session is archived as it is now."""
    seq, updated, version = redis.hmget(f"ant:session:{session}", "seq", "updated", "archived")  # type: ignore[misc]
    return version is not None and version.split()[:2] == [seq, updated]


def end_life(url: str, session: str) -> None:
    """Let a session's time be over, as if nobody had used it for so long. It must have been archived."""
    with Redis.from_url(url) as redis:
        assert is_archived(redis, session), "it is not archived yet"
        with redis.pipeline() as pipe:
            for key in session_keys(session):
                pipe.pttl(key)
            lives = {*pipe.execute()} - {-2}
        assert max(lives) - min(lives) <= 1, "its keys do not end together"
        for key in session_keys(session):
            redis.pexpireat(key, 1)
