"""``Session``: one conversation with its history, stored by a runtime.

Methods that wait are written once, as coroutines. Each is available as a synchronous method and as ``…_async``.
"""

from __future__ import annotations

import asyncio
import copy
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from datetime import timedelta
from functools import partial
from typing import Any, Unpack, cast

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.errors import AlreadyDecided, MessageNotFound, NotSuspended, UsageError
from antiphon.events import Event, TurnFinished, TurnSuspended
from antiphon.input.history_cuts import revision_of
from antiphon.input.ids import SessionId, new_session_id
from antiphon.input.ids import session_id as checked_session_id
from antiphon.input.ids import turn_id as checked_turn_id
from antiphon.input.messages import Input, MessageLike, identified, to_messages
from antiphon.input.options import spelled_out
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
from antiphon.model import File, Message, Response, Text
from antiphon.model.usage import Usage
from antiphon.session.background import call
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
from antiphon.session.streams import CLOSING_STEPS, AsyncEventStream, Deadline, EventStream
from antiphon.session.synchronous import awaited, synchronous, synchronous_property
from antiphon.session.turn import Turn, typed_event
from antiphon.session.variables import Metadata, Variables
from antiphon.session.work import JsonOptions, RunOptions, SubmitOptions, Work, work_of
from antiphon.tools.approval import answers


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

        With a ``schema`` (a pydantic model, a msgspec struct, a dataclass, a TypedDict, a type of these, or a JSON
        schema) the answer is structured output: ``response.output`` is a value of that type. An answer that does not
        match is corrected once, in the same turn; the history keeps the question and the matching answer. If the
        correction fails too, raises ``InvalidOutput`` with the model's text as ``raw``. What the JSON schema cannot say
        (a validator of your own) is checked here, when the turn has finished.

        ``on_tool`` is a function for calls of tools on the client: it gets the ``OpenCall`` and returns the result.
        ``on_approval`` decides about calls that wait for an approval: it returns True, False, the reason to reject the
        call, or other arguments. Both may be ``async``. Without a function, the call waits for another decision.

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
        stays unchanged. If the turn fails, the ``AgentError`` is raised after the terminal event. With a ``schema``,
        ``output_delta`` events hold the part of the answer that has come so far, as plain JSON data.

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
    async def json(self, text: Input, *, schema: Any, **options: Unpack[JsonOptions]) -> Response:
        """``run`` with a ``schema``: get structured output in ``response.output``.

        >>> from dataclasses import dataclass
        >>> from antiphon.testing import script
        >>> @dataclass
        ... class User:
        ...     name: str
        >>> agent = Agent(provider=script({"name": "Alice"}), model="any")
        >>> agent.session().json("Who am I?", schema=User).output
        User(name='Alice')
        """
        if schema is None:
            raise UsageError("json() needs a schema=: a type or a JSON schema.")
        return await self.run_async(text, **options, schema=schema)

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

    def turn(self, turn_id: str) -> Turn:
        """Return a turn of this session by its id, for example one that waits for a decision.

        Without workers, this session's agent takes up a turn that another process suspended and saved (``store=``). Do
        so in one process only: each one asks all decisions again, and runs what was approved. Raises ``TurnNotFound``
        if there is no such turn; without workers also for one that has ended.

        >>> turn = session.submit("Remind me", delay=3600)
        >>> session.turn(turn.id).cancel()
        'cancelled'
        """
        return Turn(call(self.turn_async(turn_id)))

    async def turn_async(self, turn_id: str) -> TurnHandle:
        """``turn``, awaited; so are the methods of the turn that it returns.

        >>> turn = await session.submit_async("Remind me", delay=3600)
        >>> await (await session.turn_async(turn.id)).cancel()
        'cancelled'
        """
        return await (await self._ready()).turn(self._ref, checked_turn_id(turn_id), self._agent)

    @spelled_out
    def regenerate(self, **options: Unpack[SubmitOptions]) -> Turn:
        """Answer the last question again: submit a turn whose answer takes the place of the last one.

        The question stays, and what came after it is replaced when the turn finishes, in one step. If the turn fails,
        the history is unchanged. "Last" means when the turn starts: it runs after the turns that the session already
        has. ``if_busy="reject"`` raises ``SessionBusy`` if there are any. Options as in ``submit``. Raises
        ``MessageNotFound`` if there is no question.

        >>> session.regenerate(temperature=1.0).result(timeout=10).text
        'You said: My name is Alice'
        """
        return Turn(call(self.regenerate_async(**options)))

    @spelled_out
    async def regenerate_async(self, **options: Unpack[SubmitOptions]) -> TurnHandle:
        """``regenerate``, awaited; so are the methods of the turn that it returns.

        >>> turn = await session.regenerate_async()
        >>> (await turn.result(timeout=10)).text
        'You said: My name is Alice'
        """
        return await self._revise(work_of("", options, self._agent, submitted=True, revises=LAST_ANSWER))

    @spelled_out
    def edit(self, message_id: str, text: Input, **options: Unpack[SubmitOptions]) -> Turn:
        """Replace a message of the user, and run from there: submit a turn that takes the place of this message and of
        all behind it.

        They are replaced when the turn finishes, in one step. If the turn fails, the history is unchanged. It runs
        after the turns that the session already has; ``if_busy="reject"`` raises ``SessionBusy`` if there are any.
        Options as in ``submit``. Raises ``MessageNotFound``, and ``UsageError`` if the message is not a user's. If the
        message has gone when the turn starts, the turn fails with the code ``message_not_found``.

        >>> question = session.history(-2)[0]
        >>> session.edit(question.id, "Hurry up").result(timeout=10).text
        'You said: Hurry up'
        >>> [message.text for message in session.history(-2)]
        ['Hurry up', 'You said: Hurry up']
        """
        return Turn(call(self.edit_async(message_id, text, **options)))

    @spelled_out
    async def edit_async(self, message_id: str, text: Input, **options: Unpack[SubmitOptions]) -> TurnHandle:
        """``edit``, awaited; so are the methods of the turn that it returns.

        >>> question = (await session.history_async(-2))[0]
        >>> turn = await session.edit_async(question.id, "Slow down")
        >>> (await turn.result(timeout=10)).text
        'You said: Slow down'
        """
        if not message_id or not is_a(message_id, str):
            raise MessageNotFound(session_id=self.session_id)
        return await self._revise(work_of(text, options, self._agent, submitted=True, revises=message_id))

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
    async def history(
        self, start: int = 0, stop: int | None = None, *, pending: bool = False, failed: bool = False
    ) -> list[Message]:
        """Return a slice of the history: ``history(-20)`` returns the last twenty messages.

        ``pending`` adds, at the end of a slice that reaches it, the input of the turns that have not ended, in the
        order in which they run. ``failed`` adds the turns that failed, or were cancelled, and left nothing in the
        history: their input and what they had said, in the place where they ended, as long as they are kept (a week).
        These messages have the ``status`` of their turn and its ``error``. No model is sent them.

        >>> [message.text for message in session.history(0, 1)]
        ['My name is Alice']
        >>> later = session.submit("Remind me", delay=3600)
        >>> [(message.text, message.status) for message in session.history(-1, pending=True)]
        [('You said: My name is Alice', None), ('Remind me', 'queued')]
        >>> later.cancel("not needed")
        'cancelled'
        >>> [(message.text, message.error) for message in session.history(-1, failed=True)]
        [('You said: My name is Alice', None), ('Remind me', 'not needed')]
        """
        asked = " ".join(name for name, wanted in (("pending", pending), ("failed", failed)) if wanted)
        return await (await self._readable()).read(self._ref, start, stop, turns=cast("Asked", asked))

    history_async = awaited(history)

    @synchronous
    async def cancel(self, reason: str = "cancelled by the client", *, keep: Keep = "partial") -> str | None:
        """Cancel the running turn, like a stop button; waiting turns continue.

        By default its input and all that it has said stay in the history, and the last message is marked
        ``interrupted``. ``keep`` and the result are those of ``AsyncTurn.cancel``; None means that no turn runs. The
        first turn of a session that waits for a worker is cancelled too; it has not begun and leaves nothing.

        >>> session.cancel() is None
        True
        """
        return await (await self._ready()).cancel(self._ref, reason, check_keep(keep))

    cancel_async = awaited(cancel)

    @synchronous
    async def add_message(self, *messages: MessageLike, if_busy: IfBusyEdit = "enqueue") -> None:
        """Add messages to the history without running a turn.

        Each is a ``Message`` or a dictionary in OpenAI's or Anthropic's format. Waits for earlier turns;
        ``if_busy="reject"`` raises ``SessionBusy`` instead.

        >>> session.add_message(Message.user("Hi"), {"role": "assistant", "content": "Hello."})
        >>> [message.text for message in session.history(-2)]
        ['Hi', 'Hello.']
        """
        await self._edit(Edit(add=_added(to_messages(messages)), if_busy=if_busy))

    add_message_async = awaited(add_message)

    @synchronous
    async def clear(self, *, if_busy: IfBusyEdit = "enqueue") -> None:
        """Delete the history. The system prompt and the variables stay.

        >>> session.clear()
        >>> session.messages
        []
        """
        await self._edit(Edit(clear=True, if_busy=if_busy))

    clear_async = awaited(clear)

    @synchronous
    async def rewind(self, to: str, *, if_busy: IfBusyEdit = "enqueue") -> None:
        """Remove all messages after the one with the id ``to``.

        Variables and files stay as they are. Waits for earlier turns; ``if_busy="reject"`` raises ``SessionBusy``
        instead. Raises ``MessageNotFound``, and ``UsageError`` if a tool call would lose its result: it names the ids
        that can be used. Subscribers get the event ``history_rewound``.

        >>> answer = session.run("Hello").messages[0]
        >>> response = session.run("How are you?")
        >>> session.rewind(to=answer.id)
        >>> [message.text for message in session.history(-2)]
        ['Hello', 'You said: Hello']
        """
        await self._edit(Edit(rewind=to, if_busy=if_busy))

    rewind_async = awaited(rewind)

    @synchronous
    async def fork(self, session_id: str | None = None, *, at: str | None = None) -> Session:
        """Copy this session, without its running turn, to a new session and return it.

        ``at`` is the id of the last message to copy. The copies keep the ids of the messages. The fork is kept as long
        as this session (``ttl``). Raises ``SessionExists`` if ``session_id`` already has a history,
        ``MessageNotFound``, and ``UsageError`` as ``rewind`` does.

        >>> fork = session.fork("another-plan", at=session.messages[1].id)
        >>> fork.run("Let us go to Osaka instead").text, len(fork.messages), len(session.messages)
        ('You said: Let us go to Osaka instead', 4, 2)
        """
        known = new_session_id() if session_id is None else checked_session_id(session_id)
        ref = msgspec.structs.replace(self._ref, id=known)
        await (await self._ready()).fork(self._ref, ref, at)
        return Session(self._agent, ref, None, self._given_runtime)

    fork_async = awaited(fork)

    @synchronous
    async def branches(self) -> list[Branch]:
        """Return the forks of this session in the order in which they were made, also those deleted since.

        >>> fork = session.fork("plan-b")
        >>> session.branches() == [fork.branch], fork.branch.at == session.messages[-1].id
        (True, True)
        """
        found = (await self._saved()).branches
        return [Branch(fork, self.session_id, at or None) for fork, at in found.items()]

    branches_async = awaited(branches)

    @synchronous_property
    async def branch(self) -> Branch | None:
        """Where this session was forked from: the session and the message. None if it is no fork.

        >>> session.fork().branch.source, session.branch
        ('user-123', None)
        """
        saved = await self._saved()
        return None if saved.fork_of is None else Branch(self.session_id, saved.fork_of, saved.fork_at)

    branch_async = awaited(branch)

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
        return Variables(call(self.variables_async()), self.set_variables)

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
        return Metadata(call(self.metadata_async()), self.set_metadata)

    async def metadata_async(self) -> dict[str, Any]:
        """Return a copy of the metadata.

        >>> await session.metadata_async()
        {}
        """
        return (await self._saved()).metadata

    @synchronous
    async def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Merge a dictionary into the metadata.

        No turn sees them, so this does not wait for turns. Only a session in this process that has a store is saved
        behind the turn that runs.

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

    @synchronous_property
    async def usage(self) -> Usage:
        """The tokens of all turns of the session that have ended, and their cost; also of turns that failed.

        >>> session.usage.tokens > 0, session.usage.cost
        (True, None)
        """
        return (await self._saved()).usage or Usage()

    usage_async = awaited(usage)

    @synchronous_property
    async def cost(self) -> float | None:
        """What these turns cost in US dollars, or None if no model that they called has a price.

        >>> session.cost is None
        True
        """
        return (await self.usage_async()).cost

    cost_async = awaited(cost)

    @synchronous
    async def status(self) -> SessionStatus:
        """Return the number of messages, the running turn with its step, and the waiting turns.

        >>> status = session.status()
        >>> status.state, status.messages, status.waiting
        ('idle', 2, [])
        """
        return await (await self._readable()).status(self._ref)

    status_async = awaited(status)

    # Saving.

    @synchronous
    async def to_dict(self) -> dict[str, Any]:
        """Return the session as plain types, for JSON or a database. ``Session.from_dict`` restores it.

        >>> data = session.to_dict()
        >>> data["session_id"], data["agent"]["name"], len(data["messages"])
        ('user-123', 'parrot', 2)
        """
        return (await self._saved(messages=True)).to_dict()

    to_dict_async = awaited(to_dict)

    @classmethod
    def from_dict(
        cls,
        data: Mapping[str, Any],
        agent: SessionAgent,
        *,
        replace: bool = False,
        ttl: float | timedelta | UnsetType | None = UNSET,
    ) -> Session:
        """Restore a session that ``to_dict`` saved, in any runtime. Raises ``CorruptRecord``.

        If a session with this id already has another history, the first use raises ``SessionExists``. With
        ``replace=True`` the saved session replaces it. ``ttl`` is that of ``Agent.session``.

        >>> data = {"version": 1, "session_id": "old", "messages": [{"role": "user", "content": "Hi"}]}
        >>> Session.from_dict(data, agent).messages[0].text
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
        return await (await self._readable()).children(self._ref)

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
        saved, runtime = await self._saved(messages=True), self._runtime
        answer = next((one for one in reversed(saved.messages) if one.role == "assistant" and one.text), None)
        if saved.parent is None or answer is None:
            raise UsageError("Only a child session with an answer can report; this session has no " + (
                "parent." if saved.parent is None else "answer yet."
            ))  # fmt: skip
        parent = msgspec.structs.replace(self._ref, id=checked_session_id(saved.parent))
        message = Message("assistant", [Text(answer.text)], agent=answer.agent, model=answer.model)
        await runtime.edit(parent, Edit(add=_added([message])))

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

    async def _events(self, work: Work) -> AsyncGenerator[list[Event], None]:
        deadline = Deadline(work.timeout)
        runtime, owned, at_work = await deadline.wait(self._ready()), _OwnedTurn(), False
        self._owned.add(owned)
        batches = runtime.work(self._ref, work)
        try:
            while batch := await deadline.wait(anext(batches, None), at_work=at_work):
                at_work = at_work or any(event.type == "turn_started" for event in batch)
                batch[-1] = typed_event(batch[-1], work.schema)
                yield batch
                for event in batch:
                    if isinstance(event, TurnSuspended):
                        await deadline.wait(self._answered(event, work))
        finally:
            owned.left = True
            try:
                await batches.aclose()
            finally:
                self._owned.discard(owned)
                owned.over.set_result(None)

    async def _answered(self, suspended: TurnSuspended, work: Work) -> None:
        """Let the functions of the caller decide. A call that others have decided meanwhile stays as they said."""
        runtime, turn_id = self._runtime, checked_turn_id(suspended.turn_id)
        async with aclosing(answers(suspended.calls, work.on_tool, work.on_approval)) as decisions:
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
        async for batch in self._events(work):
            last = batch[-1]
            if isinstance(last, TurnFinished):
                response = last.response
        assert response is not None, "a turn ends with its response or raises"
        return response

    async def _revise(self, work: Work) -> TurnHandle:
        """Submit a turn that replaces part of the history, if that part exists.

        Turns before it may bring it. A ``key`` may belong to a turn that has taken that place already.
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
        """Return the session as it is stored, with what its opening will change."""
        saved = await (await self._readable()).save(self._ref, messages=messages)
        if self._opening is not None:
            for name, value in self._opening.changes(partial(getattr, saved), None).items():
                setattr(saved, name, value)
        return saved

    async def _edit(self, edit: Edit) -> None:
        check_if_busy_edit(edit.if_busy)
        await (await self._ready()).edit(self._ref, edit)


def _added(messages: Sequence[Message]) -> list[Message]:
    """The messages as they enter the history, with ids that a repeated attempt of the same edit does not change."""
    return identified(messages, secrets.token_hex(8), now_ms())
