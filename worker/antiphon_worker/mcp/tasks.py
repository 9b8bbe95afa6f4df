"""Tasks of a server: the result of a call comes later.

Between two polls of a task, the turn is suspended and holds neither a worker nor a connection. The state that was read
is in the journal, so that any worker can continue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, TypeAlias

from mcp_types import CallToolResult, InputRequiredResult, Result
from msgspec import Struct
from pydantic import ValidationError

from antiphon.errors import ToolRaised
from antiphon.model import File, Image, Text
from antiphon.tools import Context
from antiphon_worker.loop.durable import durable_of
from antiphon_worker.loop.steps import DurableResult, JournalEntry
from antiphon_worker.mcp.connection import Connection, Unreachable
from antiphon_worker.mcp.questions import QUESTIONS, Pending, ask, questions_of
from antiphon_worker.mcp.task_models import TaskParams, TaskRequest, TaskState
from antiphon_worker.mcp.tools import content_of

FIRST_POLL, LONGEST_POLL = 1.0, 300.0
"""The shortest and the longest time between two polls of a task, in seconds."""
SHARE = 10
"""A task that takes long is polled again after a tenth of the time that it has taken."""
LONGEST_TASK = 7 * 86_400.0
UNREACHABLE = "unreachable"

Use: TypeAlias = Callable[[], AbstractAsyncContextManager[Connection]]
Content: TypeAlias = str | list[Text | Image | File]


class _Look(Struct):
    """What the journal keeps of one poll of a task."""

    status: str
    poll: float
    questions: dict[str, Any]


class _Task:
    """A task of a call."""

    def __init__(self, use: Use, task: str, context: Context) -> None:
        self._use, self._task, self._context = use, task, context
        self.answered: set[str] = set()
        self.content: Content | None = None
        """The content of its result, if this process has read it."""

    async def look(self) -> dict[str, Any]:
        """Read the task, and return what the journal keeps. Raises ``ToolError``."""
        try:
            async with self._use() as connection, asyncio.timeout(connection.server.connect_timeout):
                return await self._look(connection)
        except (Unreachable, TimeoutError):
            return {"status": UNREACHABLE, "poll": 0.0, "questions": {}}

    async def _look(self, connection: Connection) -> dict[str, Any]:
        state = await connection.request(self._about("tasks/get"), TaskState)
        if state.status in ("failed", "cancelled"):
            said = (state.error or {}).get("message") or state.status_message or "It gives no reason."
            how = "has failed" if state.status == "failed" else "was cancelled"
            raise ToolRaised(connection.credentials.out_of(f"The task {how}: {said}"))
        if state.status == "completed":
            self.content = _content(state, connection)
        elif state.status_message:
            self._context.progress(connection.credentials.out_of(state.status_message), None)
        new = {name: one for name, one in (state.input_requests or {}).items() if name not in self.answered}
        asked = InputRequiredResult(input_requests=new, request_state="")
        return {
            "status": state.status, "poll": (state.poll_interval_ms or 0) / 1000,
            "questions": questions_of(asked, connection.credentials),
        }  # fmt: skip

    async def update(self, responses: Any) -> str:
        """Send answers, and return '' if they have arrived. Duplicates count once. Raises ``ToolError``."""
        try:
            async with self._use() as connection, asyncio.timeout(connection.server.connect_timeout):
                await connection.request(self._about("tasks/update", responses), Result)
        except (Unreachable, TimeoutError):
            return UNREACHABLE
        return ""

    async def result(self) -> Content | None:
        """Return the content of the result, which may be too large for the journal. Raises ``ToolError``.

        Returns None if the server cannot be reached.
        """
        if self.content is None:
            await self.look()
        return self.content

    def _about(self, method: Any, responses: Any = None) -> TaskRequest:
        return TaskRequest(method=method, params=TaskParams(task_id=self._task, input_responses=responses))


def _content(state: TaskState, connection: Connection) -> Content:
    try:
        result = CallToolResult.model_validate(state.result, by_name=False)
    except ValidationError:
        raise ToolRaised("The result of the task does not follow the protocol.") from None
    return content_of(result, connection.credentials)


async def result_of_task(use: Use, pending: Pending, context: Context) -> Content:
    """Return the content of a task's result when it has ended. Suspends the turn until then. Raises ``ToolError``.

    A server that cannot be reached is polled again until the time limit of tasks.
    """
    durable, task = durable_of(context), _Task(use, pending.task, context)
    assert durable is not None
    pause, waited = _within(pending.poll), 0.0
    answers: dict[str, Any] = {}
    while waited < LONGEST_TASK:
        await durable.sleep(pause)
        waited += pause
        seen = _Look(**await durable.step("task", task.look, at_most_once=False))
        # If the journal continues after this poll, the result could not be read.
        if seen.status == "completed" and not durable.repeats:
            content = await task.result()
            if content is not None:
                return content
        if seen.questions:
            new = {name: one for name, one in seen.questions.items() if name not in answers}
            answers |= await ask(new, durable, context) if new else {}
            given = {name: answers[name] for name in seen.questions}
            if await durable.step("answer", partial(task.update, given), at_most_once=False) != UNREACHABLE:
                task.answered |= seen.questions.keys()
        pause = max(_within(seen.poll), _within(waited / SHARE))
    raise ToolRaised("The task of the tool has not ended in time, or its server cannot be reached any more.")


async def cancel_task(use: AbstractAsyncContextManager[Connection], task: str) -> None:
    """Ask a server to cancel a task. Raises ``ToolError``."""
    async with use as connection:
        request = TaskRequest(method="tasks/cancel", params=TaskParams(task_id=task))
        await connection.request(request, Result)


def tasks_of(journal: Iterable[JournalEntry]) -> dict[str, str]:
    """Return the tasks that calls have started, by call id."""
    found: dict[str, str] = {}
    for entry in journal:
        if isinstance(entry, DurableResult) and entry.name == QUESTIONS:
            match entry.value:
                case {"task": str(task)}:
                    found[entry.call] = task
                case _:
                    pass
    return found


def _within(seconds: float) -> float:
    return min(max(seconds, FIRST_POLL), LONGEST_POLL)
