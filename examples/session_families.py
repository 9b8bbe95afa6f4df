"""Several agents on one piece of work: a writer, a reviewer in the same session, a researcher in a child session.

Run ``python examples/session_families.py``. It needs no key and no server: the models are scripted.
"""

from __future__ import annotations

from antiphon import Agent
from antiphon.testing import script


def main() -> None:
    writer = Agent(script("A first draft.", "A second draft, with the facts."), "any", name="writer")
    reviewer = Agent(script("It lacks facts."), "any", name="reviewer")
    researcher = Agent(script("The facts."), "any", name="researcher")

    session = writer.session(metadata={"topic": "antiphons"})
    session.run("Write about antiphons.")
    session.run("Review the draft.", agent=reviewer)

    research = session.child(researcher)
    research.run("What are the facts about antiphons?")
    research.report()

    session.run("Write it again.")
    for message in session.messages:
        print(f"{message.agent or 'user':>10}: {message.text}")


if __name__ == "__main__":
    main()
