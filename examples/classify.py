"""Classify thousands of texts, and let a person decide where the model is in doubt.

OPENAI_API_KEY=… antiphon worker --app classify:app
python classify.py submit texts.txt      # may be repeated: each line is classified once
python classify.py doubts                # asks you, while the others go on
python classify.py results texts.txt
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from antiphon import Agent, Client
from antiphon.client import Submission
from antiphon.errors import AgentError
from antiphon.model import OpenCall
from antiphon.tools import CallerTool
from antiphon_worker import App

ask_person = CallerTool(
    "ask_person", "Ask a person for the class of a text that you are not sure about.",
    {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
)  # fmt: skip
classifier = Agent(
    "openai", "gpt-5-nano", name="classifier", caller_tools=[ask_person],
    system="Answer with one word: praise, complaint or question. In doubt, ask a person.",
)  # fmt: skip
app = App(agents=[classifier])


def lines_of(file: str) -> list[str]:
    """Return the texts of a file: its lines that are not blank."""
    return [line for line in Path(file).read_text().splitlines() if line.strip()]


def submit(client: Client, texts: Sequence[str]) -> list[str | AgentError]:
    """Submit each text once. Returns the ids of the turns; a refused text has its error in that place."""
    turns = client.submit_many(
        Submission(f"classify-{number}", text, agent="classifier", key="classify")
        for number, text in enumerate(texts)
    )
    return [turn if isinstance(turn, AgentError) else turn.id for turn in turns]


def settle_doubts(client: Client, ask: Callable[[OpenCall], str]) -> int:
    """Ask about each text that waits for a person. Returns how many there were."""
    doubts = [(client.turn(one.turn_id), call) for one in client.waiting() for call in one.calls]
    for turn, call in doubts:
        turn.tool_result(call.call_id, ask(call), by="ada")
    return len(doubts)


def main() -> None:
    with Client(os.environ.get("ANTIPHON_REDIS_URL", "redis://localhost:6379/0")) as client:
        match sys.argv[1:]:
            case ["submit", file]:
                turns = submit(client, lines_of(file))
                print(sum(isinstance(turn, str) for turn in turns), "turns")
            case ["doubts"]:
                settle_doubts(client, lambda call: input(f"{call.arguments['text']}: "))
            case ["results", file]:
                texts = lines_of(file)
                for text, outcome in zip(texts, client.results(submit(client, texts)), strict=True):
                    print(f"{outcome if isinstance(outcome, AgentError) else outcome.text}\t{text}")
            case _:
                sys.exit(__doc__)


if __name__ == "__main__":
    main()
