"""``Session``: one conversation with its history, stored by a runtime.

Methods that wait are written once, as coroutines. Each is available as a synchronous method and as ``…_async``.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, Unpack

import msgspec

from antiphon.errors import InvalidOutput, UsageError
from antiphon.events import Event, TurnFinished
from antiphon.input.ids import SessionId, new_session_id
from antiphon.input.ids import session_id as checked_session_id
from antiphon.input.messages import Input, MessageLike, to_messages
from antiphon.input.schema import output_schema, parse_output
from antiphon.input.values import IfBusy, check_if_busy, duration, plain
from antiphon.model import File, Message, Response, Text
from antiphon.session.background import call
from antiphon.session.opening import opening_of
from antiphon.session.runtime import (
    DEFAULT_TTL_SECONDS,
    Edit,
    Opening,
    Runtime,
    SessionAgent,
    SessionRef,
    SessionStatus,
    TurnHandle,
)
from antiphon.session.saved import SavedSession, read_saved
from antiphon.session.streams import CLOSING_STEPS, AsyncEventStream, Deadline, EventStream
from antiphon.session.synchronous import awaited, spelled_out, synchronous, synchronous_property
from antiphon.session.turn import Turn
from antiphon.session.variables import Metadata, Variables
from antiphon.session.work import RunOptions, SubmitOptions, Work, work_of

__all__ = ["Session"]

REPAIR = "Your answer cannot be used: {problem} Answer again, with nothing but JSON that fits the schema."


class _OwnedTurn:
    """A turn that a caller of this object owns. ``over`` is set when the turn has ended or is rolled back."""

    def __init__(self) -> None:
        self.left = False
        self.over: Future[None] = Future()


class Session:
    """One conversation with an agent, which remembers its history from turn to turn.

    >>> from antiphon import Agent
    >>> agent = Agent(provider="scripted", model="any", name="parrot")
    >>> session = agent.session("user-123")
    >>> session.run("My name is Alice").text
    'You said: My name is Alice'
    >>> [message.role for message in session.messages]
    ['user', 'assistant']

    Create sessions with ``agent.session(…)`` or ``client.session(…)``. Several ``Session`` objects, also in different
    threads, can use the same session; their calls run one after the other.
    """

    def __init__(
        self,
        agent: SessionAgent | str | None,
        ref: SessionRef,
        opening: Opening | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self._agent = agent
        self._ref = ref
        self._opening = None if opening is None or opening.empty else opening
        self._opens_after: Session | None = None  # the parent, which must be opened before its child
        self._given_runtime = runtime  # the runtime of a client; None for that of the agent
        self._owned: set[_OwnedTurn] = set()  # turns that are rolled back when their callers leave them

    def __repr__(self) -> str:
        return f"Session({self.session_id!r}, agent={self._agent!r})"

    @property
    def session_id(self) -> SessionId:
        """The id of the session. Any agent can open the session again with it.

        >>> session.session_id
        'user-123'
        """
        return self._ref.id

    @property
    def agent(self) -> SessionAgent | str | None:
        """The default agent for this session's turns, or its name. None means the agent that the session began
        with.

        >>> session.agent
        Agent(provider='scripted', model='any', name='parrot')
        """
        return self._agent

    # Turns.

    @synchronous
    async def run(self, text: Input, **options: Unpack[RunOptions]) -> Response:
        """Send a message and wait for the answer. If the turn fails, raises an ``AgentError`` and leaves the history
        unchanged.

        ``text`` is text, parts or a ``Message``. ``agent`` (an ``Agent`` or its name) runs only this turn.
        ``timeout`` (seconds or a timedelta) limits the whole call, including waiting and retries. When it expires, the
        turn is rolled back and the error's code is ``turn_timed_out``. ``if_busy="reject"`` raises ``SessionBusy`` if
        the session already has a turn. Other keywords (``temperature``, ``max_tokens``, ``model``, …) go to the model.

        >>> response = session.run("Hello", temperature=0.2, timeout=60)
        >>> response.text, response.stop_reason
        ('You said: Hello', 'end')
        """
        return await self._complete(work_of(text, options, self._agent))

    run_async = awaited(run)

    @spelled_out
    def stream(self, text: Input, **options: Unpack[RunOptions]) -> EventStream:
        """Send a message and iterate over the events of the turn as they arrive. Options as in ``run``.

        The history is updated when the stream completes. Leaving the loop early rolls the turn back, and the history
        stays unchanged. If the turn fails, the ``AgentError`` is raised after the terminal event.

        >>> [event.text for event in session.stream("Go on") if event.type == "text_delta"]
        ['You ', 'said: ', 'Go ', 'on']
        """
        work = work_of(text, options, self._agent)
        return EventStream(lambda: self._events(work))

    @spelled_out
    def stream_async(self, text: Input, **options: Unpack[RunOptions]) -> AsyncEventStream:
        """``stream`` for ``async for``. An ``await`` before the call is optional.

        >>> [event.text async for event in session.stream_async("Go on") if event.type == "text_delta"]
        ['You ', 'said: ', 'Go ', 'on']
        """
        work = work_of(text, options, self._agent)
        return AsyncEventStream(lambda: self._events(work))

    @synchronous
    async def json(self, text: Input, *, schema: Any, **options: Unpack[RunOptions]) -> Response:
        """Send a message and get structured output in ``response.output``. Options as in ``run``.

        ``schema`` is a pydantic model, a msgspec struct, a dataclass, a TypedDict, or a JSON schema. If the answer
        does not match it, the model gets one chance to correct the answer. If that fails too, raises
        ``InvalidOutput`` with the model's text as ``raw``, and leaves the history unchanged.

        >>> from dataclasses import dataclass
        >>> from antiphon.testing import script
        >>> @dataclass
        ... class User:
        ...     name: str
        >>> agent = Agent(provider=script({"name": "Alice"}), model="any")
        >>> agent.session().json("Who am I?", schema=User).output
        User(name='Alice')
        """
        work = work_of(text, options, self._agent)
        work.output = output_schema(schema)
        deadline = Deadline(work.timeout)
        first = await self._complete(work, deadline)
        try:
            first.output = parse_output(schema, first.text)
        except InvalidOutput as exc:
            return await self._repair(work, deadline, first, exc, schema)
        return first

    json_async = awaited(json)

    @spelled_out
    def submit(self, text: Input, **options: Unpack[SubmitOptions]) -> Turn:
        """Submit a turn and return at once. The turn runs independently of the caller.

        Options as in ``run``, and also ``key`` (submits the turn only once) and ``delay`` (seconds or a timedelta).
        Here ``timeout`` limits each attempt, counted from its start; waiting does not count.

        >>> turn = session.submit("Take your time", key="order-4711")
        >>> turn.result(timeout=10).text
        'You said: Take your time'
        """
        return Turn(call(self.submit_async(text, **options)))

    @spelled_out
    async def submit_async(self, text: Input, **options: Unpack[SubmitOptions]) -> TurnHandle:
        """``submit``, awaited; so are the methods of the turn that it returns.

        >>> turn = await session.submit_async("Take your time")
        >>> (await turn.result(timeout=10)).text
        'You said: Take your time'
        """
        work = work_of(text, options, self._agent, submitted=True)
        return await (await self._ready()).submit(self._ref, work)

    # History.

    @synchronous_property
    async def messages(self) -> list[Message]:
        """A copy of the whole history, without the system prompt.

        >>> session.messages[1].text
        'You said: My name is Alice'
        """
        return await self.history_async()

    messages_async = awaited(messages)

    @synchronous
    async def history(self, start: int = 0, stop: int | None = None) -> list[Message]:
        """Return a slice of the history: ``history(-20)`` returns the last twenty messages.

        >>> [message.text for message in session.history(0, 1)]
        ['My name is Alice']
        """
        return await (await self._ready()).read(self._ref, start, stop)

    history_async = awaited(history)

    @synchronous
    async def add_message(self, *messages: MessageLike, if_busy: IfBusy = "enqueue") -> None:
        """Add messages to the history without running a turn.

        Each is a ``Message`` or a dictionary in OpenAI's or Anthropic's format. Waits for earlier turns;
        ``if_busy="reject"`` raises ``SessionBusy`` instead.

        >>> session.add_message(Message.user("Hi"), {"role": "assistant", "content": "Hello."})
        >>> [message.text for message in session.history(-2)]
        ['Hi', 'Hello.']
        """
        await self._edit(Edit(add=to_messages(messages), if_busy=if_busy))

    add_message_async = awaited(add_message)

    @synchronous
    async def clear(self, *, if_busy: IfBusy = "enqueue") -> None:
        """Delete the history. The system prompt and the variables stay.

        >>> session.clear()
        >>> session.messages
        []
        """
        await self._edit(Edit(clear=True, if_busy=if_busy))

    clear_async = awaited(clear)

    @synchronous
    async def fork(self, session_id: str | None = None) -> Session:
        """Copy this session, without its running turn, to a new session and return it.

        Raises ``SessionExists`` if ``session_id`` already has a history.

        >>> fork = session.fork("another-plan")
        >>> fork.run("Let us go to Osaka instead").text, len(fork.messages), len(session.messages)
        ('You said: Let us go to Osaka instead', 4, 2)
        """
        known = new_session_id() if session_id is None else checked_session_id(session_id)
        ref = msgspec.structs.replace(self._ref, id=known)
        await (await self._ready()).fork(self._ref, ref)
        return Session(self._agent, ref, None, self._given_runtime)

    fork_async = awaited(fork)

    # Beside the history.

    @property
    def variables(self) -> Variables:
        """The variables of the session. Assigning one saves it: ``session.variables["user"] = "Alice"``.

        ``{user}`` in the system prompt is replaced by the value. Tools read and change the variables through their
        ``Context``.

        >>> session.variables["user"] = "Alice"
        >>> session.variables
        {'user': 'Alice'}
        """
        return Variables(call(self._saved()).variables, self.set_variables)

    async def variables_async(self) -> dict[str, Any]:
        """Return a copy of the variables.

        >>> await session.variables_async()
        {}
        """
        return (await self._saved()).variables

    @synchronous
    async def set_variables(self, variables: Mapping[str, Any], *, remove: Sequence[str] = ()) -> None:
        """Set some variables and remove others in one operation.

        >>> session.set_variables({"user": "Alice", "language": "French"})
        >>> session.set_variables({"user": "Bob"}, remove=["language"])
        >>> session.variables
        {'user': 'Bob'}
        """
        await self._edit(Edit(variables=plain(variables, "variables"), remove=list(remove)))

    set_variables_async = awaited(set_variables)

    @property
    def metadata(self) -> Metadata:
        """The metadata of the session, for filters in lists of sessions. Models do not see it.

        Assigning an entry saves it: ``session.metadata["plan"] = "paid"``.

        >>> agent.session("user-7", metadata={"plan": "free"}).metadata
        {'plan': 'free'}
        """
        return Metadata(call(self._saved()).metadata, self.set_metadata)

    async def metadata_async(self) -> dict[str, Any]:
        """Return a copy of the metadata.

        >>> await session.metadata_async()
        {}
        """
        return (await self._saved()).metadata

    @synchronous
    async def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Merge a dictionary into the metadata.

        >>> session.set_metadata({"plan": "paid"})
        >>> session.metadata
        {'plan': 'paid'}
        """
        await self._edit(Edit(metadata=plain(metadata, "metadata")))

    set_metadata_async = awaited(set_metadata)

    @synchronous_property
    async def tenant(self) -> str | None:
        """The tenant that the session belongs to, or None.

        >>> agent.session("user-8", tenant="acme").tenant
        'acme'
        """
        return (await self._saved()).tenant

    tenant_async = awaited(tenant)

    @synchronous_property
    async def queue(self) -> str | None:
        """The queue for turns that name none, or None to use the agent's queue.

        >>> agent.session("user-9", queue="slow").queue
        'slow'
        """
        return (await self._saved()).queue

    queue_async = awaited(queue)

    @synchronous_property
    async def files(self) -> dict[str, File]:
        """The files of the session by name, for use in messages: ``session.run(["Read:", session.files["a.pdf"]])``.

        >>> session.files
        {}
        """
        return (await self._saved()).files

    files_async = awaited(files)

    @synchronous
    async def add_file(self, file: File) -> None:
        """Add a file by reference: by its ``url`` or the provider's ``file_id``. Raises ``UsageError`` for others.

        >>> from antiphon.model import File
        >>> session.add_file(File(name="a.pdf", url="https://example.com/a.pdf"))
        >>> session.run(["Read this:", session.files["a.pdf"]]).text
        'You said: Read this:'
        """
        if not file.name:
            raise UsageError("The file has no name: use File(name=…).")
        if not (file.url or file.file_id):
            raise UsageError("A session stores references, not contents: use File(url=…) or File(file_id=…).")
        await self._edit(Edit(files={file.name: copy.copy(file)}))

    add_file_async = awaited(add_file)

    @synchronous_property
    async def system(self) -> str | None:
        """The session's own system prompt, or None to use the agent's.

        >>> agent.session("user-10", system="You help {user}.").system
        'You help {user}.'
        """
        return (await self._saved()).system

    system_async = awaited(system)

    @synchronous
    async def status(self) -> SessionStatus:
        """Return the number of messages, the running turn with its step, and the waiting turns.

        >>> status = session.status()
        >>> status.state, status.messages, status.waiting
        ('idle', 2, [])
        """
        return await (await self._ready()).status(self._ref)

    status_async = awaited(status)

    # Saving.

    @synchronous
    async def to_dict(self) -> dict[str, Any]:
        """Return the session as plain types, for JSON or a database. ``Session.from_dict`` restores it.

        >>> data = session.to_dict()
        >>> data["session_id"], data["agent"]["name"], len(data["messages"])
        ('user-123', 'parrot', 2)
        """
        return (await (await self._ready()).save(self._ref)).to_dict()

    to_dict_async = awaited(to_dict)

    @classmethod
    def from_dict(
        cls,
        data: Mapping[str, Any],
        agent: SessionAgent,
        *,
        replace: bool = False,
        ttl: float | timedelta | None = DEFAULT_TTL_SECONDS,
    ) -> Session:
        """Restore a session that ``to_dict`` saved, in any runtime. Raises ``CorruptRecord``.

        If a session with this id already has another history, the first use raises ``SessionExists``. With
        ``replace=True`` the saved session replaces it. ``ttl`` is in seconds or a timedelta.

        >>> data = {"version": 1, "session_id": "old", "messages": [{"role": "user", "content": "Hi"}]}
        >>> Session.from_dict(data, agent).messages[0].text
        'Hi'
        """
        saved = read_saved(data).copied()
        opening = Opening(saved=saved, replace=replace)
        return agent.open_session(saved.session_id, opening, ttl=duration(ttl, "ttl"))

    # Families and the end.

    def child(
        self,
        agent: SessionAgent | None = None,
        *,
        session_id: str | None = None,
        system: str | None = None,
        variables: Mapping[str, Any] | None = None,
        queue: str | None = None,
    ) -> Session:
        """Return a new session with its own history, for a part of the work. ``children`` lists it.

        It belongs to the same tenant. Its turns go to ``queue``, or to this session's queue if none is given.

        >>> research = session.child(system="You look things up.")
        >>> research.run("Which month is best for Kyoto?").text, len(session.messages)
        ('You said: Which month is best for Kyoto?', 2)
        """
        if isinstance(agent, str):
            raise UsageError(
                f"agent= must be an Agent, not {agent!r}. To set the child's id, use session_id=."
            )
        if session_id == self.session_id:
            raise UsageError(
                "A session cannot be its own child: use a different session_id=, or leave it out."
            )
        pending = self._opening or Opening()
        opening = opening_of(
            system=system, variables=variables, tenant=pending.tenant, queue=pending.queue if queue is None else queue,
            parent=self.session_id,
        )  # fmt: skip
        opener = agent or self._agent
        if self._given_runtime is None and opener is not None and not isinstance(opener, str):
            child = opener.open_session(session_id, opening, ttl=self._ref.ttl, store=self._ref.store)
        else:
            known = new_session_id() if session_id is None else checked_session_id(session_id)
            child = Session(
                opener, msgspec.structs.replace(self._ref, id=known), opening, self._given_runtime
            )
        child._opens_after = self
        return child

    @synchronous_property
    async def parent(self) -> str | None:
        """The id of the parent session, or None.

        >>> session.child().parent, session.parent
        ('user-123', None)
        """
        return (await self._saved()).parent

    parent_async = awaited(parent)

    @synchronous
    async def children(self) -> list[str]:
        """Return the ids of this session's children.

        >>> research = session.child(session_id="research")
        >>> research.run("Look it up").text, session.children()
        ('You said: Look it up', ['research'])
        """
        return await (await self._ready()).children(self._ref)

    children_async = awaited(children)

    @synchronous
    async def report(self) -> None:
        """Add this child's last answer to its parent's history, with the name of the agent that gave it.

        Waits for the parent's earlier turns. Raises ``UsageError`` in a tool of the parent's own turn, where it would
        deadlock: return the answer instead, and it becomes the tool's result.

        >>> research = session.child()
        >>> response = research.run("Look it up")
        >>> research.report()
        >>> session.messages[-1].text, session.messages[-1].agent
        ('You said: Look it up', 'parrot')
        """
        runtime = await self._ready()
        saved = await runtime.save(self._ref)
        answer = next((one for one in reversed(saved.messages) if one.role == "assistant" and one.text), None)
        if saved.parent is None or answer is None:
            raise UsageError("Only a child session with an answer can report; this session has no " + (
                "parent." if saved.parent is None else "answer yet."
            ))  # fmt: skip
        parent = msgspec.structs.replace(self._ref, id=checked_session_id(saved.parent))
        message = Message("assistant", [Text(answer.text)], agent=answer.agent, model=answer.model)
        await runtime.edit(parent, Edit(add=[message]))

    report_async = awaited(report)

    @synchronous
    async def close(self) -> None:
        """Close the session: it can still be read, saved and forked, but accepts no more turns or changes.

        >>> session.close()
        >>> session.run("One more")
        Traceback (most recent call last):
        antiphon.errors.UsageError: The session is closed.
        """
        await (await self._ready()).close(self._ref)

    close_async = awaited(close)

    @synchronous
    async def delete(self) -> bool:
        """Delete the session, also from its store, and cancel its turns. Return True if it existed.

        >>> session.delete(), session.delete(), session.messages
        (True, False, [])
        """
        return await (await self._ready()).delete(self._ref)

    delete_async = awaited(delete)

    # How it works.

    @property
    def _runtime(self) -> Runtime:
        if self._given_runtime is not None:
            return self._given_runtime
        assert self._agent is not None
        assert not isinstance(self._agent, str), "only sessions of a client name their agent"
        return self._agent.runtime

    async def _ready(self) -> Runtime:
        """Return the runtime, after opening the session and waiting for the rollback of abandoned turns."""
        runtime, opening = self._runtime, self._opening
        if opening is not None:
            if self._opens_after is not None:
                await self._opens_after._ready()
            await runtime.open(self._ref, opening)
            self._opening = self._opens_after = None
        if self._owned:
            await self._rolled_back()
        return runtime

    async def _events(
        self, work: Work, deadline: Deadline | None = None
    ) -> AsyncGenerator[list[Event], None]:
        deadline = deadline or Deadline(work.timeout)
        runtime, owned, at_work = await deadline.wait(self._ready()), _OwnedTurn(), False
        self._owned.add(owned)
        batches = runtime.work(self._ref, work)
        try:
            while batch := await deadline.wait(anext(batches, None), at_work=at_work):
                at_work = at_work or any(event.type == "turn_started" for event in batch)
                yield batch
        finally:
            owned.left = True
            try:
                await batches.aclose()
            finally:
                self._owned.discard(owned)
                owned.over.set_result(None)

    async def _rolled_back(self) -> None:
        """Wait for turns to roll back. Leaving ``async for`` closes its generator a few loop steps later."""
        for _ in range(CLOSING_STEPS):
            await asyncio.sleep(0)
        for owned in [one for one in self._owned if one.left]:
            await asyncio.wrap_future(owned.over)

    async def _complete(self, work: Work, deadline: Deadline | None = None) -> Response:
        response: Response | None = None
        async for batch in self._events(work, deadline):
            last = batch[-1]
            if isinstance(last, TurnFinished):
                response = last.response
        assert response is not None, "a turn ends with its response or raises"
        return response

    async def _repair(
        self, work: Work, deadline: Deadline, first: Response, problem: InvalidOutput, schema: Any
    ) -> Response:
        """Ask the model once more. The history keeps the question and a matching answer, or neither."""
        runtime = self._runtime
        turns = [first.turn_id]
        try:
            message = Message.user(REPAIR.format(problem=problem.message))
            second = await self._complete(msgspec.structs.replace(work, messages=[message]), deadline)
            turns.append(second.turn_id)
            second.output = parse_output(schema, second.text)
        except BaseException:
            await runtime.amend(self._ref, turns, [])
            raise
        answer = second.messages[-1:]
        question = [msgspec.structs.replace(one, turn_id=second.turn_id) for one in work.messages]
        await runtime.amend(self._ref, turns, [*question, *answer])
        second.usage = first.usage + second.usage
        return second

    async def _saved(self) -> SavedSession:
        return await (await self._ready()).save(self._ref, messages=False)

    async def _edit(self, edit: Edit) -> None:
        check_if_busy(edit.if_busy)
        await (await self._ready()).edit(self._ref, edit)
