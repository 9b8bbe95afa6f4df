"""Coroutine tests: each runs on its own loop, and must not leave tasks on it."""

import asyncio
import io
from collections.abc import Coroutine
from typing import Any

# A task that is ending when a test ends (a closing connection) may take this long; a longer one has leaked.
_GRACE_SECONDS = 1.0


def run_coroutine_test(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a test to its end; fail with the stack of each leaked task, and with unhandled errors on the loop."""
    with asyncio.Runner() as runner:
        unheard: list[str] = []
        runner.get_loop().set_exception_handler(lambda _, context: unheard.append(_describe(context)))
        runner.run(_watched(coroutine))
    assert not unheard, "Errors on the loop that nobody heard:\n" + "\n".join(unheard)


async def _watched(coroutine: Coroutine[Any, Any, None]) -> None:
    before = asyncio.all_tasks()
    try:
        await coroutine
    except BaseException as exc:
        for stack in await _leaked(before):
            exc.add_note(f"Left running:\n{stack}")
        raise
    leaked = await _leaked(before)
    assert not leaked, "The test left tasks running:\n" + "\n".join(leaked)


async def _leaked(before: set[asyncio.Task[Any]]) -> list[str]:
    left = asyncio.all_tasks() - before
    if not left:
        return []
    _, pending = await asyncio.wait(left, timeout=_GRACE_SECONDS)
    return [_stack(task) for task in pending]


def _stack(task: asyncio.Task[Any]) -> str:
    text = io.StringIO()
    task.print_stack(file=text)
    return text.getvalue()


def _describe(context: dict[str, Any]) -> str:
    return ", ".join(f"{name}: {value!r}" for name, value in context.items())
