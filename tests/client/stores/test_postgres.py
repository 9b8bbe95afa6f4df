"""Sessions in a real PostgreSQL server: shared by processes, paged, and there again after a restart."""

import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from support.eventually import wait_until
from support.network import free_port

from antiphon.errors import ClientClosed, StoreUnavailable, UsageError
from antiphon.stores import PostgresStore
from antiphon.stores.conformance import check_store


@pytest.fixture
def store(postgres, request):
    with PostgresStore(postgres.url, table=f"t_{abs(hash(request.node.name))}") as store:
        yield store


def test_the_postgres_store_conforms(store):
    check_store(store)


def test_ids_are_paged_in_the_order_of_their_bytes(store):
    ids = ["a", "B", "é", "z", "a b"]
    for session_id in ids:
        store.save(session_id, {"version": 1})
    wanted = sorted(ids, key=str.encode)
    assert store.page_of_sessions(count=2) == wanted[:2]
    assert store.page_of_sessions(after=wanted[1], count=9) == wanted[2:]


def test_all_ids_are_listed_however_many_pages_they_fill(store, monkeypatch):
    monkeypatch.setattr("antiphon.stores.postgres.PAGE", 2)
    ids = [f"s{number}" for number in range(5)]
    for session_id in ids:
        store.save(session_id, {"version": 1})
    assert store.list_sessions() == ids


def test_stores_that_begin_at_once_make_one_table(postgres):
    stores = [PostgresStore(postgres.url, table="at_once", connections=1) for _ in range(6)]
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda each: each.save("s", {"version": 1}), stores))
    assert stores[0].list_sessions() == ["s"]
    for store in stores:
        store.close()


def _save(store):
    store.save("child", {"version": 1})


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_store_works_in_a_fork_and_still_in_its_parent(store):
    store.save("parent", {"version": 1})
    child = multiprocessing.get_context("fork").Process(target=_save, args=(store,))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert store.list_sessions() == ["child", "parent"]


def test_a_server_that_restarts_is_found_again_and_has_everything(postgres):
    with PostgresStore(postgres.url, timeout=0.3, table="restarted") as store:
        store.save("s", {"version": 1})
        postgres.stop()
        try:
            with pytest.raises(StoreUnavailable):
                store.load("s")
        finally:
            postgres.start()
        assert wait_until(lambda: _loaded(store)) == {"version": 1}


def _loaded(store):
    with suppress(StoreUnavailable):
        return store.load("s")


def test_a_closed_store_says_so_and_a_wrong_table_is_refused(postgres):
    store = PostgresStore(postgres.url)
    store.close()
    with pytest.raises(ClientClosed):
        store.load("s")
    with pytest.raises(UsageError, match="table="):
        PostgresStore(postgres.url, table="a; DROP")


def test_no_address_is_told_where_no_server_is(free_port_url):
    with PostgresStore(free_port_url, timeout=0.3) as store, pytest.raises(StoreUnavailable) as caught:
        store.load("s")
    assert "secret" not in str(caught.value)


@pytest.fixture
def free_port_url():
    return f"postgresql://user:secret@127.0.0.1:{free_port()}/nothing"
