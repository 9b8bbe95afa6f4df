"""The threads of graphs on a Redis Cluster: they are in a cell, move with it, and are erased with their sessions."""

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from redis import Redis

from antiphon.client import AsyncClient
from antiphon.ext.langgraph import AntiphonSaver
from antiphon.redis.moving import move_cells

pytestmark = [pytest.mark.main_path, pytest.mark.lasting_keys("ant:*")]


def graph_with(saver):
    graph = StateGraph(MessagesState).add_node("hear", lambda state: {"messages": [("assistant", "Yes")]})
    return graph.add_edge(START, "hear").compile(checkpointer=saver)


def of(thread):
    return {"configurable": {"thread_id": thread}}


async def said(saver, thread, text):
    state = await graph_with(saver).ainvoke({"messages": [("user", text)]}, of(thread))
    return [message.text for message in state["messages"]]


async def threads_of(saver):
    found = [one.config["configurable"] async for one in saver.alist(None)]
    ids = [(one["thread_id"], one["checkpoint_id"]) for one in found]
    assert len(ids) == len(set(ids))
    return {thread for thread, _ in ids}


def graph_keys(cluster):
    keys = set()
    for node in cluster.primaries:
        with Redis.from_url(node.url) as redis:
            keys |= {key.decode() for key in redis.keys("*graph:*")}
    return keys


async def test_threads_are_kept_listed_copied_and_deleted_in_the_cells_of_a_cluster(cluster):
    saver = AntiphonSaver(cluster.url(4), ttl=600)
    threads = {f"t{number}" for number in range(8)}
    for thread in threads:
        assert await said(saver, thread, "Hi") == ["Hi", "Yes"]
        assert await said(saver, thread, "You?") == ["Hi", "Yes", "You?", "Yes"]
    assert await threads_of(saver) == threads
    assert len({key.split(":")[1] for key in graph_keys(cluster)}) > 1, "they are in several cells"
    await saver.acopy_thread("t0", "copy")
    assert (await said(saver, "copy", "Now?"))[:2] == ["Hi", "Yes"]
    for thread in {*threads, "copy"}:
        await saver.adelete_thread(thread)
    assert graph_keys(cluster) == set()
    await saver.aclose()


@pytest.mark.own_server
async def test_threads_move_with_their_cell_and_are_erased_with_their_session(redis_url, cluster):
    saver = AntiphonSaver(redis_url, ttl=600)
    await said(saver, "t", "Hi")
    async with AsyncClient(redis_url) as client:
        turn = await client.submit("s", "Hi", agent="a")
        await said(saver, f"s:{turn.id}:1", "Hi")
        listed = saver.alist(None)
        before = [await anext(listed)]
        await move_cells(redis_url, cluster.url(1), prefix="ant", say=lambda _: None)
        before += [one async for one in listed]
        found = [one.checkpoint["id"] for one in before]
        assert len(found) == len(set(found)) == 6, "a list that had begun at the old place"
        assert await said(saver, "t", "You?") == ["Hi", "Yes", "You?", "Yes"]
        assert await threads_of(saver) == {"t", f"s:{turn.id}:1"}
        assert await said(AntiphonSaver(cluster.url(1)), "t", "On?") == [
            "Hi",
            "Yes",
            "You?",
            "Yes",
            "On?",
            "Yes",
        ]
        await turn.cancel()
        assert (await client.forget(session="s")).left == []
        assert await threads_of(saver) == {"t"}
    await saver.aclose()
