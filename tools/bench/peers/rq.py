"""Stock RQ: the default ``rq worker``, which forks for every job, and ``SimpleWorker``, which does not."""

import os

import rq
from redis import Redis

from bench.peers.driver import Submit, drive, redis_url
from bench.peers.work import answer


async def opened() -> Submit:
    queue = rq.Queue("bench", connection=Redis.from_url(redis_url()))

    async def submit(session: str, text: str) -> None:
        queue.enqueue(answer, session, text)

    return submit


def worker() -> None:
    kind = rq.SimpleWorker if os.environ.get("RQ_KIND") == "simple" else rq.Worker
    kind(["bench"], connection=Redis.from_url(redis_url())).work()


if __name__ == "__main__":
    drive(worker, opened)
