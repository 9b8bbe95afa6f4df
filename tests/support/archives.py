"""Stores that tests watch, hold up and break, and the expiry of a session from Redis."""

import json
import threading
from typing import Any

from redis import Redis

from antiphon.stores.base import SessionStore

WAIT_SECONDS = 20.0


class OwnStore(SessionStore):
    """A store as users write one. It lists its saves, fails if ``failing``, and waits in calls that are ``held``."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.saves: list[str] = []
        self.failing = False
        self.fails_with: type[BaseException] = ConnectionError
        self.held: set[str] = (
            set()
        )  # begun calls of "save" and "load" wait until let go; a save waits before it saves
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
    """Return the keys that expire with a session."""
    return [f"ant:{kind}:{session}" for kind in ("session", "history", "media", "events", "turns")]


def is_archived(redis: Redis, session: str) -> bool:
    """Return whether the present state of a session is archived."""
    seq, updated, version = redis.hmget(f"ant:session:{session}", "seq", "updated", "archived")  # type: ignore[misc]
    return version is not None and version.split()[:2] == [seq, updated]


def end_life(url: str, session: str) -> None:
    """Expire a session as if it had not been used for its lifetime. It must have been archived."""
    with Redis.from_url(url) as redis:
        assert is_archived(redis, session), "it is not archived yet"
        with redis.pipeline() as pipe:
            for key in session_keys(session):
                pipe.pttl(key)
            lives = {*pipe.execute()} - {-2}
        assert max(lives) - min(lives) <= 1, "its keys do not end together"
        for key in session_keys(session):
            redis.pexpireat(key, 1)
