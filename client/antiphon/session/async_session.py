"""``AsyncSession``: one conversation with its history, stored by a runtime.

This is the form written by hand. ``make sync`` generates ``Session`` from it.
"""

from __future__ import annotations

import asyncio
import secrets
import warnings
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack, cast

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.errors import AlreadyDecided, MessageNotFound, NotSuspended, UsageError
from antiphon.events import Event, TurnFinished
from antiphon.input.history_cuts import revision_of
from antiphon.input.ids import SessionId, new_session_id
from antiphon.input.ids import session_id as checked_session_id
from antiphon.input.ids import turn_id as checked_turn_id
from antiphon.input.messages import Input, MessageLike, identified, to_messages
from antiphon.input.request import LAST_ANSWER, Travelling
from antiphon.input.values import (
    Asked,
    IfBusyEdit,
    Keep,
    check_if_busy_edit,
    check_keep,
    is_a,
    lifetime,
    now_ms,
    plain,
)
from antiphon.model import Message, OpenCall, Response, Text
from antiphon.model.usage import Usage
from antiphon.session.family import SessionFamily
from antiphon.session.files import SessionFiles
from antiphon.session.opening import opening_of
from antiphon.session.runtime import (
    Branch,
    Edit,
    Opening,
    Runtime,
    SessionAgent,
    SessionRef,
    SessionStatus,
    TurnHandle,
)
from antiphon.session.saved import SavedSession, read_saved
from antiphon.session.streams import CLOSING_STEPS, AsyncEventStream, Deadline, typed_event
from antiphon.session.work import JsonOptions, RunOptions, SubmitOptions, Work, work_of
from antiphon.tools.approval import answers, asked_by


class _OwnedTurn:
    """A turn that a caller of this object owns. ``over`` is set when the turn has ended or is rolled back."""

    def __init__(self) -> None:
        self.left = False
        self.over: Future[None] = Future()


class AsyncSession(SessionFiles, SessionFamily):
    """One conversation with an agent, which remembers its history from turn to turn.

    >>> from antiphon import Agent
    >>> agent = Agent(provider="scripted", model="any", name="parrot")
    >>> session = agent.session_async("user-123")
    >>> (await session.run("My name is Alice")).text
    'You said: My name is Alice'
    >>> [message.role for message in await session.messages()]
    ['user', 'assistant']

    Create sessions with ``agent.session_async(…)`` or ``client.session(…)``. Several objects, also in different
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
        self._opens_after: AsyncSession | None = None  # the parent, which must be opened before its child
        self._given_runtime = runtime  # the runtime of a client; None for that of the agent
        self._owned: set[_OwnedTurn] = set()  # turns that are rolled back when their callers leave them

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.session_id!r}, agent={self.agent!r})"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Find ``run`` under its old name ``run_async``, for one release."""
            known = name.removesuffix("_async")
            if known == name or known.startswith("_") or not hasattr(type(self), known):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            warnings.warn(
                f"AsyncSession.{name} is now AsyncSession.{known}.", DeprecationWarning, stacklevel=2
            )
            return getattr(self, known)

    @property
    def session_id(self) -> SessionId:
        """The id of the session. Any agent can open the session again with it.

        >>> session.session_id
        'user-123'
        """
        return self._ref.id

    @property
    def agent(self) -> SessionAgent | str | None:
        """The default agent for this session's turns, or its name. None means the agent that the session began with.

        >>> session.agent
        Agent(provider='scripted', model='any', name='parrot')
        """
        return self._agent

    # Turns.

    async def run(self, text: Input, **options: Unpack[RunOptions]) -> Response:
        """Send a message and wait for the answer. If the turn fails, raises an ``AgentError`` and leaves the history
        unchanged.

        ``text`` is text, parts or a ``Message``. ``agent`` (an ``Agent`` or its name) runs only this turn.
        ``timeout`` (seconds or a timedelta) limits the whole call, including waiting and retries. When it expires,
        the turn is rolled back and the error's code is ``turn_timed_out``. ``if_busy="reject"`` raises
        ``SessionBusy`` if the session already has a turn. ``metadata`` are stored with the turn, ``queue`` and
        ``priority`` order it among other turns, and ``user`` names its user. ``instructions`` are its system prompt.
        Calls beyond ``max_tool_calls`` fail. ``service="batch"`` halves its price. Other keywords go to the model.

        With a ``schema`` (a pydantic model, a msgspec struct, a dataclass, a TypedDict, a type of these, or a JSON
        schema) the answer is structured output: ``response.output`` is a value of that type. An answer that does not
        match is corrected once, in the same turn; the history keeps the question and the matching answer. If the
        correction fails too, raises ``InvalidOutput`` with the model's text as ``raw``. A rule that a JSON schema
        cannot express (a validator of your own) is checked here, when the turn has finished.

        ``on_tool`` is a function for calls of ``caller_tools``, the tools without code: it gets the ``OpenCall`` and
        returns the result. ``on_approval`` decides about calls that need an approval: it returns True, False, the
        reason to reject the call, or other arguments. Both may be ``async``. Without a function, the call waits for a
        decision by other means; ``while_suspended`` sets whether the session's next turns wait for it too.

        >>> response = await session.run("Hello", temperature=0.2, timeout=60)
        >>> response.text, response.stop_reason
        ('You said: Hello', 'end')
        """
        return await self._complete(work_of(text, options, self._agent))

    def stream(self, text: Input, **options: Unpack[RunOptions]) -> AsyncEventStream:
        """Send a message and iterate over the events of the turn as they arrive. Options as in ``run``.

        The history is updated when the stream completes. Leaving the loop early rolls the turn back, and the history
        stays unchanged. If the turn fails, the ``AgentError`` is raised after the terminal event. With a ``schema``,
        ``output_delta`` events contain the part of the answer that has arrived so far, as plain JSON data.

        An ``await`` before the call is optional.

        >>> "".join([event.text async for event in session.stream("Go on") if event.type == "text_delta"])
        'You said: Go on'
        """
        work = work_of(text, options, self._agent)
        return AsyncEventStream(lambda: self._events(work))

    async def json(self, text: Input, *, schema: Any, **options: Unpack[JsonOptions]) -> Response:
        """``run`` with a ``schema``: get structured output in ``response.output``. Options as in ``run``.

        >>> from dataclasses import dataclass
        >>> from antiphon.testing import script
        >>> @dataclass
        ... class User:
        ...     name: str
        >>> agent = Agent(provider=script({"name": "Alice"}), model="any")
        >>> (await agent.session_async().json("Who am I?", schema=User)).output
        User(name='Alice')
        """
        if schema is None:
            raise UsageError("json() needs a schema=: a type or a JSON schema.")
        return await self.run(text, **options, schema=schema)

    async def submit(self, text: Input, **options: Unpack[SubmitOptions]) -> TurnHandle:
        """Submit a turn and return at once. The turn runs independently of the caller.

        Options as in ``run``, without ``on_tool`` and ``on_approval``, and also ``key`` (submits the turn only once),
        ``retry_failed`` (with a ``key``: runs the turn again if it has failed) and ``delay`` (seconds or a timedelta).
        Here ``timeout`` limits each attempt, counted from its start; waiting does not count.

        >>> turn = await session.submit("Take your time", key="order-4711")
        >>> (await turn.result(timeout=10)).text
        'You said: Take your time'
        """
        work = work_of(text, options, self._agent, submitted=True)
        return await (await self._ready()).submit(self._ref, work)

    async def turn(self, turn_id: str) -> TurnHandle:
        """Return a turn of this session by its id, for example one that waits for a decision.

        Without workers, this session's agent continues a turn that another process suspended and saved (``store=``).
        Do this in one process only: each process asks for all decisions again, and runs the approved calls. Raises
        ``TurnNotFound`` if the session does not have this turn; without workers also if the turn has ended.

        >>> turn = await session.submit("Remind me", delay=3600)
        >>> await (await session.turn(turn.id)).cancel()
        'cancelled'
        """
        return await (await self._ready()).turn(self._ref, checked_turn_id(turn_id), self._agent)

    async def regenerate(self, **options: Unpack[SubmitOptions]) -> TurnHandle:
        """Answer the last question again: submit a turn whose answer replaces the last one. Options as in ``submit``.

        The question stays. The messages after it are replaced when the turn finishes, in one step. If the turn fails,
        the history is unchanged. "Last" means when the turn starts: it runs after the turns that the session already
        has. ``if_busy="reject"`` raises ``SessionBusy`` if there are any. Raises ``MessageNotFound`` if there is no
        question.

        >>> turn = await session.regenerate(temperature=1.0)
        >>> (await turn.result(timeout=10)).text
        'You said: My name is Alice'
        """
        return await self._revise(work_of("", options, self._agent, submitted=True, revises=LAST_ANSWER))

    async def edit(self, message_id: str, text: Input, **options: Unpack[SubmitOptions]) -> TurnHandle:
        """Replace a user's message and run from there: submit a turn that replaces this message and all after it.

        They are replaced when the turn finishes, in one step. If the turn fails, the history is unchanged. It runs
        after the turns that the session already has; ``if_busy="reject"`` raises ``SessionBusy`` if there are any.
        Options as in ``submit``. Raises ``MessageNotFound``, and ``UsageError`` if the message is not a user's. If the
        message has been removed when the turn starts, the turn fails with the code ``message_not_found``.

        >>> question = (await session.history(-2))[0]
        >>> turn = await session.edit(question.id, "Hurry up")
        >>> (await turn.result(timeout=10)).text
        'You said: Hurry up'
        >>> [message.text for message in await session.history(-2)]
        ['Hurry up', 'You said: Hurry up']
        """
        if not message_id or not is_a(message_id, str):
            raise MessageNotFound(session_id=self.session_id)
        return await self._revise(work_of(text, options, self._agent, submitted=True, revises=message_id))

    async def send_event(self, name: str, data: Any = None, *, key: str | None = None) -> int:
        """Send an event to the turns that wait for it (``context.wait_for_event``), as ``AsyncClient.send_event`` does.

        It reaches the turns of all sessions of this session's tenant, or of all without a tenant if it has none.
        Without Redis these are the sessions of this process. Returns how many turns it has reached.

        >>> await session.send_event("payment:4711", {"amount": 30})
        0
        """
        return await (await self._ready()).send_event(self._ref, name, data, key)

    # History.

    async def messages(self) -> list[Message]:
        """A copy of the whole history, without the system prompt.

        >>> (await session.messages())[1].text
        'You said: My name is Alice'
        """
        return await self.history()

    async def history(
        self, start: int = 0, stop: int | None = None, *, pending: bool = False, failed: bool = False
    ) -> list[Message]:
        """Return a slice of the history: ``history(-20)`` returns the last twenty messages.

        ``pending`` adds, at the end of a slice that reaches it, the input of the turns that have not ended, in the
        order in which they run. ``failed`` adds the turns that failed, or were cancelled, and left nothing in the
        history: their input and their partial answer, in the place where they ended, for a week after their end. These
        messages have the ``status`` of their turn and its ``error``. They are never sent to a model.

        >>> [message.text for message in await session.history(0, 1)]
        ['My name is Alice']
        >>> later = await session.submit("Remind me", delay=3600)
        >>> [(message.text, message.status) for message in await session.history(-1, pending=True)]
        [('You said: My name is Alice', None), ('Remind me', 'queued')]
        >>> await later.cancel("not needed")
        'cancelled'
        >>> [(message.text, message.error) for message in await session.history(-1, failed=True)]
        [('You said: My name is Alice', None), ('Remind me', 'not needed')]
        """
        asked = " ".join(name for name, wanted in (("pending", pending), ("failed", failed)) if wanted)
        return await (await self._readable()).read(self._ref, start, stop, turns=cast("Asked", asked))

    async def cancel(self, reason: str = "cancelled by the client", *, keep: Keep = "partial") -> str | None:
        """Cancel the running turn, like a stop button; waiting turns continue.

        By default its input and its partial answer stay in the history, and the last message is marked
        ``interrupted`` (``Turn.cancel`` keeps ``"steps"`` by default). ``keep`` and the result are those of
        ``Turn.cancel``; None means that no turn runs. If the session's first turn has not started yet, it is cancelled
        and leaves nothing.

        >>> await session.cancel() is None
        True
        """
        return await (await self._ready()).cancel(self._ref, reason, check_keep(keep))

    async def add_message(self, *messages: MessageLike, if_busy: IfBusyEdit = "enqueue") -> None:
        """Add messages to the history without running a turn.

        Each is a ``Message`` or a dictionary in OpenAI's or Anthropic's format. Waits for earlier turns;
        ``if_busy="reject"`` raises ``SessionBusy`` instead.

        >>> await session.add_message(Message.user("Hi"), {"role": "assistant", "content": "Hello."})
        >>> [message.text for message in await session.history(-2)]
        ['Hi', 'Hello.']
        """
        await self._edit(Edit(add=_added(to_messages(messages)), if_busy=if_busy))

    async def clear(self, *, if_busy: IfBusyEdit = "enqueue") -> None:
        """Delete the history. The system prompt and the variables stay.

        >>> await session.clear()
        >>> await session.messages()
        []
        """
        await self._edit(Edit(clear=True, if_busy=if_busy))

    async def rewind(self, to: str, *, if_busy: IfBusyEdit = "enqueue") -> None:
        """Remove all messages after the one with the id ``to``.

        Variables and files stay as they are. Waits for earlier turns; ``if_busy="reject"`` raises ``SessionBusy``
        instead. Raises ``MessageNotFound``, and ``UsageError`` if a tool call would lose its result: it names the ids
        that can be used. Subscribers get the event ``history_rewound``.

        >>> answer = (await session.run("Hello")).messages[0]
        >>> response = await session.run("How are you?")
        >>> await session.rewind(to=answer.id)
        >>> [message.text for message in await session.history(-2)]
        ['Hello', 'You said: Hello']
        """
        await self._edit(Edit(rewind=to, if_busy=if_busy))

    async def fork(self, session_id: str | None = None, *, at: str | None = None) -> AsyncSession:
        """Copy this session, without its running turn, to a new session and return it.

        ``at`` is the id of the last message to copy, or that of a step (``Turn.step_id``). Copies keep their ids, and
        the fork is kept as long as this session (``ttl``). Raises ``SessionExists`` if ``session_id`` already has a
        history, ``MessageNotFound``, and ``UsageError`` as ``rewind`` does.

        >>> fork = await session.fork("another-plan", at=(await session.messages())[1].id)
        >>> (await fork.run("Let us go to Osaka instead")).text
        'You said: Let us go to Osaka instead'
        >>> len(await fork.messages()), len(await session.messages())
        (4, 2)
        """
        known = new_session_id() if session_id is None else checked_session_id(session_id)
        ref = msgspec.structs.replace(self._ref, id=known)
        await (await self._ready()).fork(self._ref, ref, at)
        return AsyncSession(self._agent, ref, None, self._given_runtime)

    async def branches(self) -> list[Branch]:
        """Return the forks of this session in the order in which they were made, including deleted ones.

        >>> fork = await session.fork("plan-b")
        >>> await session.branches() == [await fork.branch()]
        True
        """
        found = (await self._saved()).branches
        return [Branch(fork, self.session_id, at or None) for fork, at in found.items()]

    async def branch(self) -> Branch | None:
        """Where this session was forked from: the session and the message, or None.

        >>> fork = await session.fork()
        >>> (await fork.branch()).source, await session.branch()
        ('user-123', None)
        """
        saved = await self._saved()
        return None if saved.fork_of is None else Branch(self.session_id, saved.fork_of, saved.fork_at)

    # Variables, metadata and the other properties.

    async def variables(self) -> dict[str, Any]:
        """The variables of the session.

        ``{user}`` in the system prompt is replaced by the value. Tools read and change the variables through their
        ``Context``.

        >>> await session.set_variables({"user": "Alice"})
        >>> await session.variables()
        {'user': 'Alice'}
        """
        return (await self._saved()).variables

    async def set_variables(self, variables: Mapping[str, Any], *, remove: Sequence[str] = ()) -> None:
        """Set some variables and remove others in one operation.

        >>> await session.set_variables({"user": "Alice", "language": "French"})
        >>> await session.set_variables({"user": "Bob"}, remove=["language"])
        >>> await session.variables()
        {'user': 'Bob'}
        """
        await self._edit(Edit(variables=plain(variables, "variables"), remove=list(remove)))

    async def metadata(self) -> dict[str, Any]:
        """The metadata of the session, for filters in lists of sessions. They are not sent to models.

        >>> await agent.session_async("user-7", metadata={"plan": "free"}).metadata()
        {'plan': 'free'}
        """
        return (await self._saved()).metadata

    async def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Merge a dictionary into the metadata.

        Does not wait for turns, because turns do not use metadata. Only a session in this process that has a store is
        saved after the running turn.

        >>> await session.set_metadata({"plan": "paid"})
        >>> await session.metadata()
        {'plan': 'paid'}
        """
        await self._edit(Edit(metadata=plain(metadata, "metadata")))

    async def tenant(self) -> str | None:
        """The tenant that the session belongs to, or None.

        >>> await agent.session_async("user-8", tenant="acme").tenant()
        'acme'
        """
        return (await self._saved()).tenant

    async def queue(self) -> str | None:
        """The queue for turns that name none, or None to use the agent's queue.

        >>> await agent.session_async("user-9", queue="slow").queue()
        'slow'
        """
        return (await self._saved()).queue

    async def system(self) -> str | None:
        """The session's own system prompt, or None to use the agent's.

        >>> await agent.session_async("user-10", system="You help {user}.").system()
        'You help {user}.'
        """
        return (await self._saved()).system

    async def usage(self) -> Usage:
        """The tokens and cost of all turns of the session that have ended, including failed ones.

        >>> (await session.usage()).tokens > 0, (await session.usage()).cost
        (True, None)
        """
        return (await self._saved()).usage or Usage()

    async def title_usage(self) -> Usage:
        """The tokens and cost of naming the session, for ``App(titles=…)``. ``usage`` does not include them.

        >>> (await session.title_usage()).tokens
        0
        """
        return (await self._saved()).title_usage or Usage()

    async def cost(self) -> float | None:
        """The cost of these turns in US dollars, or None if none of their models has a price.

        >>> await session.cost() is None
        True
        """
        return (await self.usage()).cost

    async def status(self) -> SessionStatus:
        """Return the number of messages, the running turn with its step, and the waiting turns.

        >>> status = await session.status()
        >>> status.state, status.messages, status.waiting
        ('idle', 2, [])
        """
        return await (await self._readable()).status(self._ref)

    # Saving.

    async def to_dict(self) -> dict[str, Any]:
        """Return the session as plain types, for JSON or a database. ``from_dict`` restores it.

        >>> data = await session.to_dict()
        >>> data["session_id"], data["agent"]["name"], len(data["messages"])
        ('user-123', 'parrot', 2)
        """
        return (await self._saved(messages=True)).to_dict()

    @classmethod
    def from_dict(
        cls,
        data: Mapping[str, Any],
        agent: SessionAgent,
        *,
        replace: bool = False,
        ttl: float | timedelta | UnsetType | None = UNSET,
    ) -> AsyncSession:
        """Restore a session that ``to_dict`` saved, in any runtime. Raises ``CorruptRecord``.

        If a session with this id already has another history, the first use raises ``SessionExists``. With
        ``replace=True`` the saved session replaces it. ``ttl`` is that of ``Agent.session``.

        >>> data = {"version": 1, "session_id": "old", "messages": [{"role": "user", "content": "Hi"}]}
        >>> restored = AsyncSession.from_dict(data, agent)
        >>> (await restored.messages())[0].text
        'Hi'
        """
        saved = read_saved(data).copied()
        if not is_a(agent, Travelling):
            raise UsageError(
                f"Session.from_dict needs an Agent, not {agent!r}: the session is restored where its agent runs. For "
                "workers: Session.from_dict(data, Agent(…, redis=url)). After that, client.session(id) takes a name."
            )
        opening = Opening(saved=saved, replace=replace)
        return agent.open_session(saved.session_id, opening, ttl=lifetime(ttl))

    # Families and the end.

    def child(
        self,
        agent: SessionAgent | None = None,
        *,
        session_id: str | None = None,
        system: str | None = None,
        variables: Mapping[str, Any] | None = None,
        queue: str | None = None,
    ) -> AsyncSession:
        """Return a new session with its own history, for a part of the work. ``children`` lists it.

        It belongs to the same tenant. Its turns go to ``queue``, or to this session's queue if none is given.

        >>> research = session.child(system="You look things up.")
        >>> (await research.run("Which month is best for Kyoto?")).text
        'You said: Which month is best for Kyoto?'
        >>> len(await session.messages())
        2
        """
        if isinstance(agent, str):
            raise UsageError(
                f"agent= must be an Agent, not {agent!r}. To set the child's id, use session_id=."
            )
        if session_id == self.session_id:
            raise UsageError("A session cannot be its own child: use a different session_id=, or omit it.")
        pending = self._opening or Opening()
        opening = opening_of(
            system=system, variables=variables, tenant=self._ref.tenant,
            queue=pending.queue if queue is None else queue, parent=self.session_id,
        )  # fmt: skip
        opener = agent or self._agent
        if self._given_runtime is None and opener is not None and not isinstance(opener, str):
            child = opener.open_session(session_id, opening, ttl=self._ref.ttl, store=self._ref.store)
        else:
            known = new_session_id() if session_id is None else checked_session_id(session_id)
            child = AsyncSession(
                opener, msgspec.structs.replace(self._ref, id=known), opening, self._given_runtime
            )
        child._opens_after = self
        return child

    async def report(self) -> None:
        """Add this child's last answer to its parent's history, with the name of the agent that gave it.

        Waits for the parent's earlier turns. Raises ``UsageError`` in a tool of the parent's own turn, where it would
        deadlock: return the answer instead, and it becomes the tool's result.

        >>> research = session.child()
        >>> response = await research.run("Look it up")
        >>> await research.report()
        >>> last = (await session.messages())[-1]
        >>> last.text, last.agent
        ('You said: Look it up', 'parrot')
        """
        saved, runtime = await self._saved(messages=True), self._runtime
        answer = next((one for one in reversed(saved.messages) if one.role == "assistant" and one.text), None)
        if saved.parent is None or answer is None:
            raise UsageError("Only a child session with an answer can report; this session has no " + (
                "parent." if saved.parent is None else "answer yet."
            ))  # fmt: skip
        parent = msgspec.structs.replace(self._ref, id=checked_session_id(saved.parent))
        message = Message("assistant", [Text(answer.text)], agent=answer.agent, model=answer.model)
        await runtime.edit(parent, Edit(add=_added([message])))

    async def close(self) -> None:
        """Close the session: it can still be read, saved and forked, but accepts no more turns or changes.

        >>> await session.close()
        >>> await session.run("One more")
        Traceback (most recent call last):
        antiphon.errors.UsageError: The session is closed.
        """
        await (await self._ready()).close(self._ref)

    async def delete(self) -> bool:
        """Delete the session, also from its store, and cancel its turns. Return True if it existed.

        >>> await session.delete(), await session.delete(), await session.messages()
        (True, False, [])
        """
        return await (await self._ready()).delete(self._ref)

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

    async def _events(self, work: Work) -> AsyncGenerator[Event, None]:
        deadline = Deadline(work.timeout)
        runtime, owned, at_work = await deadline.wait(self._ready()), _OwnedTurn(), False
        self._owned.add(owned)
        events = runtime.work(self._ref, work)
        try:
            while event := await deadline.wait(anext(events, None), at_work=at_work):
                at_work = at_work or event.type == "turn_started"
                yield typed_event(event, work.schema)
                if calls := asked_by(event):
                    await deadline.wait(self._answered(event.turn_id, calls, work))
        finally:
            owned.left = True
            try:
                await events.aclose()
            finally:
                self._owned.discard(owned)
                owned.over.set_result(None)

    async def _answered(self, turn: str, calls: Sequence[OpenCall], work: Work) -> None:
        """Let the functions of the caller decide. Decisions that others made in the meantime stay."""
        runtime, turn_id = self._runtime, checked_turn_id(turn)
        async with aclosing(answers(calls, work.on_tool, work.on_approval)) as decisions:
            async for decision in decisions:
                with suppress(AlreadyDecided, NotSuspended):
                    await runtime.decide(self._ref, turn_id, decision)

    async def _rolled_back(self) -> None:
        """Wait for turns to roll back. Leaving ``async for`` closes its generator a few loop steps later."""
        for _ in range(CLOSING_STEPS):
            await asyncio.sleep(0)
        for owned in [one for one in self._owned if one.left]:
            await asyncio.wrap_future(owned.over)

    async def _complete(self, work: Work) -> Response:
        response: Response | None = None
        async for event in self._events(work):
            if isinstance(event, TurnFinished):
                response = event.response
        assert response is not None, "a turn ends with its response or raises"
        return response

    async def _revise(self, work: Work) -> TurnHandle:
        """Submit a turn that replaces part of the history, if that part exists.

        Earlier turns may still add it. A ``key`` may belong to a turn that has already replaced it.
        """
        runtime, revises = await self._ready(), work.revises or LAST_ANSWER
        status = await runtime.status(self._ref)
        before = [*status.waiting, *([status.running.turn_id] if status.running else [])]
        coming = any(revises == LAST_ANSWER or revises.startswith(f"{turn}.") for turn in before)
        if work.key is None and not coming:
            revision_of(await runtime.read(self._ref), revises)
        return await runtime.submit(self._ref, work)

    async def _readable(self) -> Runtime:
        """Return the runtime, for reading. An opening that names a tenant stays unwritten: reading claims nothing."""
        if self._opening is None or not self._opening.names_tenant_alone:
            return await self._ready()
        return self._runtime

    async def _saved(self, *, messages: bool = False) -> SavedSession:
        """Return the session as it is stored, with the changes that its opening will make."""
        saved = await (await self._readable()).save(self._ref, messages=messages)
        if self._opening is not None:
            for name, value in self._opening.changes(partial(getattr, saved), None).items():
                setattr(saved, name, value)
        return saved

    async def _edit(self, edit: Edit) -> None:
        check_if_busy_edit(edit.if_busy)
        await (await self._ready()).edit(self._ref, edit)


def _added(messages: Sequence[Message]) -> list[Message]:
    """Return the messages to add to the history, with ids that stay the same when the edit is tried again."""
    return identified(messages, secrets.token_hex(8), now_ms())
