"""A conversation that survives restarts, without a server: ``python examples/sessions_in_this_process.py``.

It repeats your own words. To talk to a model, name a provider and a model:
``python examples/sessions_in_this_process.py openai gpt-4o``. Type ``/new`` to begin again, Ctrl-D or Ctrl-C to end.
The conversation is kept in ``conversations.db`` in this folder. With nothing in it, the file is removed at the end.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from antiphon import Agent
from antiphon.errors import AgentError
from antiphon.stores import SQLiteStore

FILE = Path("conversations.db")


def main() -> None:
    try:
        with SQLiteStore(FILE) as store:
            talk(store)
    finally:
        remove_empty_file()


def remove_empty_file() -> None:
    with SQLiteStore(FILE) as store:
        kept = (store.load("example") or {}).get("messages")
    if not kept:
        FILE.unlink()


def talk(store: SQLiteStore) -> None:
    provider, model = sys.argv[1:3] if len(sys.argv) > 2 else ("scripted", "any")
    agent = Agent(provider, model, system="You talk with {name}. Be brief.", store=store)
    session = agent.session("example", variables={"name": "somebody"})
    print(f"{len(session.messages)} messages so far.")
    for line in sys.stdin:
        text = line.strip()
        if not text:
            continue
        if text == "/new":
            session.clear()
            continue
        try:
            for event in session.stream(text):
                if event.type == "text_delta":
                    print(event.text, end="", flush=True)
            print()
        except AgentError as error:
            print(f"Error: {error} Please try again.")


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
