"""Sessions: one conversation with its history, kept by a runtime.

Every method that may wait has an ``_async`` twin; the synchronous one runs it on the background loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec

from antiphon.errors import UsageError
from antiphon.input.ids import SessionId, new_session_id
from antiphon.input.ids import session_id as checked_session_id
from antiphon.input.messages import MessageLike, to_messages
from antiphon.model import Message, Text
from antiphon.session.background import call
from antiphon.session.opening import opening_of
from antiphon.session.properties import Keeping
from antiphon.session.runtime import (
    DEFAULT_TTL_SECONDS,
    AgentLike,
    Edit,
    IfBusy,
    Opening,
    Runtime,
    SessionRef,
    duration,
)
from antiphon.session.saved import read_saved

__all__ = ["Session"]


class Session(Keeping):
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
        agent: AgentLike | str | None,
        ref: SessionRef,
        opening: Opening | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__(agent, ref, opening, runtime)

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
    def agent(self) -> AgentLike | str | None:
        """The agent that works on this session's turns where they name no other, or its name; None is the agent
        that the session began with.

        >>> session.agent
        Agent(provider='scripted', model='any', name='parrot')
        """
        return self._agent

    # History.

    @property
    def messages(self) -> list[Message]:
        """The whole history, a copy. The system prompt is not in it.

        >>> session.messages[1].text
        'You said: My name is Alice'
        """
        return call(self.messages_async())

    async def messages_async(self) -> list[Message]:
        """``messages``, awaited.

        >>> len(await session.messages_async())
        2
        """
        return await self.history_async()

    def history(self, start: int = 0, stop: int | None = None) -> list[Message]:
        """A page of the history, counted as in a slice: ``history(-20)`` is the last twenty messages.

        >>> [message.text for message in session.history(0, 1)]
        ['My name is Alice']
        """
        return call(self.history_async(start, stop))

    async def history_async(self, start: int = 0, stop: int | None = None) -> list[Message]:
        """``history``, awaited.

        >>> [message.role for message in await session.history_async(-1)]
        ['assistant']
        """
        return await (await self._ready()).read(self._ref, start, stop)

    def add_message(self, *messages: MessageLike, if_busy: IfBusy = "enqueue") -> None:
        """Add to the history without a turn: ``Message``, OpenAI's or Anthropic's dictionaries.

        Waits for the turns before it; with ``if_busy="reject"`` raises ``SessionBusy`` instead.

        >>> session.add_message(Message.user("Hi"), {"role": "assistant", "content": "Hello."})
        >>> [message.text for message in session.history(-2)]
        ['Hi', 'Hello.']
        """
        call(self.add_message_async(*messages, if_busy=if_busy))

    async def add_message_async(self, *messages: MessageLike, if_busy: IfBusy = "enqueue") -> None:
        """``add_message``, awaited.

        >>> await session.add_message_async(Message.system("The user has paid."))
        """
        await self._edit(Edit(add=to_messages(messages), if_busy=if_busy))

    def clear(self, *, if_busy: IfBusy = "enqueue") -> None:
        """Forget the history. The system prompt and the variables stay.

        >>> session.clear()
        >>> session.messages
        []
        """
        call(self.clear_async(if_busy=if_busy))

    async def clear_async(self, *, if_busy: IfBusy = "enqueue") -> None:
        """``clear``, awaited.

        >>> await session.clear_async(if_busy="reject")
        """
        await self._edit(Edit(clear=True, if_busy=if_busy))

    def fork(self, session_id: str | None = None) -> Session:
        """A new session that begins with all of this one but a turn that runs. Raises ``SessionExists``.

        >>> fork = session.fork("another-plan")
        >>> fork.run("Let us go to Osaka instead").text, len(fork.messages), len(session.messages)
        ('You said: Let us go to Osaka instead', 4, 2)
        """
        return call(self.fork_async(session_id))

    async def fork_async(self, session_id: str | None = None) -> Session:
        """``fork``, awaited.

        >>> (await session.fork_async("copy")).session_id
        'copy'
        """
        known = new_session_id() if session_id is None else checked_session_id(session_id)
        ref = msgspec.structs.replace(self._ref, id=known)
        await (await self._ready()).fork(self._ref, ref)
        return Session(self._agent, ref, None, self._given_runtime)

    # Saving.

    def to_dict(self) -> dict[str, Any]:
        """The session in plain types, for a JSON file or a database; ``Session.from_dict`` restores it.

        >>> data = session.to_dict()
        >>> data["session_id"], data["agent"]["name"], len(data["messages"])
        ('user-123', 'parrot', 2)
        """
        return call(self.to_dict_async())

    async def to_dict_async(self) -> dict[str, Any]:
        """``to_dict``, awaited.

        >>> (await session.to_dict_async())["version"]
        1
        """
        return (await (await self._ready()).save(self._ref)).to_dict()

    @classmethod
    def from_dict(
        cls,
        data: Mapping[str, Any],
        agent: AgentLike,
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
        agent: AgentLike | None = None,
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

    @property
    def parent(self) -> str | None:
        """The id of the session that this one is a child of.

        >>> session.child().parent, session.parent
        ('user-123', None)
        """
        return call(self._saved()).parent

    async def parent_async(self) -> str | None:
        """``parent``, awaited.

        >>> await session.child().parent_async()
        'user-123'
        """
        return (await self._saved()).parent

    def children(self) -> list[str]:
        """The ids of this session's children.

        >>> research = session.child(session_id="research")
        >>> research.run("Look it up").text, session.children()
        ('You said: Look it up', ['research'])
        """
        return call(self.children_async())

    async def children_async(self) -> list[str]:
        """``children``, awaited.

        >>> await session.children_async()
        []
        """
        return await (await self._ready()).children(self._ref)

    def report(self) -> None:
        """Add this child's last answer to its parent's history, under the name of the agent that gave it.

        Waits for the parent's turns before it. In a tool of the parent's own turn, which it would wait for, it raises
        ``UsageError``: return the answer instead, and it becomes the tool's result.

        >>> research = session.child()
        >>> response = research.run("Look it up")
        >>> research.report()
        >>> session.messages[-1].text, session.messages[-1].agent
        ('You said: Look it up', 'parrot')
        """
        call(self.report_async())

    async def report_async(self) -> None:
        """``report``, awaited.

        >>> research = session.child()
        >>> response = await research.run_async("Look it up")
        >>> await research.report_async()
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

    def close(self) -> None:
        """End the session: it can still be read, saved and forked, but takes no more turns or changes.

        >>> session.close()
        >>> session.run("One more")
        Traceback (most recent call last):
        antiphon.errors.UsageError: The session is closed.
        """
        call(self.close_async())

    async def close_async(self) -> None:
        """``close``, awaited.

        >>> await session.close_async()
        >>> (await session.status_async()).state
        'closed'
        """
        await (await self._ready()).close(self._ref)

    def delete(self) -> bool:
        """Forget the session, in its store too, and cancel its turns. True where there was one.

        >>> session.delete(), session.delete(), session.messages
        (True, False, [])
        """
        return call(self.delete_async())

    async def delete_async(self) -> bool:
        """``delete``, awaited.

        >>> await session.delete_async()
        True
        """
        return await (await self._ready()).delete(self._ref)
