"""Temporal on its development server: a turn is a workflow of one activity, and its deltas are a workflow stream."""

from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from uuid import uuid4

import uvloop
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.contrib.workflow_streams import WorkflowStream, WorkflowStreamClient
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from bench.peers.driver import CONCURRENCY, Stream, Submit, claim, drive, port
    from bench.peers.work import answer_async

QUEUE, DELTAS = "bench", "deltas"
ANSWER_TIMEOUT = timedelta(minutes=1)


@activity.defn
async def answered(session: str, text: str) -> None:
    """Answer a turn. Each delta is a signal to the workflow, sent immediately, and also a heartbeat if requested."""
    watched = claim() is not None
    async with WorkflowStreamClient.from_within_activity() as stream:
        deltas = stream.topic(DELTAS, type=str)

        async def publish(delta: str) -> None:
            if watched:
                activity.heartbeat()
            deltas.publish(delta)
            await stream.flush()

        await answer_async(session, text, publish)


@workflow.defn
class Turn:
    @workflow.init
    def __init__(self, session: str, text: str) -> None:
        self.stream = WorkflowStream()

    @workflow.run
    async def run(self, session: str, text: str) -> None:
        await workflow.execute_activity(
            answered,
            args=[session, text],
            start_to_close_timeout=ANSWER_TIMEOUT,
            heartbeat_timeout=claim(),
        )


async def connect() -> Client:
    return await Client.connect(f"127.0.0.1:{port()}")


async def start(client: Client, session: str, text: str) -> str:
    workflow_id = f"{session}-{uuid4()}"
    await client.start_workflow(Turn.run, args=[session, text], id=workflow_id, task_queue=QUEUE)
    return workflow_id


async def submitter() -> Submit:
    return partial(start, await connect())


async def streamer() -> Stream:
    client = await connect()

    async def stream(session: str, text: str) -> AsyncIterator[str]:
        deltas = WorkflowStreamClient.create(client, await start(client, session, text))
        async for item in deltas.subscribe(DELTAS, result_type=str):
            yield item.data

    return stream


async def work() -> None:
    worker = Worker(
        await connect(), task_queue=QUEUE, workflows=[Turn], activities=[answered],
        max_concurrent_activities=CONCURRENCY,
    )  # fmt: skip
    await worker.run()


def worker() -> None:
    uvloop.run(work())


if __name__ == "__main__":
    drive(worker, submitter, streamer)
