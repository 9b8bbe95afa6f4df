"""A job of RQ that waits for a turn, and holds no worker meanwhile.

$ rq worker --with-scheduler --worker-ttl 30 --maintenance-interval 10 tickets
$ python rq_tasks.py 7 "Where is my order?"
"""

from __future__ import annotations

import sys

from redis import Redis
from rq import Queue, Retry
from tickets import REDIS, ask, store


def answer(ticket: int, question: str) -> Retry | None:
    found = ask(ticket, question)
    if found is None:
        return Retry(max=24 * 3600, interval=1)
    if store(ticket, found):
        print(f"Ticket {ticket} is answered: {found}", flush=True)
    return None


if __name__ == "__main__":
    queue = Queue("tickets", connection=Redis.from_url(REDIS))
    # `retry` is for a worker that dies inside the job.
    queue.enqueue("rq_tasks.answer", int(sys.argv[1]), sys.argv[2], retry=Retry(max=10, interval=1))
