"""A task of Celery that waits for a turn, and holds no worker meanwhile.

$ celery --app celery_tasks worker
$ python celery_tasks.py 7 "Where is my order?"
"""

# pyright: basic
from __future__ import annotations

import os
import sys

from celery import Celery
from tickets import REDIS, ask, store

app = Celery("tickets", broker=REDIS)
app.conf.update(
    task_acks_late=True,  # a task whose worker dies is given to another one …
    task_reject_on_worker_lost=True,
    broker_transport_options={
        "visibility_timeout": int(os.environ.get("SECONDS_UNTIL_LOST", "60"))
    },  # … then
)


@app.task(bind=True, name="tickets.answer", max_retries=None)
def answer(self, ticket: int, question: str) -> None:
    found = ask(ticket, question)
    if found is None:
        raise self.retry(countdown=1)
    if store(ticket, found):
        print(f"Ticket {ticket} is answered: {found}", flush=True)


if __name__ == "__main__":
    answer.delay(int(sys.argv[1]), sys.argv[2])
