"""Elasticsearch, Pinecone, pgvector, Redis' search module and a store in memory, through LangChain's packages."""

import asyncio
import logging
import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import pytest
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import VectorStoreIntegrationTests
from redis import Redis
from support.cells import open_cell
from support.eventually import wait_until_async
from support.here import running_worker
from support.memories import host
from support.vector_servers import ElasticsearchServer, PgvectorServer, PineconeServer, SearchingRedis

from antiphon.client import AsyncClient
from antiphon.errors import StoreUnavailable, UsageError
from antiphon.memory import FaissStore, Memory, WordEmbeddings
from antiphon.testing import script
from antiphon_worker.app import App
from antiphon_worker.memory import indexer
from antiphon_worker.memory.documents import Index
from antiphon_worker.memory.recall import NOTE
from antiphon_worker.providers.scripted import ScriptedProvider

pytestmark = [pytest.mark.one_server, pytest.mark.filterwarnings("default::DeprecationWarning")]


class InMemory:
    failing = False

    def __enter__(self):
        self.store = InMemoryVectorStore(WordEmbeddings(64))
        return self

    def __exit__(self, *_):
        pass

    @property
    def documents(self):
        return self.store.store


def elasticsearch(server):
    from langchain_elasticsearch import ElasticsearchStore

    return ElasticsearchStore(index_name="memory", embedding=WordEmbeddings(64), es_url=server.url)


def pinecone(server):
    from langchain_pinecone import PineconeVectorStore

    return PineconeVectorStore(embedding=WordEmbeddings(64), pinecone_api_key="any", host=server.url)


class Postgres(PgvectorServer):
    failing = False

    @property
    def documents(self):
        import psycopg

        with psycopg.connect(self.database) as connection:
            return connection.execute("SELECT langchain_id FROM memory").fetchall()


def pgvector(server):
    from langchain_postgres import Column, PGEngine, PGVectorStore

    server.database = server.new_database()
    engine = PGEngine.from_connection_string(server.database.replace("postgresql:", "postgresql+psycopg:"))
    scope, name = Column("scope", "TEXT"), Column("langchain_id", "TEXT", nullable=False)
    engine.init_vectorstore_table("memory", 64, metadata_columns=[scope], id_column=name)
    return PGVectorStore.create_sync(engine, WordEmbeddings(64), "memory", metadata_columns=["scope"])


class SearchModule(SearchingRedis):
    failing = False

    @property
    def documents(self):
        with Redis.from_url(self.url) as redis:
            return [*redis.scan_iter("memory:*")]


def redis_search(server):
    from langchain_redis import RedisConfig, RedisVectorStore

    fields = [{"name": "scope", "type": "tag"}]
    config = RedisConfig(index_name="memory", redis_url=server.url, metadata_schema=fields)
    return RedisVectorStore(WordEmbeddings(64), config)


STORES = {
    "pgvector": (Postgres, pgvector),
    "redis search": (SearchModule, redis_search),
    "elasticsearch": (ElasticsearchServer, elasticsearch),
    "pinecone": (PineconeServer, pinecone),
    "in memory": (InMemory, lambda server: server.store),
}


def everything_in(kind, server):
    """All that the interface of a store returns, as text."""
    match kind:
        case "pgvector":
            import psycopg

            with psycopg.connect(server.database) as connection:
                return str(connection.execute("SELECT t::text FROM memory t").fetchall())
        case "redis search":
            with Redis.from_url(server.url) as redis:
                return str([redis.hgetall(key) for key in redis.scan_iter("memory:*")])
        case _:
            return str(server.documents)


async def settled(cell):
    return not await cell.redis.exists(cell.keys.unindexed("memory"))


@pytest.mark.parametrize("kind", STORES)
async def test_turns_are_indexed_recalled_in_their_tenant_and_forgotten(redis_url, kind, monkeypatch, caplog):
    caplog.set_level(logging.CRITICAL, "elastic_transport")
    monkeypatch.setattr(indexer, "FIRST_RETRY_SECONDS", 0.01)
    serve, open_store = STORES[kind]
    lines = script(*["Yes."] * 5)

    async def said(text, session, tenant):
        return await (await client.submit(session, text, agent="host", tenant=tenant)).result(20)

    with serve() as server:
        memory = Memory(open_store(server), scope="tenant", recall="start")
        server.failing = kind == "elasticsearch"  # Pinecone's own client tries again for seconds
        app = App(agents=[host(memory, provider="played")], providers={"played": ScriptedProvider(lines)})
        async with (
            AsyncClient(redis_url) as client,
            running_worker(redis_url, app),
            open_cell(redis_url) as cell,
        ):
            await said("My cat is called Mia.", "s1", "acme")
            server.failing = False
            await said("My cat is called Rex.", "s2", "rival")
            await wait_until_async(lambda: settled(cell))
            assert len(server.documents) == 2, "each once, although the first writes failed"
            await said("What is my cat called?", "s3", "acme")
            note = lines.requests[-1].messages[0].text
            assert note.startswith(NOTE)
            assert "Mia" in note
            assert "Rex" not in note
            await wait_until_async(lambda: settled(cell))
            await client.session("s1").delete()
            await wait_until_async(lambda: settled(cell))
            assert len(server.documents) == 2, "one of s2 and one of s3"


@pytest.mark.parametrize("whom", [{"session": "s1"}, {"tenant": "acme"}, {"user": "ann"}], ids=str)
@pytest.mark.parametrize("kind", STORES)
async def test_no_document_has_a_word_of_what_was_erased(redis_url, kind, whom):
    serve, open_store = STORES[kind]
    with serve() as server:
        memory = Memory(open_store(server), scope="tenant", recall="start")
        async with (
            AsyncClient(redis_url) as client,
            running_worker(redis_url, App(agents=[host(memory)])),
            open_cell(redis_url) as cell,
        ):
            for text, session, tenant, user in (
                ("My cat is called Mia.", "s1", "acme", "ann"),
                ("My cat is called Mia, as you know.", "s1", "acme", "ann"),
                ("My cat is called Rex.", "s2", "rival", "bob"),
            ):
                turn = await client.submit(session, text, agent="host", tenant=tenant, user=user)
                await turn.result(20)
            await wait_until_async(lambda: settled(cell))
            assert "Mia" in everything_in(kind, server)
            assert (await client.forget(**whom)).left == []
            await wait_until_async(lambda: "Mia" not in everything_in(kind, server), 20)
            assert "Rex" in everything_in(kind, server)


@pytest.mark.parametrize("kind", STORES)
async def test_concurrent_recalls_and_writes_disturb_each_other_in_no_store(kind):
    serve, open_store = STORES[kind]

    def about(name):
        return Document("My cat is called Mia.", id=name, metadata={"scope": "mine"})

    with serve() as server:
        index = Index(Memory(open_store(server)))
        await index.add([about("d0")])
        for _ in range(3):
            searches = [index.search("cat", "mine", 5) for _ in range(8)]
            *found, _, _ = await asyncio.gather(*searches, index.add([about("d1")]), index.delete(["absent"]))
            assert [one[0].page_content for one in found] == ["My cat is called Mia."] * 8


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


@pytest.fixture
def in_threads(store, monkeypatch):
    """The filters of the searches that use a thread."""
    found, search = [], store._nearest

    def noted(vector, k, having):
        found.append(having)
        return search(vector, k, having)

    monkeypatch.setattr(store, "_nearest", noted)
    return found


async def test_a_short_search_needs_no_thread(store, tmp_path, in_threads):
    store.add_texts(["green tea"], [{"scope": "a"}], ids=["1"])
    assert [texts(await store.asimilarity_search("tea", 1)) for _ in range(3)] == [["green tea"]] * 3
    FaissStore(tmp_path / "store", WordEmbeddings()).add_texts(["black tea"], [{"scope": "b"}], ids=["2"])
    assert texts(await store.asimilarity_search("tea", 5, filter={"scope": "b"})) == ["black tea"]
    store.delete(["2"])
    assert texts(await store.asimilarity_search("tea", 5, filter={"scope": "b"})) == []
    assert in_threads == []


async def test_a_search_that_may_take_long_leaves_the_event_loop(store, in_threads, monkeypatch):
    cold = FaissStore(store.folder, WordEmbeddings())
    cold.add_texts(["green tea"] * 70)
    monkeypatch.setattr(cold, "_nearest", lambda *asked: "in a thread")
    assert await cold.asimilarity_search_with_score("tea", 1) == "in a thread", "many changes are to be read"

    store.add_texts(["mint tea"], [{"scope": "a"}])
    store.similarity_search("tea", 1, {"scope": "a"})
    with store._lock:  # as another thread that writes
        searching = asyncio.create_task(store.asimilarity_search("tea", 1, {"scope": "a"}))
        await wait_until_async(lambda: len(in_threads) == 2, description="the search is in a thread")
    assert texts(await searching) == ["mint tea"]
    monkeypatch.setattr("antiphon.memory.faiss_store.MOST_NUMBERS", 70 * 512)
    await store.asimilarity_search("tea", 1, {"scope": "a"})
    assert len(in_threads) == 2, "its scope is small"
    await store.asimilarity_search("tea", 1)
    assert len(in_threads) == 3


def test_a_search_compares_the_vectors_of_its_scope_alone(store):
    scopes = [{"scope": "a", "user": 1}, {"scope": "a", "user": 2}, {"scope": "b", "user": 1}, {"user": 1}]
    store.add_texts([f"tea {number}" for number in range(4)], scopes, ids=[*"0123"])
    found = {
        str(having): sorted(texts(store.similarity_search("tea", 9, having)))
        for having in (
            {"scope": "a"},
            {"scope": "a", "user": 1},
            {"user": 1},
            {"scope": "c"},
            {"scope": None},
            {},
        )
    }
    assert [*found.values()] == [
        ["tea 0", "tea 1"], ["tea 0"], ["tea 0", "tea 2", "tea 3"], [], [], ["tea 0", "tea 1", "tea 2", "tea 3"]
    ]  # fmt: skip
    assert [store._vectors.numbers(having) // 512 for having in ({"scope": "a"}, {"scope": "c"}, {})] == [
        2,
        0,
        4,
    ]
    store.delete(["0", "1"])
    store.similarity_search("tea")
    assert len(store._vectors._indexes) == 2, "an empty scope leaves nothing"


async def test_the_nearest_of_all_scopes_come_first(store):
    store.add_texts(["green tea", "trains run late"], [{"scope": "a"}, {"scope": "a"}], ids=["1", "2"])
    store.add_texts(["tea", "a late tea"], [{"scope": "b"}, {"scope": "c"}], ids=["3", "4"])
    for _ in range(2):
        found = await store.asimilarity_search_with_score("tea", 3)
        assert found[0][0].id == "3"
        assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)


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
