"""A conversation that survives restarts, without a server: ``python examples/sessions_in_this_process.py``.

It repeats your own words. To talk to a model, name a provider and a model:
``python examples/sessions_in_this_process.py openai gpt-4o``. Type ``/new`` to begin again, Ctrl-D or Ctrl-C to end.
"""

from __future__ import annotations

import sys
from contextlib import suppress

from antiphon import Agent
from antiphon.errors import AgentError
from antiphon.stores import SQLiteStore


def main() -> None:
    provider, model = sys.argv[1:3] if len(sys.argv) > 2 else ("scripted", "any")
    with SQLiteStore("conversations.db") as store:
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
