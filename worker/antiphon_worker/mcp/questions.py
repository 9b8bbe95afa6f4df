"""Questions of a tool to the user: the turn is suspended until an event brings the answers.

The questions and the server's state are a durable step in the journal, and the wait shows the questions to readers of
the turn. Any worker then repeats the call with the answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from mcp_types import (
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    InputResponses,
)
from msgspec import Struct
from pydantic import ValidationError

from antiphon.errors import EventTimeout, ToolRaised
from antiphon.tools import Context
from antiphon.tools.durable import LONGEST_SLEEP
from antiphon_worker.loop.durable import Durable, durable_of
from antiphon_worker.mcp.credentials import Credentials
from antiphon_worker.mcp.task_models import NewTask

QUESTIONS = "questions"
"""The name of the durable step that keeps the questions of a call, or the task that it has started."""


class Answers(Struct):
    """What a repeated call sends: the answers, and the state that the server sent with its questions."""

    responses: InputResponses | None = None
    state: str | None = None


class Pending(Struct):
    """A task that a call has started, and how many seconds to wait before it is polled."""

    task: str
    poll: float


NO_ANSWERS = Answers()


def noted(asked: InputRequiredResult | NewTask, credentials: Credentials) -> dict[str, Any]:
    """Return what the journal keeps of the questions or the new task of a call. Raises ``ToolRaised``."""
    if isinstance(asked, NewTask):
        if credentials.out_of(asked.task_id) != asked.task_id:
            raise ToolRaised("The tool repeats credentials in the id of its task.")
        return {"task": asked.task_id, "poll": (asked.poll_interval_ms or 0) / 1000}
    return {"state": asked.request_state, "questions": questions_of(asked, credentials)}


async def answers_to(asked: dict[str, Any] | None, context: Context) -> Answers | Pending:
    """Return the answers to a tool's questions, or the task that it has started; with None, those in the journal.

    Suspends the turn for the answers. Raises ``ToolRaised`` if there are none, or if they are invalid.
    """
    durable = durable_of(context)
    if durable is None:
        raise ToolRaised("The tool asks questions or needs time, which needs a turn.")

    async def keep() -> dict[str, Any]:
        assert asked is not None
        return asked

    kept = await durable.step(QUESTIONS, keep, at_most_once=False)
    if "task" in kept:
        return Pending(kept["task"], kept["poll"])
    if not kept["questions"]:
        await durable.sleep(1.0)
        return Answers(None, kept["state"])
    return Answers(await ask(kept["questions"], durable, context), kept["state"])


async def ask(questions: Mapping[str, Any], durable: Durable, context: Context) -> InputResponses:
    """Return the answers to questions. Suspends the turn for them. Raises ``ToolRaised`` without valid answers."""
    event, seconds = f"answers:{context.key}", LONGEST_SLEEP.total_seconds()
    try:
        found = await durable.wait_for_event(event, seconds, {"questions": questions})
    except EventTimeout:
        raise ToolRaised("The questions of the tool were not answered.") from None
    return _responses(questions, found)


def questions_of(asked: InputRequiredResult, credentials: Credentials) -> dict[str, Any]:
    """Return the questions of a server in the form that readers of the turn see. Raises ``ToolRaised``."""
    found: dict[str, Any] = {}
    for name, request in (asked.input_requests or {}).items():
        if not isinstance(request, ElicitRequest):
            raise ToolRaised(f"The tool asks for {request.method}, which is not supported.")
        params = request.params
        question: dict[str, Any] = {"message": params.message}
        if isinstance(params, ElicitRequestFormParams):
            question["schema"] = params.requested_schema
        else:
            question["url"] = params.url
        found[name] = question
    said = msgspec.json.encode([found, asked.request_state]).decode()
    if credentials.out_of(said) != said:
        raise ToolRaised("The tool repeats credentials in its questions.")
    return found


def _responses(questions: Mapping[str, Any], answers: Any) -> InputResponses:
    """Read the answers. A question without one is cancelled."""
    cancelled = {name: {"action": "cancel"} for name in questions}
    try:
        return {
            name: ElicitResult.model_validate(one)
            for name, one in (cancelled | answers).items()
            if questions[name]
        }
    except (ValidationError, TypeError, KeyError):
        names = ", ".join(questions)
        raise ToolRaised(
            f'The answers must name the questions ({names}), each with {{"action": "accept", "content": {{…}}}}.'
        ) from None
