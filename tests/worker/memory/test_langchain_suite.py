"""LangChain's own suite for vector stores, over the FaissStore, and what it does not ask."""

import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import pytest
from langchain_tests.integration_tests import VectorStoreIntegrationTests

from antiphon.errors import StoreUnavailable, UsageError
from antiphon.memory import FaissStore, WordEmbeddings


class TestFaissStore(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, tmp_path):
        return FaissStore(tmp_path / "store", self.get_embeddings())


@pytest.fixture
def store(tmp_path):
    return FaissStore(tmp_path / "store", WordEmbeddings())


def texts(found):
    return [one.page_content for one in found]


def test_what_is_written_is_there_after_a_crash_and_for_others(store, tmp_path):
    store.add_texts(["green tea", "black coffee"], [{"user": "a"}, {"user": "b"}], ids=["1", "2"])
    other = FaissStore(tmp_path / "store", WordEmbeddings())  # the first one is never closed
    assert texts(other.similarity_search("tea", 1)) == ["green tea"]
    store.add_texts(["green grass"], ids=["1"])
    store.delete(["2", "unknown"])
    assert texts(other.similarity_search("tea", 5)) == ["green grass"]
    assert texts(other.similarity_search("tea", 5, filter={"user": "a"})) == []


def _add(store):
    store.add_texts(["from a fork"], ids=["fork"])


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_store_works_in_a_fork_and_still_in_its_parent(store):
    store.add_texts(["from the parent"], ids=["parent"])
    child = multiprocessing.get_context("fork").Process(target=_add, args=(store,))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert sorted(texts(store.similarity_search("from", 5))) == ["from a fork", "from the parent"]


def test_threads_that_write_and_search_at_once_lose_nothing(store):
    def work(number):
        store.add_texts([f"text {number}"], ids=[str(number)])
        return len(store.similarity_search("text", 100))

    with ThreadPoolExecutor(8) as threads:
        assert min(threads.map(work, range(40))) >= 1
    assert len(store.similarity_search("text", 100)) == 40


def test_what_was_deleted_does_not_stay_in_the_file(store):
    store.add_texts(["a secret that goes"], ids=["1"])
    store.delete(["1"])
    with store._open() as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert b"a secret that goes" not in (store.folder / "memory.db").read_bytes()


def test_what_does_not_fit_together_is_refused_and_a_file_that_cannot_be_opened_is_told(tmp_path):
    with pytest.raises(UsageError):
        FaissStore(tmp_path, WordEmbeddings()).add_texts(["a", "b"], ids=["1"])
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StoreUnavailable):
        FaissStore(tmp_path / "file", WordEmbeddings()).similarity_search("a")
