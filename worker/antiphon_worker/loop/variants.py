"""Runs a recorded turn again with another model or prompt, optionally with the recorded answers up to a step."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.errors import AgentError, ToolRaised, UsageError
from antiphon.events import TurnSuspended
from antiphon.model import OpenCall, ToolResult
from antiphon.model.recording import Recording, Variant
from antiphon.replaying import AgentCopies, RecordedTool, opened, options_of
from antiphon.testing import Script, answer
from antiphon_worker.providers.base import Increment, ModelRequest, Provider
from antiphon_worker.providers.registry import provider_for
from antiphon_worker.providers.scripted import ScriptedProvider

NOT_RECORDED = "The recording has no result of this call, and tools do not run in a variant."


class Calls(Struct):
    """The number of model calls that the agents of a turn have made."""

    made: int = 0


class ForkedProvider:
    """Replays the recorded answers of the first ``steps`` model calls, then calls a model service."""

    def __init__(self, recording: Recording, steps: int, provider: Provider, made: Calls) -> None:
        said = [one for one in recording.messages if one.role == "assistant"]
        if not 0 <= steps <= len(said):
            raise UsageError(
                f"The recording has {len(said)} model calls: --step must be from 1 to {len(said)}."
            )
        self.name = provider.name
        self._said = said[:steps]
        self._steps, self._provider, self._calls = steps, provider, made

    async def stream(self, request: ModelRequest) -> AsyncIterator[Increment]:
        """Yield the answer of one model call."""
        self._calls.made += 1
        provider = self._provider
        if self._calls.made <= self._steps:
            provider = ScriptedProvider(Script([answer(*self._said[self._calls.made - 1].parts)]))  # type: ignore[arg-type]
        async for increment in provider.stream(request):
            yield increment

    async def aclose(self) -> None:
        """Return at once: the service's connections are shared."""


class _Results:
    """The recorded tool results and decisions, for a call of the recording or an equal call."""

    def __init__(self, recording: Recording) -> None:
        results = {one.call_id: one for message in recording.messages for one in message.tool_results}
        decisions = {one.call_id: one for message in recording.messages for one in message.decisions}
        calls = [one for message in recording.messages for one in message.tool_calls]
        self._results = {
            key: results[one.call_id] for one in calls for key in _keys(one.call_id, one.name, one.arguments)
            if one.call_id in results
        }  # fmt: skip
        self._decisions = {
            key: decisions[one.call_id] for one in calls for key in _keys(one.call_id, one.name, one.arguments)
            if one.call_id in decisions
        }  # fmt: skip

    def result(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> ToolResult | None:
        return next(filter(None, map(self._results.get, _keys(call_id, name, arguments))), None)

    async def call(self, name: str, call_id: str, arguments: Mapping[str, Any]) -> Any:
        """Return the tool's result. Raises ``ToolRaised`` with the recorded error, or if nothing was recorded."""
        found = self.result(call_id, name, arguments)
        if found is None or found.is_error:
            raise ToolRaised(NOT_RECORDED if found is None else found.text)
        return found.content

    async def decide(self, turn: Any, call: OpenCall) -> None:
        """Decide about a call as about the same or an equal recorded one. Others are rejected, or get an error."""
        keys = _keys(call.call_id, call.name, call.arguments)
        if call.kind == "tool":
            found = self.result(call.call_id, call.name, call.arguments) or ToolResult(
                "", NOT_RECORDED, is_error=True
            )
            await turn.tool_result(call.call_id, found.content, is_error=found.is_error)
            return
        decision = next(filter(None, map(self._decisions.get, keys)), None)
        if decision is not None and decision.kind == "approve":
            await turn.approve(call.call_id, by=decision.by, arguments=decision.arguments)
        else:
            await turn.reject(
                call.call_id, reason=decision.reason if decision else "The recording has no decision."
            )


def _keys(call_id: str, name: str, arguments: Mapping[str, Any]) -> tuple[str, str]:
    return (
        f"id {call_id} {name}",
        f"like {name} {msgspec.json.encode(arguments, order='deterministic').decode()}",
    )


async def run_variant(
    recording: Recording, agent: Any, *others: Any, step: int = 1, model: str | None = None, system: str | None = None
) -> Variant:  # fmt: skip
    """Run a recorded turn with an agent, from model call ``step`` on.

    ``others`` are agents that ``handoffs=`` names. Tools do not run: a call returns the result of the same or an
    equal call of the recording. Raises ``UsageError``.
    """
    results, made = _Results(recording), Calls()

    def change(own: Any) -> None:
        provider = provider_for(own.provider) if isinstance(own.provider, str) else own.provider
        if isinstance(provider, Script):
            provider = ScriptedProvider(provider)
        own.provider, own.model = ForkedProvider(recording, step - 1, provider, made), model or own.model
        own.tools = [RecordedTool.of(tool, partial(results.call, tool.name)) for tool in own.tools]

    own = AgentCopies(recording, others, change).of(agent)
    own.system = agent.system if system is None else system
    session = await opened(recording, own, recording.system if system is None else None)
    began = time.monotonic()
    turn = await session.submit(recording.input, **options_of(recording.request))
    try:
        async for event in turn.stream():
            if isinstance(event, TurnSuspended):
                for call in event.calls:
                    await results.decide(turn, call)
    except BaseException:  # timed out, or the worker stops: the turn would continue without a reader
        await turn.cancel("variant_stopped")
        raise
    found = Variant(own.model, seconds=time.monotonic() - began)
    try:
        response = await turn.result()
        found.text = response.text
    except AgentError as exc:
        found.error = f"{exc.code}: {exc.message}"
    info = await turn.info()
    found.messages, found.usage = info.messages, info.usage
    return found
