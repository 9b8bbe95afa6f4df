"""What becomes of a session's fields when its archived form meets what was set since; and the archive's errors."""

import msgspec
import pytest
from support.archives import OwnStore

from antiphon.errors import CorruptRecord, SettingsError
from antiphon.model import Message, encode, with_ids
from antiphon.redis.archived import restoration
from antiphon.redis.edits import Found
from antiphon.stores import RedisStore, SQLiteStore
from antiphon.stores.urls import store_at
from antiphon.wire.archiving import Ending
from antiphon_worker import archive
from antiphon_worker.app import App
from antiphon_worker.archive import Archive, ArchiveUnavailable, archived_form, new_copy
from antiphon_worker.settings import Settings

HISTORY = [encode(one) for one in with_ids([Message.user("hello"), Message.assistant("Hello.")])]


def fields(**values):
    """Fields of a session as they stand in Redis."""
    return {
        name: encode(value) if isinstance(value, dict) else str(value).encode()
        for name, value in values.items()
    }


def form(**values):
    """The archived form of a session with these fields."""
    return archived_form(Ending("s", b"v", 0, fields(**{"created": 5, "updated": 7, **values}), HISTORY))


def restored(data, **live):
    """The fields after a restoration, and the restoration."""
    found = Found(fields(**live), [], 0, [])
    new = restoration(found, data)
    after = dict(found.fields)
    for change in new.fields:
        assert after.get(change.name, b"") == change.old
        after[change.name] = change.new
    return {name: value for name, value in after.items() if value}, new


def test_a_session_comes_back_as_it_was():
    kept = {
        "agent": '{"provider":"openai","model":"m","queue":"q"}', "agent_queue": "q", "system": "Be brief.",
        "variables": {"user": "Alice"}, "metadata": {"plan": "free"}, "files": {"a": {"url": "u", "name": "a"}},
        "parent": "p", "tenant": "acme", "queue": "own", "children": "a\nb", "ttl": 60_000, "window": "1:20",
        "summary": "1:They met.",
    }  # fmt: skip
    after, new = restored(form(**kept), created=99, updated=100)
    assert after == fields(**{**kept, "created": 5, "updated": 100, "files": {}}) | {"files": after["files"]}
    assert msgspec.json.decode(after["files"])["a"]["url"] == "u"
    assert new.messages == HISTORY
    assert new.refuse == ""


def without_ids(data):
    """A copy that an older release has saved."""
    plain = [{key: value for key, value in message.items() if key != "id"} for message in data["messages"]]
    return {**data, "messages": plain}


def test_a_copy_without_ids_is_the_same_history_and_keeps_its_ids_from_then_on():
    ending = Ending("s", b"v", 0, fields(created=5), [*HISTORY, Message.user("more").to_json()])
    copy = new_copy(ending, without_ids(form()))
    assert (copy.lost, copy.replaced) == (0, None)
    assert [message["id"] for message in copy.data["messages"]] == ["h0", "h1", "h2"]


def test_what_redis_lost_of_a_history_is_found_in_a_copy_without_ids():
    ending = Ending("s", b"v", 0, fields(created=5), HISTORY[:1])
    assert new_copy(ending, without_ids(form())).lost == 1


def test_the_archived_form_is_the_saved_one_with_one_key_more():
    data = form(system="Be brief.", children="c", ttl=60_000)
    assert data.pop("archived") == {"ttl": "60000"}
    assert data["children"] == ["c"]
    assert data["version"] == 1
    assert [message["role"] for message in data["messages"]] == ["user", "assistant"]
    assert data["updated"] == 7


@pytest.mark.parametrize("name", ["system", "parent", "queue", "tenant"])
def test_what_was_set_since_stays(name):
    after, _ = restored(form(**{name: "same" if name == "tenant" else "old"}), **{name: "same"})
    assert after[name] == b"same"


def test_a_time_to_live_that_was_given_since_stays():
    assert restored(form(ttl=60_000), ttl=5)[0]["ttl"] == b"5"


def test_the_agent_that_a_session_began_with_is_what_it_was():
    assert restored(form(agent='"a"'), agent='"9"')[0]["agent"] == b'"a"'


def test_an_agent_that_was_never_known_stays_the_new_one():
    after, _ = restored(form(), agent='"b"', agent_queue="q")
    assert (after["agent"], after["agent_queue"]) == (b'"b"', b"q")


def test_variables_that_an_opening_offered_give_way_and_those_that_were_set_do_not():
    live = {"offered": {"count": 0, "new": 1, "set": 1}, "variables": {"count": 0, "new": 1, "set": 2}}
    after, _ = restored(form(variables={"count": 7, "old": 1, "set": 3}), **live)
    assert msgspec.json.decode(after["variables"]) == {"count": 7, "new": 1, "old": 1, "set": 2}
    assert "offered" not in after


def test_children_metadata_and_files_are_joined():
    old = {
        "children": "a\nb",
        "metadata": {"x": 1, "y": 1},
        "files": {"a": {"url": "1"}, "b": {"url": "1"}},
    }
    new = {"children": "b\nc", "metadata": {"y": 2, "z": 2}, "files": {"b": {"url": "2"}}}
    after, _ = restored(form(**old), **new)
    assert after["children"] == b"a\nb\nc"
    assert msgspec.json.decode(after["metadata"]) == {"x": 1, "y": 2, "z": 2}
    assert {name: file["url"] for name, file in msgspec.json.decode(after["files"]).items()} == {
        "a": "1", "b": "2",
    }  # fmt: skip


def test_a_cleared_session_gets_back_everything_but_its_history():
    data = form(system="Be brief.", window="1:20", summary="1:They met.", variables={"user": "Alice"})
    after, new = restored(data, restored="cleared")
    assert new.messages == []
    assert (after["system"], after["variables"]) == (b"Be brief.", b'{"user":"Alice"}')
    assert not {"window", "summary"} & after.keys()


def test_a_window_that_was_counted_since_gives_way_with_its_summary():
    after, _ = restored(form(), window="3:9", summary="2:x")
    assert not {"window", "summary"} & after.keys()


def test_a_session_that_was_never_archived_stays_as_it_is():
    live = {"system": "x", "variables": {"a": 1}, "offered": {"a": 1}, "origin": "o", "window": "1:2"}
    after, new = restored(None, **live)
    assert after == fields(system="x", variables={"a": 1}, window="1:2")
    assert (new.messages, new.refuse) == ([], "")


def test_a_closed_session_refuses_and_is_closed_again():
    after, new = restored(form(closed=1))
    assert (after["closed"], new.refuse) == (b"1", "closed")


def test_what_another_tenant_has_set_is_dropped():
    live = {"tenant": "others", "system": "tell me", "variables": {"user": "Eve"}, "restored": "cleared"}
    after, new = restored(form(tenant="ours", system="Be brief.", metadata={"plan": "free"}), **live)
    assert (after["tenant"], after["system"], new.refuse) == (b"ours", b"Be brief.", "tenant")
    assert "variables" not in after
    assert new.messages == HISTORY


def test_a_session_without_a_tenant_is_given_to_no_tenant():
    after, new = restored(form(system="Be brief."), tenant="acme")
    assert (after.get("tenant", b""), after["system"], new.refuse) == (b"", b"Be brief.", "tenant")
    after, new = restored(form(tenant="acme"))
    assert (after["tenant"], new.refuse) == (b"acme", "")


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ({"version": 99}, "format version 99"),
        ({"archived": {"ttl": 5}}, "archived fields"),
        ({"archived": 3}, "archived fields"),
        ({"messages": [{"role": "nobody"}]}, "messages"),
    ],
)
def test_a_damaged_copy_says_what_is_wrong(damage, sentence):
    with pytest.raises(CorruptRecord, match=sentence):
        restored({**form(), **damage})


def test_fields_of_a_newer_release_are_left_out():
    after, _ = restored({**form(), "archived": {"colour": "blue", "ttl": "5"}, "shape": "round"})
    assert after["ttl"] == b"5"
    assert "colour" not in after


async def test_whatever_a_store_raises_is_one_error_that_says_when_to_try_again(monkeypatch):
    store, now = OwnStore(), [100.0]
    monkeypatch.setattr(archive, "monotonic", lambda: now[0])
    store.failing = True
    kept, delays = Archive(store), []
    for now[0] in (100.0, 101.0, 110.0, 500.0):
        with pytest.raises(
            ArchiveUnavailable, match="The archive of sessions fails: the database is away"
        ) as e:
            await kept.load("s")
        delays.append(e.value.retry_after)
    assert delays == [1.0, 1.0, 10.0, 30.0]
    assert e.value.retryable
    store.failing = False
    assert await kept.load("s") is None
    store.failing = True
    with pytest.raises(ArchiveUnavailable) as e:
        await kept.save("s", dict)
    assert e.value.retry_after == 1.0


async def test_a_copy_that_cannot_be_read_is_no_outage(tmp_path):
    class Damaged(OwnStore):
        def load(self, session_id):
            raise CorruptRecord("it is damaged")

    with pytest.raises(CorruptRecord, match="it is damaged"):
        await Archive(Damaged()).load("s")


def test_a_url_names_the_store(tmp_path):
    with store_at(f"sqlite://{tmp_path}/archive.db") as store:
        assert isinstance(store, SQLiteStore)
        assert store.path == f"{tmp_path}/archive.db"
    with store_at("redis://localhost:1/0") as store:
        assert isinstance(store, RedisStore)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("sqlite://", "must be sqlite:///path"),
        ("archive.db", "must be sqlite:///path"),
        ("mysql://host/db", r"give any other store to the App: App\(store=…\)"),
        ("sqlite:///no/such/directory/archive.db", "whose directory does not exist"),
    ],
)
def test_a_wrong_url_says_what_to_do(url, sentence):
    with pytest.raises(SettingsError, match=sentence) as error:
        App().archive(Settings.load({}, {"ANTIPHON_ARCHIVE": url}).archive)
    assert "ANTIPHON_ARCHIVE" in str(error.value)


async def test_an_app_closes_the_archive_that_a_url_named_and_opens_it_again(tmp_path):
    app, url = App(), f"sqlite://{tmp_path}/archive.db"
    first = app.archive(url)
    await first.save("s", dict)
    await app.aclose()
    with pytest.raises(ArchiveUnavailable, match="closed"):
        await first.load("s")
    assert await app.archive(url).load("s") == {}
    await app.aclose()


async def test_an_app_leaves_the_store_that_it_was_given_open(tmp_path):
    with SQLiteStore(tmp_path / "archive.db") as store:
        app = App(store=store)
        await app.archive().save("s", dict)
        await app.aclose()
        assert store.load("s") == {}


def test_an_app_has_one_archive_at_the_most():
    store = OwnStore()
    assert App().archive() is None
    app = App(store=store)
    assert app.archive() is app.archive()
    with pytest.raises(SettingsError, match="use only one of them"):
        app.archive("sqlite:///tmp/archive.db")
    with pytest.raises(SettingsError, match="store= must be a SessionStore"):
        App(store="archive.db")  # type: ignore[arg-type]
