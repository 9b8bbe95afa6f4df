"""A stage for turns under test: a model and tools that wait, fail and die as the user's text requests.

Worker processes load ``app`` (``ANTIPHON_APP``); ``Stage`` is the test's side. They communicate through a
directory, so that no fault of Redis affects that. Words in the last user message:

- ``gate:NAME``: after the first words, the answer waits until the test opens ``NAME``;
- ``die`` or ``die*2``: after the first words, the process is killed (every time, or the first two);
- ``interrupt`` or ``interrupt*2``: the model's own task raises ``KeyboardInterrupt``, which ends the process;
- ``fail:CODE`` or ``fail:CODE*2``: a provider error (``limited``, ``broken``, ``rejected``, ``unauthorized``);
- ``tool:NAME``: the model first calls that tool; several are called one after another;
- ``hang``: the answer never arrives;
- ``words:50``: this many more words, 10 ms each.
"""

import asyncio
import hashlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from support.harmful_tools import harmful_tools

from antiphon.agent import Agent
from antiphon.errors import (
    ProviderError,
    ProviderRateLimited,
    ProviderRejected,
    ProviderStreamBroken,
    ProviderUnauthorized,
)
from antiphon.model import Message, Text, ToolCall, Usage
from antiphon.routing import Router
from antiphon.stores.base import SessionStore
from antiphon.tools import Context, tool
from antiphon_worker import Allow, App
from antiphon_worker.loop.unfinished import NOTE
from antiphon_worker.providers.base import Increment, ModelRequest, StepResult, TextPiece, ToolCallPiece

APP = "support.stage:app"
_WORD = re.compile(r"(?<!\S)(gate|die|interrupt|fail|tool|hang|words)(?::([\w-]+))?(?:\*(\d+))?(?!\S)")
PLACES = [str(Path(__file__).parents[2] / folder) for folder in ("tests", "tools")]
FIRST_WORDS = "The first words. "


def reply(messages: Sequence[Message]) -> str:
    """Return what the model answers: a function of everything it was shown of the conversation."""
    shown = hashlib.sha256()
    conversation = [message for message in messages if not message.text.startswith(NOTE)]
    for message in conversation:
        shown.update(f"{message.role}:{message.text}\n".encode())
    return f"I was shown {len(conversation)} messages, {shown.hexdigest()[:12]}."


class Stage:
    """The directory through which tests and workers communicate."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._log = directory / "log"
        self._log.touch()

    @property
    def env(self) -> dict[str, str]:
        """The variables with which a worker process finds the stage."""
        return {
            "STAGE": str(self.directory),
            "ANTIPHON_APP": APP,
            "PYTHONPATH": os.pathsep.join([*PLACES, os.environ.get("PYTHONPATH", "")]),
        }

    def open(self, name: str) -> None:
        """Open a gate: every answer and tool that waits at it continues, now and later."""
        (self.directory / f"{name}.open").touch()

    def is_open(self, name: str) -> bool:
        return (self.directory / f"{name}.open").exists()

    def note(self, what: str, **more: Any) -> None:
        """Write a line about what happens; lines of several processes do not mix."""
        line = json.dumps({"what": what, "pid": os.getpid(), "at": time.time(), **more}) + "\n"
        with self._log.open("ab", buffering=0) as log:
            log.write(line.encode())

    def harms(self, name: str, text: str) -> bool:
        """Note a call of a harmful tool. Return whether it does harm: always, or the first ``tool:NAME*2`` times."""
        before = len(self.notes("tool", tool=name, text=text))
        self.note("tool", tool=name, text=text, worker=os.environ.get("ANTIPHON_WORKER_NAME", ""))
        times = re.search(rf"tool:{name}\*(\d+)", text)
        return not times or before < int(times[1])

    def notes(self, what: str, **having: Any) -> list[dict[str, Any]]:
        """Return what has happened (``asked``, ``waits``, ``said``, ``tool``, …), in order."""
        written = self._log.read_bytes().rpartition(b"\n")[0]  # another process may still be writing after it
        lines = [json.loads(line) for line in written.splitlines()]
        return [
            line
            for line in lines
            if line["what"] == what and all(line.get(key) == value for key, value in having.items())
        ]


class StageModel:
    """The model, as the module describes."""

    name = "stage"

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[Increment]:
        text = next(message.text for message in reversed(request.messages) if message.role == "user")
        words = [(match[1], match[2], match[3]) for match in _WORD.finditer(text)]
        before = len(self._stage.notes("asked", text=text))
        told = [message.text for message in request.messages if message.text.startswith(NOTE)]
        self._stage.note("asked", text=text, messages=len(request.messages), told=told)
        tools = [name for word, name, _ in words if word == "tool"]
        done = sum(message.role == "tool" for message in request.messages[_last_user(request.messages) :])
        if done < len(tools):
            arguments = {} if tools[done].startswith("transfer_to_") else {"text": text}
            if tools[done] == "understudy":
                arguments = {"input": text.replace("tool:understudy", "").strip()}
            call = ToolCall(f"call_{done + 1}", tools[done], arguments)
            yield ToolCallPiece(call.call_id, call.name, call.arguments_text)
            yield _result(request, [call])
            return
        answer = reply(request.messages)
        yield TextPiece(FIRST_WORDS)
        for word, name, times in words:
            if not times or before < int(times):
                await self._act(word, name, text)
            if word == "words":
                for number in range(int(name)):
                    await asyncio.sleep(0.01)
                    yield TextPiece(f"{number} ")
        yield TextPiece(answer)
        self._stage.note("said", text=text)
        yield _result(request, [Text(FIRST_WORDS + answer)])

    async def _act(self, word: str, name: str, text: str) -> None:
        match word:
            case "gate":
                self._stage.note("waits", gate=name, text=text)
                await _opened(self._stage, name)
            case "die":
                await asyncio.sleep(0.05)  # the first words leave
                self._stage.note("dies", worker=os.environ.get("ANTIPHON_WORKER_NAME", ""))
                os.kill(os.getpid(), signal.SIGKILL)
            case "interrupt":
                await asyncio.create_task(_interrupted())
            case "hang":
                await asyncio.Event().wait()
            case "fail":
                raise _error(name)
            case _:
                return


def make_app(stage: Stage, store: SessionStore | None = None) -> App:
    """Return an App with the stage's model and tools."""

    @tool
    async def note(text: str, context: Context) -> str:
        """Write a line."""
        stage.note("tool", tool="note", text=text, turn=context.turn_id)
        return "noted"

    @tool(at_most_once=True)
    async def pay(text: str, context: Context) -> str:
        """Pay, and die where the text says so."""
        stage.note("tool", tool="pay", text=text, turn=context.turn_id, call=context.call_id)
        if "unpaid" in text:
            os.kill(os.getpid(), signal.SIGKILL)
        return "paid"

    @tool(approval=True)
    async def sign(text: str) -> str:
        """Sign, once somebody has approved it."""
        stage.note("tool", tool="sign", text=text)
        return "signed"

    @tool
    async def wait(text: str, context: Context) -> str:
        """Wait until the gate ``tool`` is open."""
        place = {"turn": context.turn_id, "key": context.key, "attempt": context.attempt}
        stage.note("tool", tool="wait", text=text, **place)
        await _opened(stage, "tool")
        return "waited"

    @tool
    def watch(text: str, context: Context) -> str:
        """In the first attempt, watch until nobody waits for the result."""
        stage.note("tool", tool="watch", text=text, attempt=context.attempt)
        while context.attempt == 1 and not context.cancelled:
            time.sleep(0.01)
        stage.note("watched", attempt=context.attempt)
        return "watched"

    @tool
    async def nap(text: str, context: Context) -> str:
        """Take a step, sleep without a worker, and take another step."""
        await context.step("first", stage.note, "step", name="first")
        await context.sleep(3)
        await context.step("second", stage.note, "step", name="second")
        return "rested"

    @tool
    async def block(text: str) -> str:
        """Let the event loop stand still for two seconds."""
        stage.note("tool", tool="block", text=text)
        time.sleep(2)  # noqa: ASYNC251 - a tool that forgets to wait is the point
        return "blocked"

    @tool(approval=True)
    async def guarded(text: str) -> str:
        """Write a line, once somebody has approved."""
        stage.note("tool", tool="guarded", text=text)
        return "guarded"

    understudy = Agent(provider="stage", model="stage-1", name="understudy")
    more, providers = _of_chaos(stage)
    return App(
        agents=[  # two, so that a turn has to name one
            Agent(provider="stage", model="stage-1", name="stage", tools=[note, wait, guarded]),
            understudy,
            *more,
        ],
        tools=[
            note,
            pay,
            sign,
            wait,
            watch,
            nap,
            block,
            guarded,
            understudy.as_tool(),
            *harmful_tools(stage.harms),
        ],
        providers={"stage": StageModel(stage), **providers},
        router=_router(),
        store=store,
        travelling=Allow(providers="any", parameters="any", system=True),
    )


def _of_chaos(stage: Stage) -> tuple[list[Agent], dict[str, Any]]:
    """Return the additional agents of a chaos run, and their models."""
    agents: list[Agent] = []
    providers: dict[str, Any] = {}
    if "STAGE_MEMORY" in os.environ:
        from chaos.rememberers import agents_with_memory, notetaker

        agents += agents_with_memory(stage.directory)
        providers["notetaker"] = notetaker()
    if label := os.environ.get("STAGE_ERRANDS"):
        from chaos.errands import errand_agents, errand_model
        from chaos.travellers import travel_agents, travel_model
        from chaos.trees import tree_agents

        agents += [*errand_agents(stage, label), *travel_agents(label), *tree_agents()]
        providers |= {"errands": errand_model(stage), "guides": travel_model()}
    if url := os.environ.get("STAGE_BATCHES"):
        from chaos.batched import batched_agents, batched_providers

        agents += batched_agents()
        providers |= batched_providers(url)
    return agents, providers


def _router() -> Router | None:
    """Return the router of a chaos run with errands, else None."""
    if not os.environ.get("STAGE_ERRANDS"):
        return None
    from chaos.travellers import travel_router

    return travel_router


async def _interrupted() -> None:
    raise KeyboardInterrupt


async def _opened(stage: Stage, name: str) -> None:
    while not stage.is_open(name):  # noqa: ASYNC110 - the gate is a file
        await asyncio.sleep(0.01)


def _last_user(messages: Sequence[Message]) -> int:
    return max(index for index, message in enumerate(messages) if message.role == "user")


def _error(name: str) -> ProviderError:
    match name:
        case "limited":
            return ProviderRateLimited(retry_after=0.05)
        case "broken":
            return ProviderStreamBroken()
        case "unauthorized":
            return ProviderUnauthorized()
        case _:
            return ProviderRejected(f"The stage refuses: {name}.")


def _result(request: ModelRequest, parts: list[Any]) -> StepResult:
    message = Message("assistant", parts, provider="stage", model=request.model)
    reason = "tool_use" if message.tool_calls else "end"
    return StepResult(message, Usage(1, 1), reason, reason, request.model)


if "STAGE" in os.environ:  # a worker process
    app = make_app(Stage(Path(os.environ["STAGE"])))


def supervise() -> None:
    """Run a supervisor in this process, as ``antiphon worker`` does."""
    import logging

    from antiphon_worker.settings import Settings
    from antiphon_worker.supervisor.supervisor import Supervisor

    logging.basicConfig(level="INFO", format="%(asctime)s %(message)s", stream=sys.stderr)
    asyncio.run(Supervisor(Settings.load()).run())


if __name__ == "__main__":
    supervise()
