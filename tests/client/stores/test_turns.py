"""The full-text index of turns in SQLite and PostgreSQL: the same words are found in both, and removed ones never."""

from __future__ import annotations

import pytest

from antiphon.stores import MemoryStore, SQLiteStore
from antiphon.stores.encrypted import SealedStore
from antiphon.stores.turns import IndexedTurn
from antiphon.stores.words import excerpt_of, query_of, words_of


@pytest.fixture(params=["sqlite", "postgres"])
def store(request, tmp_path):
    if request.param == "sqlite":
        with SQLiteStore(tmp_path / "archive.db") as store:
            yield store
        return
    from antiphon.stores import PostgresStore

    postgres = request.getfixturevalue("postgres")
    with PostgresStore(postgres.url, table=f"t_{abs(hash(request.node.name)) % 10**8}") as store:
        yield store


@pytest.fixture
def index(store):
    index = store.turn_index()
    assert not index.exists()
    index.prepare()
    index.prepare()
    assert index.exists()
    return index


def turn(text, turn_id="t", session="s", tenant=None, created=0):
    return IndexedTurn(session, turn_id, tenant, "agent", created, text)


def found(index, text, **options):
    query = query_of(text)
    assert query is not None
    options = {"tenant": None, "session": None, "start": 0, "count": 10, **options}
    return [one.turn_id for one in index.find(query, **options)]


TEXT = "Das Gerät Größe-42 wird über 北京大学 geliefert; don't panic, naïve Ångström! मैंने ภาษาไทย e-mail: a.b@c.de 🎈"
FOUND = (
    "gerät", "GERAT", "größe", "GRÖSSE", "42", "größe-42", '"größe 42"', "北京", "京大", "don't", "don’t",
    "angstrom", "ANGSTR", "naive", "मैंने", "ไทย", "a.b@c.de", "geliefert panic", "pan",
)  # fmt: skip
NOT_FOUND = ("erät", "北学", "42-größe", '"42 größe"', "panics", '"pan"', "geliefert nothing")


@pytest.mark.parametrize("text", FOUND)
def test_a_word_is_found_whatever_its_case_accents_and_script(index, text):
    index.put([turn(TEXT), turn("something else", "other")])
    assert found(index, text) == ["t"]


@pytest.mark.parametrize("text", NOT_FOUND)
def test_what_is_not_there_is_not_found(index, text):
    index.put([turn(TEXT)])
    assert found(index, text) == []


@pytest.mark.parametrize(
    "text",
    [
        "' OR 1=1 --",
        '" OR "',
        "a* NEAR(b",
        "words:x",
        "a & !b",
        "(((",
        "':*",
        "\\",
        "AND",
        "NOT",
        "{x}",
        "%s",
        "a\0b",
        "^a",
    ],
)
def test_no_query_is_an_expression_of_the_database(index, text):
    index.put([turn("plain words"), turn(f"before {text} behind", "hostile")])
    if query_of(text) is not None:
        assert "hostile" in found(index, text)
        assert "t" not in found(index, text)


@pytest.mark.parametrize("text", ["", " ", '"', '""', "!?", "…", "🎈"])
def test_a_query_without_words_is_none(text):
    assert query_of(text) is None


def test_tenants_and_sessions_are_apart(index):
    index.put([turn("tea", "a", "one", "acme"), turn("tea", "b", "two", "rival"), turn("tea", "c", "three")])
    assert sorted(found(index, "tea")) == ["a", "b", "c"]
    assert found(index, "tea", tenant="acme") == ["a"]
    assert found(index, "tea", tenant="' OR ''='") == []
    assert found(index, "tea", session="two") == ["b"]
    assert found(index, "tea", tenant="acme", session="two") == []


def test_the_best_turn_comes_first_and_pages_have_each_turn_once(index):
    index.put([turn("tea " + "and other things " * 50, f"t{n}", created=n) for n in range(9)])
    index.put([turn("tea tea tea", "best")])
    first, second = found(index, "tea", count=6), found(index, "tea", start=6, count=6)
    assert first[0] == "best"
    assert first[1:] + second == [f"t{n}" for n in range(8, -1, -1)]


def test_a_turn_is_replaced_and_what_was_removed_is_nowhere_in_the_database(index, store):
    index.put([turn("secretword one"), turn("kept", "other")])
    index.put([turn("second text")])
    assert (found(index, "secretword"), found(index, "second")) == ([], ["t"])
    index.put([turn("anotherword", "t2", "gone"), turn("anotherword", "t3", "gone")])
    index.remove([("gone", "t2"), ("gone", "t3"), ("gone", "unknown")])
    assert (found(index, "anotherword"), found(index, "kept")) == ([], ["other"])


def test_a_store_without_an_index_and_one_with_keys_say_so(tmp_path):
    from antiphon.encryption import Keyring

    keys = Keyring([("k", bytes(32))])
    assert MemoryStore().turn_index() is None
    assert SealedStore(SQLiteStore(tmp_path / "a.db"), keys).turn_index() is None
    assert SealedStore(SQLiteStore(tmp_path / "a.db")).turn_index() is not None


def shown(text, query):
    return "".join(
        f"[{part.text}]" if part.match else part.text for part in excerpt_of(text, query_of(query))
    )


def test_an_excerpt_shows_where_most_of_the_words_stand_together():
    text = "tea " + "x " * 200 + "the green tea of Änne " + "y " * 200
    assert shown(text, "green tea anne").startswith("…x ")
    assert "the [green] [tea] of [Änne] y" in shown(text, "green tea anne")
    assert len(shown(text, "green tea anne")) < 300
    assert shown("short tea", "tea") == "short [tea]"
    assert shown("nothing", "tea") == "nothing"
    assert shown("北京大学", "京大") == "北[京][大]学"


def test_words_have_bounds():
    assert len(query_of("w " * 500).phrases) == 32
    assert [len(word.text) for word in words_of("x" * 5000)] == [100]
