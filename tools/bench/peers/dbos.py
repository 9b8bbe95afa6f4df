"""DBOS on PostgreSQL: a turn is a workflow of one step, and its deltas are a DBOS stream."""

import asyncio
import os
from collections.abc import AsyncIterator
from functools import partial

from dbos import DBOS, DBOSClient, DBOSConfig, EnqueueOptions

from bench.peers.driver import CONCURRENCY, Stream, Submit, drive
from bench.peers.work import answer_async

QUEUE, WORKFLOW, DELTAS = "bench", "turn", "deltas"


@DBOS.step()
async def answered(session: str, text: str) -> None:
    await answer_async(session, text, publish=partial(DBOS.write_stream_async, DELTAS))


@DBOS.workflow(name=WORKFLOW)
async def turn(session: str, text: str) -> None:
    await answered(session, text)


def database_url() -> str:
    return os.environ["DBOS_SYSTEM_DATABASE_URL"]


def client() -> DBOSClient:
    """Connect a caller. Callers may start before the worker, so they also prepare the database."""
    DBOS.migrate(database_url())
    return DBOSClient(system_database_url=database_url(), use_listen_notify=True)


async def enqueue(database: DBOSClient, session: str, text: str) -> str:
    options: EnqueueOptions = {"workflow_name": WORKFLOW, "queue_name": QUEUE}
    return (await database.enqueue_async(options, session, text)).get_workflow_id()


async def submitter() -> Submit:
    return partial(enqueue, client())


async def streamer() -> Stream:
    database = client()

    async def stream(session: str, text: str) -> AsyncIterator[str]:
        workflow = await enqueue(database, session, text)
        async for delta in database.read_stream_async(workflow, DELTAS):
            yield delta

    return stream


async def work() -> None:
    config: DBOSConfig = {"name": "bench", "system_database_url": database_url()}
    DBOS(config=config)
    DBOS.launch()
    await DBOS.register_queue_async(QUEUE, worker_concurrency=CONCURRENCY)
    await asyncio.Event().wait()


def worker() -> None:
    asyncio.run(work())


if __name__ == "__main__":
    drive(worker, submitter, streamer)
