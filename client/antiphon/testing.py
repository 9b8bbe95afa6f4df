"""Scripted answers of a model, for testing an agent without a network or API keys.

    from antiphon.testing import script, tool_call

    lines = script(tool_call("get_weather", city="Paris"), "It is sunny in Paris.")
    agent = Agent(provider=lines, model="any", tools=[get_weather])
    assert agent.session().run("How is the weather?").text == "It is sunny in Paris."
    assert lines.requests[0].messages[-1].text == "How is the weather?"

Each entry answers one model call, in the order of the calls:

- text, streamed word by word; a ``dict`` is written as JSON (for structured output);
- ``tool_call(name, …)``, or any other part of a message (``Reasoning``, ``Refusal``, ``Item``);
- an exception, which is raised;
- a list of these, which is one answer: ``["Let me see.", tool_call("look")]``, or an answer that is cut off:
  ``["The first words", ProviderStreamBroken()]``. A function without arguments in the list is called (and
  awaited) when the stream reaches it;
- ``answer(…)``, to set the usage, the stop reason or the delay;
- a function, sync or async, that takes the request and returns one of these.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

import msgspec
from msgspec import Struct

from antiphon.errors import ProviderRejected
from antiphon.model import Item, Reasoning, Refusal, Response, StopReason, Text, ToolCall, Usage
from antiphon.model.recording import Recording

__all__ = ["Answer", "Entry", "Replayed", "Script", "ScriptPart", "answer", "replay", "script", "tool_call"]

ScriptPart: TypeAlias = (
    str | Text | Reasoning | ToolCall | Refusal | Item | Mapping[str, Any] | BaseException | Callable[[], Any]
)
_PARTS = (str, Text, Reasoning, ToolCall, Refusal, Item, BaseException)


class Answer(Struct, frozen=True):
    """One answer of the model. If they are None, the usage is computed from the lengths and the stop reason from
    the parts.

    >>> answer("Hello").parts
    ('Hello',)
    """

    parts: tuple[ScriptPart, ...]
    usage: Usage | None = None
    stop_reason: StopReason | None = None
    raw_stop_reason: str | None = None
    model: str | None = None
    delay: float | None = None


Entry: TypeAlias = ScriptPart | Sequence[ScriptPart] | Answer | Callable[[Any], Any]


def answer(
    *parts: ScriptPart,
    usage: Usage | None = None,
    stop_reason: StopReason | None = None,
    raw_stop_reason: str | None = None,
    model: str | None = None,
    delay: float | None = None,
) -> Answer:
    """Describe one answer in detail. ``delay`` is the pause in seconds before each piece of it.

    >>> from antiphon import Agent
    >>> lines = script(answer("Once upon a", usage=Usage(10, 3), stop_reason="max_tokens"))
    >>> response = Agent(provider=lines, model="any").session().run("Tell me a story")
    >>> response.stop_reason, response.usage.output_tokens
    ('max_tokens', 3)
    """
    return Answer(tuple(_part(part) for part in parts), usage, stop_reason, raw_stop_reason, model, delay)


def tool_call(name: str, /, **arguments: Any) -> ToolCall:
    """Make the model call a tool. The call id is generated when the script is played.

    >>> from antiphon import Agent, tool
    >>> @tool
    ... def double(number: int) -> int:
    ...     return 2 * number
    >>> lines = script(tool_call("double", number=21), "It is 42.")
    >>> Agent(provider=lines, model="any", tools=[double]).session().run("And?").tool_calls[0].result
    '42'
    """
    return ToolCall("", name, arguments)


def script(*entries: Entry, repeat: bool = False) -> Script:
    """Create a model that answers each call with the next entry.

    After the last entry, ``repeat=True`` starts again with the first; otherwise the turn fails with
    ``ProviderRejected``.

    >>> from antiphon import Agent
    >>> session = Agent(provider=script("Hello, Alice.", "Alice."), model="any").session()
    >>> session.run("I am Alice").text, session.run("Who am I?").text
    ('Hello, Alice.', 'Alice.')
    """
    return Script(entries, repeat=repeat)


class Replayed(Protocol):
    """A recorded turn, or the turns of a session, to run with an agent.

    >>> from antiphon import Agent
    >>> agent = Agent(provider=script("Hello."), model="any")
    >>> turn = agent.session().submit("Hi")
    >>> turn.result().text
    'Hello.'
    >>> replayed = replay(turn.recording())
    >>> replayed.recording.status
    'finished'
    """

    recordings: list[Recording]

    @property
    def recording(self) -> Recording:
        """The recording of the last turn.

        >>> replayed.recording.turn_id == turn.id
        True
        """
        ...

    def check(self, agent: Any, *others: Any) -> Response | None:
        """Run each turn with this agent. Returns the last response, None for a turn that failed or was cancelled.

        ``others`` are agents that ``handoffs=`` only names, if the turn was handed over to them.

        Raises ``ReplayDiffers``, an ``AssertionError``, with the first difference: the input, a result of a tool,
        arguments that its schema rejects, a call that waits for an approval, or the number of model calls.

        >>> replayed.check(agent).text
        'Hello.'
        """
        ...

    async def check_async(self, agent: Any, *others: Any) -> Response | None:
        """``check``, awaited.

        >>> (await replayed.check_async(agent)).text
        'Hello.'
        """
        ...


def replay(source: str | Path | Recording | Sequence[Recording]) -> Replayed:
    """Read a recorded turn (``antiphon record TURN > turn.json``), to run it with an agent, without a network.

    It may also be a recorded session (``antiphon record --session SESSION``), or the recordings of several turns: each
    turn then runs after its recorded history.

    Raises ``UsageError`` for a file that is not a recording.

    >>> from antiphon import Agent
    >>> agent = Agent(provider=script("Hello."), model="any")
    >>> turn = agent.session().submit("Hi")
    >>> turn.result().text
    'Hello.'
    >>> recording = turn.recording()
    >>> replay(recording).check(agent).text
    'Hello.'
    """
    return import_module("antiphon.replaying").Replay(source)


class Script:
    """A scripted model, for ``Agent(provider=…)``.

    ``requests`` are the model calls so far, each with ``model``, ``system``, ``messages``, ``tools``, ``output`` and
    ``params``.

    >>> from antiphon import Agent
    >>> lines = script("Hello.", "And again.")
    >>> response = Agent(provider=lines, model="any", system="Be kind.").session().run("Hi")
    >>> lines.requests[0].system, lines.requests[0].messages[-1].text
    ('Be kind.', 'Hi')
    """

    def __init__(self, entries: Sequence[Entry], *, repeat: bool = False) -> None:
        for entry in entries:
            if isinstance(entry, Answer) or (callable(entry) and not isinstance(entry, type)):
                continue
            _answer_of(entry)
        self.entries = list(entries)
        self.repeat = repeat
        self.requests: list[Any] = []

    async def next(self, request: Any) -> Answer:
        """Record the request and return its answer. Raises ``ProviderRejected`` after the last entry.

        >>> (await lines.next(None)).parts
        ('And again.',)
        """
        index = len(self.requests)
        self.requests.append(request)
        if self.repeat and self.entries:
            index %= len(self.entries)
        if index >= len(self.entries):
            raise ProviderRejected(beyond_the_end(len(self.entries), index + 1))
        entry: Any = self.entries[index]
        if callable(entry):
            entry = cast("Callable[[Any], Entry | Awaitable[Entry]]", entry)(request)
            if inspect.isawaitable(entry):
                entry = await entry
        return _answer_of(entry)

    @property
    def done(self) -> bool:
        """True when every entry has been used.

        >>> lines.done
        False
        """
        return len(self.requests) >= len(self.entries)


def beyond_the_end(entries: int, call: int) -> str:
    """Return the message for a model call beyond the script's last entry."""
    return f"The script has no answer to model call {call}: it ends after {entries}. Add an answer, or use repeat=True."


def _answer_of(entry: Any) -> Answer:
    if isinstance(entry, Answer):
        return entry
    if isinstance(entry, list | tuple):
        return answer(*cast("list[ScriptPart]", entry))
    return answer(entry)


def _part(part: Any) -> ScriptPart:
    if isinstance(part, Mapping):
        return msgspec.json.encode(dict(cast("Mapping[str, Any]", part))).decode()
    if isinstance(part, _PARTS) or (callable(part) and not isinstance(part, type)):
        return part
    raise TypeError(
        f"A script entry must be text, a part of a message, an exception or a function, not {part!r}."
    )
