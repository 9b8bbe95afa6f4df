"""Replays a recorded turn with an agent, without a network: the model's answers and the tools' results are recorded."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from antiphon.encryption.records import sealer_of
from antiphon.errors import AgentError, ProviderRejected, ToolRaised, UsageError
from antiphon.events import TurnSuspended
from antiphon.handoffs import Handoff
from antiphon.input.request import OutputSpec
from antiphon.mcp import beginning_of
from antiphon.model import Decision, Message, OpenCall, Response, ToolCall, ToolResult
from antiphon.model.recording import VERSION, Recording, SessionRecording
from antiphon.session.async_session import AsyncSession
from antiphon.session.background import call
from antiphon.session.work import options_of as declared_options
from antiphon.testing import Answer, Script, answer
from antiphon.tools import Context, Tool

END = "The recording ends here."
Source: TypeAlias = str | Path | Recording | SessionRecording | Sequence[Recording]
SHOWN = 200  # characters of a value in a difference


class ReplayDiffers(AssertionError):
    """The agent does something other than the recording."""


class _Kind(msgspec.Struct):
    """The version of a recording, and the turns, which only a session's recording has."""

    turns: list[msgspec.Raw] | None = None
    version: int = VERSION


class _Request(msgspec.Struct):
    """The recorded options whose form is not checked when they are submitted."""

    params: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    output: OutputSpec | None = None


class SealedRecording(msgspec.Struct):
    """A recording that is encrypted with the keys of the deployment."""

    session_id: str
    sealed: msgspec.Raw


def encoded(recording: Recording | SessionRecording) -> bytes:
    """Return the JSON of a recording, encrypted if the process has keys (``ANTIPHON_ENCRYPTION_KEYS``)."""
    seal, plain = sealer_of(), msgspec.json.encode(recording)
    if not seal.on:
        return msgspec.json.format(plain, indent=1)
    return msgspec.json.encode(
        SealedRecording(
            recording.session_id, msgspec.Raw(seal.seal(recording.session_id, "recording", plain))
        )
    )


def read_recordings(source: Source) -> list[Recording]:
    """Read the recordings of a turn or a session. Raises ``UsageError``, or ``CorruptRecord`` if decryption fails."""
    if isinstance(source, Recording):
        return [source]
    if isinstance(source, SessionRecording):
        return source.recordings()
    if not isinstance(source, str | Path):
        return list(source)
    try:
        data = Path(source).read_bytes()
        if b'"sealed"' in data[:400]:
            found = msgspec.json.decode(data, type=SealedRecording)
            data = sealer_of().open(found.session_id, "recording", bytes(found.sealed))
        kind = msgspec.json.decode(data, type=_Kind)
        if kind.version > VERSION:
            raise UsageError(
                f"{source} is a recording of version {kind.version}, and this release reads version {VERSION}: install "
                "the release that wrote it, or record the turn again."
            )
        return _decoded(data, whole_session=kind.turns is not None)
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as exc:
        raise UsageError(f"{source} is not a recording of `antiphon record`: {exc}.") from exc


def _decoded(data: bytes, *, whole_session: bool) -> list[Recording]:
    """Return the recordings of a file. Raises ``ValueError`` and ``MsgspecError``."""
    found = (
        msgspec.json.decode(data, type=SessionRecording).recordings()
        if whole_session
        else [msgspec.json.decode(data, type=Recording)]
    )
    for one in found:
        msgspec.convert(one.request, _Request)
    return found


class Replay:
    """A recorded turn, or the turns of a session. ``check(agent)`` runs them, and fails at the first difference."""

    def __init__(self, source: Source) -> None:
        self.recordings = read_recordings(source)
        if not self.recordings:
            raise UsageError("The recording has no turns.")

    @property
    def recording(self) -> Recording:
        """The recording of the last turn."""
        return self.recordings[-1]

    def check(self, agent: Any, *others: Any) -> Response | None:
        """Run each turn with this agent, and compare. Returns the last response; None if the recorded turn had none.

        ``others`` are agents that ``handoffs=`` names.

        The model's answers, the results of tools and the decisions of people are those of the recording. The replay
        compares what the model receives, the number of model calls, and which calls wait for a decision, and checks the
        arguments of tools against their schemas. Raises ``ReplayDiffers``, which is an ``AssertionError``.
        """
        return call(self.check_async(agent, *others), instead="check_async")

    async def check_async(self, agent: Any, *others: Any) -> Response | None:
        """``check``, awaited."""
        for one in self.recordings[:-1]:
            await _Run(one).run(agent, others)
        return await _Run(self.recording).run(agent, others)


class _Run:
    """One replay: its progress, and the first difference."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        messages = recording.messages
        self._answers = [one for one in messages if one.role == "assistant"]
        self._results = {one.call_id: one for message in messages for one in message.tool_results}
        self._decisions = {one.call_id: one for message in messages for one in message.decisions}
        self._calls = {one.call_id: one for message in messages for one in message.tool_calls}
        self._asked: set[str] = set()  # calls that waited for a decision
        self._difference = ""
        self._script = Script([self._answer(number) for number in range(len(self._answers) + 1)])

    async def run(self, agent: Any, others: Sequence[Any]) -> Response | None:
        recording, own = self._recording, AgentCopies(self._recording, others, self._change).of(agent)
        session = await opened(recording, own, recording.system)
        turn = await session.submit(recording.input, **options_of(recording.request))
        async for event in turn.stream():
            if isinstance(event, TurnSuspended):
                for waiting in event.calls:
                    await self._decide(turn, waiting)
        response = None
        try:
            response = await turn.result()
        except AgentError as exc:
            self._differs(exc.message, unless=END in exc.message and recording.status != "finished")
        self._check_end(self._script)
        if self._difference:
            raise ReplayDiffers(self._difference)
        return response

    def _change(self, own: Any) -> None:
        """Give an agent the recorded model and tools."""
        own.provider, own.retry, own.fallback = self._script, None, []
        own.tools = [RecordedTool.of(tool, self._result) for tool in own.tools]

    async def _result(self, call_id: str, arguments: Mapping[str, Any]) -> Any:
        """Return the recorded result of this call. If it was an error, raises ``ToolRaised`` with its text."""
        found = self._results.get(call_id)
        if found is None:
            raise ToolRaised("The recording has no result of this call.")
        if found.is_error:
            raise ToolRaised(found.text)
        return found.content

    def _answer(self, number: int) -> Callable[[Any], Answer]:
        """Return a function that compares the messages of a model call and returns the recorded answer."""

        def played(request: Any) -> Answer:
            self._compare(number, request.messages)
            if number == len(self._answers) and not self._difference:
                self._differs(
                    f"model call {number + 1}: the recording has {number}",
                    unless=self._recording.status != "finished",
                )
            if self._difference or number == len(self._answers):
                raise ProviderRejected(END)
            return answer(*self._answers[number].parts)  # type: ignore[arg-type]

        return played

    def _compare(self, number: int, sent: list[Message]) -> None:
        if number == 0:
            texts = [one.text for one in sent[-len(self._recording.input) :]]
            expected = [one.text for one in self._recording.input]
            if texts != expected:
                self._differs(f"model call 1: the input is {_shown(texts)}, and was {_shown(expected)}")
            return
        before = self._answers[number - 1].tool_calls
        results = {one.call_id: one for message in sent for one in message.tool_results}
        for made in before:
            self._compare_result(number, made, results.get(made.call_id))

    def _compare_result(self, number: int, made: ToolCall, found: ToolResult | None) -> None:
        expected = self._results.get(made.call_id)
        if expected is None or found == expected or self._difference:
            return
        was = f"the recording has {_shown(expected.text)}"
        now = "no result" if found is None else f"the result {_shown(found.text)}"
        self._differs(f"model call {number + 1}: the tool {made.name} has {now}; {was}")

    async def _decide(self, turn: Any, waiting: OpenCall) -> None:
        """Decide as in the recording. If the call did not wait there, note a difference and cancel the turn."""
        self._asked.add(waiting.call_id)
        result, decision = self._results.get(waiting.call_id), self._decisions.get(waiting.call_id)
        if waiting.kind == "tool" and result is not None:
            await turn.tool_result(waiting.call_id, result.content, is_error=result.is_error)
        elif waiting.kind == "approval" and decision is not None and decision.kind == "approve":
            await turn.approve(waiting.call_id, by=decision.by, arguments=decision.arguments)
        elif waiting.kind == "approval" and decision is not None:
            await turn.reject(waiting.call_id, by=decision.by, reason=decision.reason)
        else:
            self._differs(f"the tool {waiting.name} waits for a decision; in the recording it did not")
            await turn.cancel()

    def _check_end(self, script: Script) -> None:
        made, recorded = len(script.requests), len(self._answers)
        if made < recorded:
            self._differs(f"the turn ends after {made} model calls; the recording has {recorded}")
        for call_id, decision in self._decisions.items():
            if call_id not in self._asked and _is_of_a_person(decision):
                self._differs(
                    f"the tool {self._name(call_id)} ran without the decision that the recording has"
                )

    def _name(self, call_id: str) -> str:
        return self._calls[call_id].name if call_id in self._calls else call_id

    def _differs(self, how: str, *, unless: bool = False) -> None:
        """Note a difference; the first one counts."""
        if not unless and not self._difference:
            self._difference = f"The replay of turn {self._recording.turn_id} differs: {how}."


class AgentCopies:
    """Copies of an agent and of those that it hands over to, without parts that need other processes.

    ``change`` gives each copy its model, and its tools their results. ``others`` are agents that ``handoffs=`` names.
    """

    def __init__(self, recording: Recording, others: Sequence[Any], change: Callable[[Any], None]) -> None:
        self._recording, self._change = recording, change
        self._others = {one.name: one for one in others}
        self._made: dict[str, Any] = {}

    def of(self, agent: Any) -> Any:
        """Return the copy of an agent. Raises ``UsageError`` if one that the turn was handed over to is missing."""
        name = agent.name or ""
        if name not in self._made:
            own = self._made[name] = copy.copy(agent)
            own.redis = own.store = own.memory = own._runtime = None
            own.budgets, own.mcp = [], []
            own.tools = [*agent.tools, *_remote_tools(agent, self._recording)]
            self._change(own)
            own.handoffs = [
                msgspec.structs.replace(one, agent=self._target(agent, one)) for one in agent.handoffs
            ]
        return self._made[name]

    def _target(self, source: Any, handoff: Handoff) -> Any:
        if not isinstance(handoff.agent, str):
            return self.of(handoff.agent)
        if handoff.name in self._others:
            return self.of(self._others[handoff.name])
        if any(one.agent == handoff.name for one in self._recording.messages):
            raise UsageError(
                f"The turn was handed over to {handoff.name!r}, which {source.name!r} only names: pass that agent as "
                f"well, as in check({source.name}, {handoff.name})."
            )
        unused = copy.copy(source)  # the turn does not reach it, but the model is offered the hand-off
        unused.name, unused.tools, unused.handoffs, unused.mcp = handoff.name, [], [], []
        return unused


def _remote_tools(agent: Any, recording: Recording) -> list[Tool[..., Any]]:
    """Return the tools of MCP servers that the recorded turn called."""
    messages = recording.messages
    asked = {one.call_id for message in messages for one in message.decisions if _is_of_a_person(one)}
    found: dict[str, Tool[..., Any]] = {}
    for server in agent.mcp:
        beginning = beginning_of(server)
        for made in (one for message in messages for one in message.tool_calls):
            if made.name.startswith(beginning):
                rule = made.call_id in asked if isinstance(server, str) else server.approval
                waits = rule if isinstance(rule, bool) else made.name.removeprefix(beginning) in rule
                found[made.name] = Tool(
                    _remote, name=made.name, description="", parameters={"type": "object"}, approval=waits
                )
    return [*found.values()]


async def _remote(**arguments: Any) -> None:
    """Return nothing, in place of a server's tool, which the replay does not call."""


async def opened(recording: Recording, agent: Any, system: str | None) -> AsyncSession:
    """Return a session as it was before the recorded turn."""
    session: AsyncSession = agent.session_async(
        messages=recording.history, system=system, variables=recording.variables or None
    )
    for one in recording.files:
        await session.add_file(one.data, media_type=one.media_type, name=one.name)
    return session


class RecordedTool(Tool[..., Any]):
    """A tool that returns recorded results. Its arguments are checked like those of the original tool."""

    @classmethod
    def of(
        cls, tool: Tool[..., Any], result: Callable[[str, Mapping[str, Any]], Awaitable[Any]]
    ) -> Tool[..., Any]:
        """Return a copy of a tool whose results ``result`` returns, given the call's id and arguments."""
        own = copy.copy(tool)
        own.__class__ = cls
        own.function, own.is_async, own.timeout = result, True, None
        return own

    def bind(self, arguments: Mapping[str, Any], context: Context) -> tuple[list[Any], dict[str, Any]]:
        super().bind(arguments, context)
        return [context.call_id, arguments], {}

    def content_of(self, value: Any) -> Any:
        return value


def options_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a recorded request as keywords of ``submit``.

    A model parameter with the name of an option, such as ``delay``, is left out: it would be taken for that option.
    """
    options = {
        name: request[name] for name in ("instructions", "max_tool_calls", "caller_tools") if name in request
    }
    if output := request.get("output"):
        options["schema"] = output.get("whole") or output["schema"]
    known = declared_options("session")
    return options | {name: value for name, value in request.get("params", {}).items() if name not in known}


def _is_of_a_person(decision: Decision) -> bool:
    return decision.kind in ("approve", "reject") and decision.by is not None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
