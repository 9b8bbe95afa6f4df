"""After an erasure, no row in PostgreSQL has a word, nor has any file once an operator has rewritten the tables."""

import psycopg
import pytest
from redis.asyncio import Redis
from support.eventually import wait_until_async
from support.here import running_worker
from support.leaks import CORE, MARKER

from antiphon import Agent, AsyncClient
from antiphon.errors import UsageError
from antiphon_worker.app import App

pytestmark = pytest.mark.one_server
HOST = Agent(provider="scripted", model="any", name="host")
NAME = "ann"


def rows(url):
    """All tables of a database, as text."""
    with psycopg.connect(url) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        return "".join(
            str(row) for (name,) in tables for row in connection.execute(f'SELECT t::text FROM "{name}" t')
        )


def files(server, url):
    """The files of a database that have the word, in any case."""
    with psycopg.connect(url) as connection:
        ((number,),) = connection.execute(
            "SELECT oid FROM pg_database WHERE datname = current_database()"
        ).fetchall()
    words = CORE.encode(), CORE.lower().encode()
    found = (server.folder / "data" / "base" / str(number)).iterdir()
    return [path.name for path in found if any(word in path.read_bytes() for word in words)]


def command(url, *texts):
    with psycopg.connect(url, autocommit=True) as connection:
        for text in texts:
            connection.execute(text)


async def hurry(redis_url):
    """Let copies in the archive be removed now, and not in a minute."""
    async with Redis.from_url(redis_url) as redis:
        waiting = await redis.zrange("ant:forget", 0, -1)
        if waiting:
            await redis.zadd("ant:forget", dict.fromkeys(waiting, 1))


@pytest.mark.parametrize("whom", [{"session": "s"}, {"tenant": "acme"}, {"user": NAME}], ids=str)
async def test_no_row_of_the_archive_and_the_index_of_turns_has_a_word(redis_url, postgres, whom):
    url = postgres.new_database()
    app = App(agents=[HOST], search=True)

    async def found():
        try:
            return len((await client.search(CORE)).hits)
        except UsageError:  # the worker still makes the index
            return 0

    async def say(session, text, **options):
        turn = await client.submit(session, text, agent="host", ttl=600, **options)
        await turn.result(timeout=20)

    async with AsyncClient(redis_url, archive=url) as client, running_worker(redis_url, app, archive=url):
        await say("s", MARKER, tenant="acme", user=NAME, metadata={"about": MARKER})
        await say("other", "Hello", tenant="rival", user="bob")
        await wait_until_async(lambda: rows(url).count(MARKER) >= 2, 20, description="it is archived")
        await wait_until_async(found, 20, description="it is found")
        command(url, "CHECKPOINT")
        assert files(postgres, url)
        assert (await client.forget(**whom)).left == []

        async def gone():
            await hurry(redis_url)
            return CORE.lower() not in rows(url).lower()

        await wait_until_async(gone, 20, description="no row has it")
        assert "Hello" in rows(url), "what others have stays"
    command(url, "VACUUM", "CHECKPOINT")
    assert files(postgres, url), "it frees the space, and does not overwrite it"
    command(url, "VACUUM FULL", "CHECKPOINT")
    assert files(postgres, url) == []
