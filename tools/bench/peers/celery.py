"""Celery: a pool of threads, or by default of processes (``CELERY_POOL``)."""

import os

from celery import Celery

from bench.peers.driver import Submit, drive, redis_url
from bench.peers.work import answer

app = Celery("bench", broker=redis_url())
app.conf.task_ignore_result = True
turn = app.task(name="turn")(answer)


async def opened() -> Submit:
    async def submit(session: str, text: str) -> None:
        turn.delay(session, text)

    return submit


def worker() -> None:
    pool, size = os.environ["CELERY_POOL"].split(":")
    app.worker_main(["worker", "--pool", pool, "--concurrency", size, "--loglevel", "INFO"])


if __name__ == "__main__":
    drive(worker, opened)
