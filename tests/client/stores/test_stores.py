"""Stores keep sessions as they were; one check runs over all of them, and finds what is wrong with others."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from pathlib import Path

import pytest
from redis import Redis

from antiphon.errors import (
    ClientClosed,
    CorruptRecord,
    SettingsError,
    StoreError,
    StoreReadOnly,
    StoreUnavailable,
    UsageError,
)
from antiphon.stores import MemoryStore, RedisStore, SessionStore, SQLiteStore
from antiphon.stores.conformance import check_store


class RedisStoreOfTheDocument(SessionStore):
    def __init__(self, redis_client):
        self.redis = redis_client

    def save(self, session_id: str, data: dict) -> None:
        self.redis.set(f"session:{session_id}", json.dumps(data))

    def load(self, session_id: str) -> dict | None:
        data = self.redis.get(f"session:{session_id}")
        return json.loads(data) if data else None

    def delete(self, session_id: str) -> bool:
        return self.redis.delete(f"session:{session_id}") > 0

    def list_sessions(self) -> list[str]:
        keys = self.redis.keys("session:*")
        return [k.replace("session:", "") for k in keys]


def test_the_memory_store_conforms():
    check_store(MemoryStore())


def test_the_sqlite_store_conforms(tmp_path):
    with SQLiteStore(tmp_path / "sessions.db") as store:
        check_store(store)


def test_the_sqlite_store_conforms_in_memory():
    with SQLiteStore(":memory:") as store:
        check_store(store)


def test_the_redis_store_conforms(redis_url):
    with RedisStore(redis_url) as store:
        check_store(store)


@pytest.mark.parametrize("decode", [True, False])
def test_the_redis_store_conforms_on_any_client(redis_url, decode):
    with Redis.from_url(redis_url, decode_responses=decode) as client:
        check_store(RedisStore(client, prefix="odd [prefix]*:", ttl=60))


def test_a_store_written_by_a_user_conforms(redis_url):
    with Redis.from_url(redis_url, decode_responses=True) as client:
        check_store(RedisStoreOfTheDocument(client))


class Forgetful(MemoryStore):
    def delete(self, session_id):
        super().delete(session_id)
        return True


class Sharing(MemoryStore):
    def __init__(self):
        self.data = {}

    def save(self, session_id, data):
        self.data[session_id] = data

    def load(self, session_id):
        return self.data.get(session_id)

    def delete(self, session_id):
        return self.data.pop(session_id, None) is not None

    def list_sessions(self):
        return list(self.data)


class Stuck(MemoryStore):
    def stamp(self, session_id):
        return "always"


@pytest.mark.parametrize(
    ("store", "says"),
    [
        (Forgetful(), "unknown id must give False"),
        (Sharing(), "must not change"),
        (Stuck(), "stamp must differ"),
    ],
)
def test_the_check_says_what_is_wrong_with_a_store(store, says):
    with pytest.raises(AssertionError, match=says):
        check_store(store)


def test_the_check_leaves_other_sessions_alone():
    store = MemoryStore()
    store.save("mine", {"version": 1})
    check_store(store)
    assert store.list_sessions() == ["mine"]


def test_a_saved_session_is_there_when_the_database_is_opened_again(tmp_path):
    with SQLiteStore(tmp_path / "s.db") as store:
        store.save("a", {"version": 1})
    with SQLiteStore(tmp_path / "s.db") as store:
        assert store.load("a") == {"version": 1}


def test_the_database_is_in_write_ahead_mode(tmp_path):
    with SQLiteStore(tmp_path / "s.db") as store:
        store.save("a", {})
        with sqlite3.connect(tmp_path / "s.db") as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        connection.close()


SAVE_MANY = """
import sys
from antiphon.stores import SQLiteStore

with SQLiteStore(sys.argv[1]) as store:
    for number in range(25):
        store.save(f"{sys.argv[2]}-{number}", {"n": number})
"""


@pytest.mark.main_path
def test_several_processes_write_one_database(tmp_path, processes):
    path = tmp_path / "s.db"
    writers = [processes.python("-c", SAVE_MANY, str(path), f"p{n}") for n in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    with SQLiteStore(path) as store:
        assert len(store.list_sessions()) == 75


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_store_goes_on_in_the_child_of_a_fork(tmp_path):
    with SQLiteStore(tmp_path / "s.db") as store:
        store.save("a", {"by": "parent"})
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                store.save("b", {"by": "child"})
                code = 0 if store.load("a") == {"by": "parent"} else 2
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        assert store.load("b") == {"by": "child"}


def test_a_writer_waits_for_another_and_says_so_in_the_end(tmp_path):
    path = tmp_path / "s.db"
    with SQLiteStore(path, timeout=0.05) as store:
        store.save("a", {})
        other = sqlite3.connect(path)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked"):
            store.save("a", {"n": 1})
        other.rollback()
        other.close()
        store.save("a", {"n": 2})
        assert store.load("a") == {"n": 2}


def test_what_is_no_database_is_refused(tmp_path):
    (tmp_path / "s.db").write_text("no database at all, but a text of some length" * 50)
    with SQLiteStore(tmp_path / "s.db") as store, pytest.raises(StoreError, match=r"s\.db"):
        store.load("a")


def test_a_missing_directory_is_named(tmp_path):
    with SQLiteStore(tmp_path / "none" / "s.db") as store, pytest.raises(UsageError, match="none"):
        store.load("a")


def test_damaged_data_are_refused(tmp_path):
    with SQLiteStore(tmp_path / "s.db") as store:
        store.save("a", {"n": 1})
        connection = sqlite3.connect(tmp_path / "s.db")
        with connection:
            connection.execute("UPDATE sessions SET data = '{\"n\":'")
        connection.close()
        with pytest.raises(CorruptRecord, match="'a'"):
            store.load("a")


def test_a_closed_store_says_so(tmp_path):
    store = SQLiteStore(tmp_path / "s.db")
    store.close()
    with pytest.raises(ClientClosed):
        store.load("a")


@pytest.mark.parametrize("store", [MemoryStore(), SQLiteStore(":memory:")])
def test_what_json_cannot_say_is_refused(store):
    with pytest.raises(UsageError, match="'a' cannot be saved as JSON"):
        store.save("a", {"thread": threading.Lock()})
    assert store.load("a") is None


def test_a_read_only_database_is_named(tmp_path):
    path = tmp_path / "s.db"
    with SQLiteStore(path) as store:
        store.save("a", {})
        store._idle[0].execute("PRAGMA query_only = 1")
        with pytest.raises(StoreReadOnly):
            store.save("a", {"n": 1})


def test_saved_sessions_expire_after_the_ttl(redis_url):
    with Redis.from_url(redis_url) as client:
        RedisStore(client, ttl=100).save("a", {})
        assert 0 < client.ttl("antiphon:saved:a") <= 100
        RedisStore(client).save("a", {})
        assert client.ttl("antiphon:saved:a") == -1


def test_an_unreachable_redis_is_a_store_error():
    with RedisStore("redis://127.0.0.1:1/0") as store, pytest.raises(StoreUnavailable):
        store.load("a")


@pytest.mark.parametrize("given", [7, "http://x", None])
def test_what_is_no_redis_is_refused(given):
    with pytest.raises(SettingsError):
        RedisStore(given)


def test_a_store_needs_its_four_methods():
    class Half(SessionStore):
        def save(self, session_id, data): ...

    with pytest.raises(TypeError, match="abstract"):
        Half()


def test_the_path_may_be_a_path():
    assert SQLiteStore(Path("a") / "b.db").path == os.path.join("a", "b.db")
