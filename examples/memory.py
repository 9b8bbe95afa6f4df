"""An agent that remembers what its user has said in other sessions.

Start a worker in this folder, and then this program, with the key of OpenAI in OPENAI_API_KEY for both:

    antiphon worker --app memory:app
    python memory.py "My dog is called Rex."
    python memory.py "What is my dog called?"
"""

from __future__ import annotations

import os
import sys

from antiphon import Agent, Client
from antiphon.memory import Memory, WordEmbeddings
from antiphon_worker import App

folder = os.environ.get("MEMORY_FOLDER", "recollections")
memory = Memory(folder, WordEmbeddings(), scope="tenant")
friend = Agent("openai-chat", "gpt-4o-mini", name="friend", system="You are an old friend.", memory=memory)
app = App(agents=[friend])


def main() -> None:
    with Client(os.environ.get("ANTIPHON_REDIS_URL", "redis://localhost:6379/0")) as client:
        session = client.session(agent="friend", tenant="alice")  # a new session of the same user
        response = session.run(" ".join(sys.argv[1:]))
        for call in response.tool_calls:
            print(f"{call.name}: {call.result}")
        print(response.text)


if __name__ == "__main__":
    main()
