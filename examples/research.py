"""Research: an editor asks several researchers at once. Each is a turn of its own, on any worker.

OPENAI_API_KEY=… antiphon worker --app research:app
python research.py "Compare the railways of Japan and Switzerland."
"""

from __future__ import annotations

import os
import sys

from antiphon import Agent, Client
from antiphon_worker import App

researcher = Agent(
    "openai", "gpt-5-mini", name="researcher", system="Answer one question, and name your sources."
)
editor = Agent(
    "openai", "gpt-5", name="editor", tools=[researcher.as_tool(timeout=600)],
    system="Split the topic into questions, ask a researcher about each of them at once, and write a report.",
)  # fmt: skip
app = App(agents=[editor])


def main() -> None:
    with Client(os.environ.get("ANTIPHON_REDIS_URL", "redis://localhost:6379/0")) as client:
        turn = client.session(agent="editor").submit(" ".join(sys.argv[1:]))
        for event in turn.stream():
            if event.type == "child_event" and event.event["type"] in ("turn_started", "turn_finished"):
                print(f"{event.agent} {event.child_id}: {event.event['type']}")
        print(turn.result().text)


if __name__ == "__main__":
    main()
