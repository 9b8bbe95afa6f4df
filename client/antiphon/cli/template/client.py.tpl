"""Submit a turn and print its answer as it arrives: `python client.py "Where is order 7?"`."""

import os
import sys

from antiphon import Client

REDIS_URL = os.environ.get("ANTIPHON_REDIS_URL", "redis://localhost:6379/0")


def ask(session: str, text: str) -> None:
    """Stream the answer to one message. The session remembers the messages before it."""
    with Client(REDIS_URL) as client:
        turn = client.submit(session, text, agent="support")
        for event in turn.stream():
            if event.type == "text_delta":
                print(event.text, end="", flush=True)
        print("\n", turn.result().usage)


if __name__ == "__main__":
    ask("user-123", " ".join(sys.argv[1:]) or "Where is order 7?")
