"""A conformance check for session stores, including your own.

from antiphon.stores.conformance import check_store

def test_my_store(tmp_path):
    check_store(MyStore(tmp_path))
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from antiphon.stores.base import SessionStore

_IDS = ("conformance-1", "conformance 2/ä:{x}*?", "конверсация-3")


def check_store(store: SessionStore) -> None:
    """Check that a store does what sessions need. Raises ``AssertionError``, which describes the fault.

    The check does not touch existing sessions, and deletes its own at the end.
    """
    before = set(store.list_sessions())
    try:
        for check in _CHECKS:
            for session_id in _IDS:
                store.delete(session_id)
            check(store)
    finally:
        for session_id in _IDS:
            store.delete(session_id)
    _expect(set(store.list_sessions()) == before, "deleted ids must not be listed")


def _data(text: str, count: int = 1) -> dict[str, Any]:
    part = {"type": "text", "text": text}
    return {
        "version": 1,
        "session_id": _IDS[0],
        "agent": None,
        "system": None,
        "messages": [{"role": "user", "parts": [part]} for _ in range(count)],
        "variables": {"empty list": [], "empty": {}, "none": None, "float": 0.5, "big": 2**60, "yes": True},
        "metadata": {"quotes": "\"'\\", "lines": "a\nb", "unicode": "é漢🎈"},
        "created": 1_700_000_000_000,
        "updated": 1_700_000_000_001,
    }


def _unknown(store: SessionStore) -> None:
    _expect(store.load(_IDS[0]) is None, "load of an unknown id must give None")
    _expect(store.delete(_IDS[0]) is False, "delete of an unknown id must give False")
    _expect(_IDS[0] not in store.list_sessions(), "an unknown id must not be listed")


def _round_trip(store: SessionStore) -> None:
    for number, session_id in enumerate(_IDS):
        store.save(session_id, _data(f"text {number}"))
    for number, session_id in enumerate(_IDS):
        _expect(
            store.load(session_id) == _data(f"text {number}"),
            f"load({session_id!r}) must give what was saved, values and types alike",
        )
    listed = store.list_sessions()
    _expect(set(_IDS) <= set(listed), "every saved id must be listed as it was given")
    _expect(len(listed) == len(set(listed)), "no id may be listed twice")


def _pages(store: SessionStore) -> None:
    for session_id in _IDS:
        store.save(session_id, _data("text"))
    listed = sorted(store.list_sessions())
    found = store.page_of_sessions(count=len(listed) + 1)
    _expect(found == listed, "a page must have the saved ids in the order of their characters")
    found = store.page_of_sessions(_IDS[0], 1)
    _expect(
        found == listed[listed.index(_IDS[0]) + 1 :][:1], "a page must begin behind the id that it is given"
    )


def _replacing(store: SessionStore) -> None:
    store.save(_IDS[0], _data("first", 3))
    store.save(_IDS[0], _data("second"))
    _expect(store.load(_IDS[0]) == _data("second"), "the second save must replace the first one whole")


def _isolation(store: SessionStore) -> None:
    data = _data("saved")
    store.save(_IDS[0], data)
    data["messages"].append("changed after the save")
    loaded = store.load(_IDS[0])
    _expect(loaded == _data("saved"), "changing the dictionary after save must not change what is saved")
    if loaded is not None:
        loaded["variables"]["changed"] = "after the load"
    _expect(
        store.load(_IDS[0]) == _data("saved"), "changing a loaded dictionary must not change what is saved"
    )


def _deleting(store: SessionStore) -> None:
    store.save(_IDS[0], _data("one"))
    store.save(_IDS[1], _data("two"))
    _expect(store.delete(_IDS[0]) is True, "delete of a saved id must give True")
    _expect(store.load(_IDS[0]) is None, "load after delete must give None")
    _expect(store.delete(_IDS[0]) is False, "the second delete must give False")
    _expect(store.load(_IDS[1]) == _data("two"), "delete must leave other sessions alone")


def _large(store: SessionStore) -> None:
    data = _data("x" * 200, 2_000)
    store.save(_IDS[0], data)
    _expect(store.load(_IDS[0]) == data, "a session of 2,000 messages must come back whole")


def _stamps(store: SessionStore) -> None:
    if store.stamp(_IDS[0]) is None:
        return
    seen = {store.stamp(_IDS[0])}
    for text in ("one", "one", "two"):
        store.save(_IDS[0], _data(text))
        stamp = store.stamp(_IDS[0])
        _expect(stamp not in seen, "stamp must differ after every save")
        _expect(stamp == store.stamp(_IDS[0]), "stamp must stay the same between saves")
        seen.add(stamp)
    given = store.save_stamped(_IDS[0], _data("three"))
    _expect(given in (None, store.stamp(_IDS[0])), "save_stamped must give the stamp of what it has saved")
    store.delete(_IDS[0])
    store.save(_IDS[0], _data("one"))
    _expect(store.stamp(_IDS[0]) not in seen, "stamp must differ after delete and save")


def _threads(store: SessionStore) -> None:
    def save_and_load(number: int) -> bool:
        session_id = _IDS[number % len(_IDS)]
        store.save(session_id, _data(f"text {number}"))
        loaded = store.load(session_id)
        return loaded is not None and loaded == _data(loaded["messages"][0]["parts"][0]["text"])

    with ThreadPoolExecutor(8) as threads:
        _expect(
            all(threads.map(save_and_load, range(48))),
            "threads that save the same session must each read one of the saved states whole",
        )


def _unchanged(store: SessionStore) -> None:
    data = _data("mine")
    before = copy.deepcopy(data)
    store.save(_IDS[0], data)
    _expect(data == before, "save must not change the dictionary that it is given")


_CHECKS: tuple[Callable[[SessionStore], None], ...] = (
    _unknown, _round_trip, _pages, _replacing, _isolation, _unchanged, _deleting, _large, _stamps, _threads,
)  # fmt: skip


def _expect(holds: bool, promise: str) -> None:
    if not holds:
        raise AssertionError(promise)
