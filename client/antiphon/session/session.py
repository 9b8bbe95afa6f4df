"""Sessions: one conversation with its history, kept by a runtime.

A method that waits is written once, as a coroutine: it is called as it stands, or awaited as ``…_async``.
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
    """A turn that a caller of this handle owns; ``over`` when it has ended or is rolled back."""

    def __init__(self) -> None:
        self.left = False
        self.over: Future[None] = Future()


class Session:
    """One conversation of an agent: what was said is remembered from turn to turn.

    >>> from antiphon import Agent
    >>> agent = Agent(provider="scripted", model="any", name="parrot")
    >>> session = agent.session("user-123")
    >>> session.run("My name is Alice").text
    'You said: My name is Alice'
    >>> [message.role for message in session.messages]
    ['user', 'assistant']

    A handle: several may be open on one session, in several threads, and their calls are served in order. Made by
    ``agent.session(…)``.
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
        self._opens_after: Session | None = None  # its parent: a child's report is not what that begins with
        self._given_runtime = runtime  # a client's; else the agent's own
        self._owned: set[_OwnedTurn] = set()  # the turns of this handle whose callers may leave them

    def __repr__(self) -> str:
        return f"Session({self.session_id!r}, agent={self._agent!r})"

    @property
    def session_id(self) -> SessionId:
        """The id, under which any agent opens this session again.

        >>> session.session_id
        'user-123'
        """
        return self._ref.id

    @property
    def agent(self) -> SessionAgent | str | None:
        """The agent that works on this session's turns where they name no other, or its name; None is the agent
        that the session began with.

        >>> session.agent
        Agent(provider='scripted', model='any', name='parrot')
        """
        return self._agent

    # Turns.

    @synchronous
    async def run(self, text: Input, **options: Unpack[RunOptions]) -> Response:
        """Say something and wait for the answer. Every failure is an ``AgentError`` and leaves the history as it was.

        ``text`` is text, parts or a ``Message``. ``agent`` (an ``Agent``, or the name of one) works on this turn
        alone. ``timeout`` (seconds or a timedelta) bounds the whole call, waiting and retries
        included: then the turn is rolled back, and the error's code is ``turn_timed_out``. ``if_busy="reject"`` raises
        ``SessionBusy`` where the session has a turn already. Other keywords (``temperature``, ``max_tokens``,
        ``model``, …) go to the model.

        >>> response = session.run("Hello", temperature=0.2, timeout=60)
        >>> response.text, response.stop_reason
        ('You said: Hello', 'end')
        """
        return await self._complete(work_of(text, options, self._agent))

    run_async = awaited(run)

    @spelled_out
    def stream(self, text: Input, **options: Unpack[RunOptions]) -> EventStream:
        """Say something and read the events of the turn as they come; options as in ``run``.

        The history is updated when the stream completes. Leaving the loop early rolls the turn back: nothing of it
        stays. The ``AgentError`` of a failed turn is raised after its terminal event.

        >>> [event.text for event in session.stream("Go on") if event.type == "text_delta"]
        ['You ', 'said: ', 'Go ', 'on']
        """
        work = work_of(text, options, self._agent)
        return EventStream(lambda: self._events(work))

    @spelled_out
    def stream_async(self, text: Input, **options: Unpack[RunOptions]) -> AsyncEventStream:
        """``stream`` for ``async for``, with or without ``await`` in front.

        >>> [event.text async for event in session.stream_async("Go on") if event.type == "text_delta"]
        ['You ', 'said: ', 'Go ', 'on']
        """
        work = work_of(text, options, self._agent)
        return AsyncEventStream(lambda: self._events(work))

    @synchronous
    async def json(self, text: Input, *, schema: Any, **options: Unpack[RunOptions]) -> Response:
        """Say something and read the answer as ``schema``: it is in ``response.output``; options as in ``run``.

        ``schema`` is a pydantic model, a msgspec struct, a dataclass, a TypedDict, or a JSON schema. The model is
        given one chance to repair an answer that does not fit; then ``InvalidOutput`` carries what it said as
        ``raw``, and the history is as it was.

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
        """Hand in a turn and go on: it does not depend on the caller. Options as in ``run``, with ``key`` (submit
        once) and ``delay`` (seconds or a timedelta). ``timeout`` is here that of the work alone: each attempt may take
        so long from its start, and waiting does not count.

        >>> turn = session.submit("Take your time", key="order-4711")
        >>> turn.result(timeout=10).text
        'You said: Take your time'
        """
        return Turn(call(self.submit_async(text, **options)))

    @spelled_out
    async def submit_async(self, text: Input, **options: Unpack[SubmitOptions]) -> TurnHandle:
        """``submit``, awaited; so are the methods of the turn that it gives.

        >>> turn = await session.submit_async("Take your time")
        >>> (await turn.result(timeout=10)).text
        'You said: Take your time'
        """
        work = work_of(text, options, self._agent, submitted=True)
        return await (await self._ready()).submit(self._ref, work)

    # History.

    @synchronous_property
    async def messages(self) -> list[Message]:
        """The whole history, a copy. The system prompt is not in it.

        >>> session.messages[1].text
        'You said: My name is Alice'
        """
        return await self.history_async()

    messages_async = awaited(messages)

    @synchronous
    async def history(self, start: int = 0, stop: int | None = None) -> list[Message]:
        """A page of the history, counted as in a slice: ``history(-20)`` is the last twenty messages.

        >>> [message.text for message in session.history(0, 1)]
        ['My name is Alice']
        """
        return await (await self._ready()).read(self._ref, start, stop)

    history_async = awaited(history)

    @synchronous
    async def add_message(self, *messages: MessageLike, if_busy: IfBusy = "enqueue") -> None:
        """Add to the history without a turn: ``Message``, OpenAI's or Anthropic's dictionaries.

        Waits for the turns before it; with ``if_busy="reject"`` raises ``SessionBusy`` instead.

        >>> session.add_message(Message.user("Hi"), {"role": "assistant", "content": "Hello."})
        >>> [message.text for message in session.history(-2)]
        ['Hi', 'Hello.']
        """
        await self._edit(Edit(add=to_messages(messages), if_busy=if_busy))

    add_message_async = awaited(add_message)

    @synchronous
    async def clear(self, *, if_busy: IfBusy = "enqueue") -> None:
        """Forget the history. The system prompt and the variables stay.

        >>> session.clear()
        >>> session.messages
        []
        """
        await self._edit(Edit(clear=True, if_busy=if_busy))

    clear_async = awaited(clear)

    @synchronous
    async def fork(self, session_id: str | None = None) -> Session:
        """A new session that begins with all of this one but a turn that runs. Raises ``SessionExists``.

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
        """The variables, to read and to set: ``session.variables["user"] = "Alice"``.

        ``{user}`` in the system prompt becomes its value, and tools find and change them in their ``Context``.

        >>> session.variables["user"] = "Alice"
        >>> session.variables
        {'user': 'Alice'}
        """
        return Variables(call(self._saved()).variables, self.set_variables)

    async def variables_async(self) -> dict[str, Any]:
        """A copy of the variables.

        >>> await session.variables_async()
        {}
        """
        return (await self._saved()).variables

    @synchronous
    async def set_variables(self, variables: Mapping[str, Any], *, remove: Sequence[str] = ()) -> None:
        """Set some variables, and take others away, at once.

        >>> session.set_variables({"user": "Alice", "language": "French"})
        >>> session.set_variables({"user": "Bob"}, remove=["language"])
        >>> session.variables
        {'user': 'Bob'}
        """
        await self._edit(Edit(variables=plain(variables, "variables"), remove=list(remove)))

    set_variables_async = awaited(set_variables)

    @property
    def metadata(self) -> Metadata:
        """What the caller wants to find sessions by, to read and to set: ``session.metadata["plan"] = "paid"``.

        Models do not see it.

        >>> agent.session("user-7", metadata={"plan": "free"}).metadata
        {'plan': 'free'}
        """
        return Metadata(call(self._saved()).metadata, self.set_metadata)

    async def metadata_async(self) -> dict[str, Any]:
        """A copy of the metadata.

        >>> await session.metadata_async()
        {}
        """
        return (await self._saved()).metadata

    @synchronous
    async def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Merge this into the metadata.

        >>> session.set_metadata({"plan": "paid"})
        >>> session.metadata
        {'plan': 'paid'}
        """
        await self._edit(Edit(metadata=plain(metadata, "metadata")))

    set_metadata_async = awaited(set_metadata)

    @synchronous_property
    async def tenant(self) -> str | None:
        """Whose session it is.

        >>> agent.session("user-8", tenant="acme").tenant
        'acme'
        """
        return (await self._saved()).tenant

    tenant_async = awaited(tenant)

    @synchronous_property
    async def queue(self) -> str | None:
        """The session's own queue, where its turns go unless they name one; None leaves it to the agent.

        >>> agent.session("user-9", queue="slow").queue
        'slow'
        """
        return (await self._saved()).queue

    queue_async = awaited(queue)

    @synchronous_property
    async def files(self) -> dict[str, File]:
        """The files of the session by name, ready to be said: ``session.run(["Read:", session.files["a.pdf"]])``.

        >>> session.files
        {}
        """
        return (await self._saved()).files

    files_async = awaited(files)

    @synchronous
    async def add_file(self, file: File) -> None:
        """Keep a file under its name, by reference: its ``url`` or the provider's ``file_id``, not its bytes.

        >>> from antiphon.model import File
        >>> session.add_file(File(name="a.pdf", url="https://example.com/a.pdf"))
        >>> session.run(["Read this:", session.files["a.pdf"]]).text
        'You said: Read this:'
        """
        if not file.name:
            raise UsageError("A file of a session needs a name: File(name=…).")
        if not (file.url or file.file_id):
            raise UsageError("A session keeps files by reference: File(url=…) or File(file_id=…).")
        await self._edit(Edit(files={file.name: copy.copy(file)}))

    add_file_async = awaited(add_file)

    @synchronous_property
    async def system(self) -> str | None:
        """The session's own system prompt; without one, its agent's is used.

        >>> agent.session("user-10", system="You help {user}.").system
        'You help {user}.'
        """
        return (await self._saved()).system

    system_async = awaited(system)

    @synchronous
    async def status(self) -> SessionStatus:
        """What is done, what is running (with its step) and what is waiting.

        >>> status = session.status()
        >>> status.state, status.messages, status.waiting
        ('idle', 2, [])
        """
        return await (await self._ready()).status(self._ref)

    status_async = awaited(status)

    # Saving.

    @synchronous
    async def to_dict(self) -> dict[str, Any]:
        """The session in plain types, for a JSON file or a database; ``Session.from_dict`` restores it.

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
        """A session as it was saved, whichever runtime saved it. Raises ``CorruptRecord``.

        Where the session is live with another history, the first use raises ``SessionExists``; with ``replace``
        the saved one takes its place.

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
        """A session of its own history for a part of the work; ``children`` of this one finds it.

        It belongs to the same tenant, and its turns go where this session's own queue is, or to ``queue``.

        >>> research = session.child(system="You look things up.")
        >>> research.run("Which month is best for Kyoto?").text, len(session.messages)
        ('You said: Which month is best for Kyoto?', 2)
        """
        if isinstance(agent, str):
            raise UsageError(f"agent= takes an Agent, not {agent!r}: the child's id is session_id=.")
        if session_id == self.session_id:
            raise UsageError("A session cannot be its own child: give another session_id=, or none.")
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
        """The id of the session that this one is a child of.

        >>> session.child().parent, session.parent
        ('user-123', None)
        """
        return (await self._saved()).parent

    parent_async = awaited(parent)

    @synchronous
    async def children(self) -> list[str]:
        """The ids of this session's children.

        >>> research = session.child(session_id="research")
        >>> research.run("Look it up").text, session.children()
        ('You said: Look it up', ['research'])
        """
        return await (await self._ready()).children(self._ref)

    children_async = awaited(children)

    @synchronous
    async def report(self) -> None:
        """Add this child's last answer to its parent's history, under the name of the agent that gave it.

        Waits for the parent's turns before it. In a tool of the parent's own turn, which it would wait for, it raises
        ``UsageError``: return the answer instead, and it becomes the tool's result.

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
            raise UsageError("A child with an answer reports to its parent; this session has no " + (
                "parent." if saved.parent is None else "answer yet."
            ))  # fmt: skip
        parent = msgspec.structs.replace(self._ref, id=checked_session_id(saved.parent))
        message = Message("assistant", [Text(answer.text)], agent=answer.agent, model=answer.model)
        await runtime.edit(parent, Edit(add=[message]))

    report_async = awaited(report)

    @synchronous
    async def close(self) -> None:
        """End the session: it can still be read, saved and forked, but takes no more turns or changes.

        >>> session.close()
        >>> session.run("One more")
        Traceback (most recent call last):
        antiphon.errors.UsageError: The session is closed.
        """
        await (await self._ready()).close(self._ref)

    close_async = awaited(close)

    @synchronous
    async def delete(self) -> bool:
        """Forget the session, in its store too, and cancel its turns. True where there was one.

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
        """The runtime, once what ``agent.session(…)`` asked for is done and turns that were left are rolled back."""
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
        """Leaving ``async for`` closes its generator a moment later; this is that moment."""
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
        """Ask once more. What stays in the history is the question and an answer that fits, or nothing."""
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
