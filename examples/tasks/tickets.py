"""What a task of any queue does with a ticket: it asks, looks for the answer, and stores it once."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing

from antiphon import Client
from antiphon.errors import ResultTimeout

REDIS = os.environ.get("ANTIPHON_REDIS_URL", "redis://localhost:6379/0")
DATABASE = os.environ.get("TICKETS", "tickets.db")
client = Client(REDIS)


def ask(ticket: int, question: str) -> str | None:
    """Return the answer to a ticket, or None while there is none. A task that runs again finds the same turn."""
    turn = client.submit(f"ticket-{ticket}", question, agent="assistant", key=f"ticket-{ticket}")
    try:
        return turn.result(timeout=0.1).text
    except ResultTimeout:
        return None


def store(ticket: int, answer: str) -> bool:
    """Store an answer, and return whether there was none: of tasks that run twice, one goes on."""
    with closing(sqlite3.connect(DATABASE, timeout=30)) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS answers (ticket INTEGER PRIMARY KEY, answer TEXT)")
        added = database.execute("INSERT OR IGNORE INTO answers VALUES (?, ?)", (ticket, answer))
        return added.rowcount == 1
