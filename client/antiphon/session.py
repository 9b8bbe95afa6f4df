"""Sessions: one conversation with its history, kept by a runtime.

Every method that may wait has an ``_async`` twin; the synchronous one runs it on the background loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from antiphon.background import call
from antiphon.convert import MessageLike, to_messages
from antiphon.errors import UsageError
from antiphon.ids import SessionId, new_session_id
from antiphon.ids import session_id as checked_session_id
from antiphon.model import File, Message, Text
from antiphon.opening import opening_of
from antiphon.runtime import (
    DEFAULT_TTL_SECONDS,
    AgentLike,
    Edit,
    IfBusy,
    Opening,
    Runtime,
    SessionRef,
    SessionStatus,
    duration,
    plain,
)
from antiphon.saved import SavedSession, read_saved
from antiphon.turntaking import TurnTaking, check_if_busy
from antiphon.variables import Variables

__all__ = ["Session"]


class Session(TurnTaking):
    """One conversation of an agent: what was said is remembered from turn to turn.

    >>> from antiphon import Agent
    >>> session = Agent(provider="scripted", model="any").session()
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
        return self._ref.id

    @property
    def agent(self) -> AgentLike | str | None:
        """The agent that works on this session's turns where they name no other, or its name; None is the agent
        that the session began with."""
        return self._agent

    # History.

    @property
    def messages(self) -> list[Message]:
        """The whole history, a copy. The system prompt is not in it."""
        return call(self.messages_async())

    async def messages_async(self) -> list[Message]:
        """``messages``, awaited."""
        return await self.history_async()

    def history(self, start: int = 0, stop: int | None = None) -> list[Message]:
        """A page of the history, counted as in a slice: ``history(-20)`` is the last twenty messages."""
        return call(self.history_async(start, stop))

    async def history_async(self, start: int = 0, stop: int | None = None) -> list[Message]:
        """``history``, awaited."""
        return await (await self._ready()).read(self._ref, start, stop)

    def add_message(self, *messages: MessageLike, if_busy: IfBusy = "enqueue") -> None:
        """Add to the history without a turn: ``Message``, OpenAI's or Anthropic's dictionaries.

        Waits for the turns before it; with ``if_busy="reject"`` raises ``SessionBusy`` instead.
        """
        call(self.add_message_async(*messages, if_busy=if_busy))

    async def add_message_async(self, *messages: MessageLike, if_busy: IfBusy = "enqueue") -> None:
        """``add_message``, awaited."""
        await self._edit(Edit(add=to_messages(messages), if_busy=if_busy))

    def clear(self, *, if_busy: IfBusy = "enqueue") -> None:
        """Forget the history. The system prompt and the variables stay."""
        call(self.clear_async(if_busy=if_busy))

    async def clear_async(self, *, if_busy: IfBusy = "enqueue") -> None:
        """``clear``, awaited."""
        await self._edit(Edit(clear=True, if_busy=if_busy))

    def fork(self, session_id: str | None = None) -> Session:
        """A new session that begins with all of this one but a turn that runs. Raises ``SessionExists``."""
        return call(self.fork_async(session_id))

    async def fork_async(self, session_id: str | None = None) -> Session:
        """``fork``, awaited."""
        known = new_session_id() if session_id is None else checked_session_id(session_id)
        ref = msgspec.structs.replace(self._ref, id=known)
        await (await self._ready()).fork(self._ref, ref)
        return Session(self._agent, ref, None, self._given_runtime)

    # What else a session has.

    @property
    def variables(self) -> Variables:
        """The variables, to read and to set: ``session.variables["user"] = "Alice"``.

        ``{user}`` in the system prompt becomes its value, and tools find and change them in their ``Context``.
        """
        return Variables(self, call(self._saved()).variables)

    async def variables_async(self) -> dict[str, Any]:
        """A copy of the variables."""
        return (await self._saved()).variables

    def set_variables(self, variables: Mapping[str, Any], *, remove: Sequence[str] = ()) -> None:
        """Set some variables, and take others away, at once."""
        call(self.set_variables_async(variables, remove=remove))

    async def set_variables_async(self, variables: Mapping[str, Any], *, remove: Sequence[str] = ()) -> None:
        """``set_variables``, awaited."""
        await self._edit(Edit(variables=plain(variables, "variables"), remove=list(remove)))

    @property
    def metadata(self) -> dict[str, Any]:
        """A copy of the metadata: what the caller wants to find sessions by. Models do not see it."""
        return call(self._saved()).metadata

    async def metadata_async(self) -> dict[str, Any]:
        """``metadata``, awaited."""
        return (await self._saved()).metadata

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Merge this into the metadata."""
        call(self.set_metadata_async(metadata))

    async def set_metadata_async(self, metadata: Mapping[str, Any]) -> None:
        """``set_metadata``, awaited."""
        await self._edit(Edit(metadata=plain(metadata, "metadata")))

    @property
    def tenant(self) -> str | None:
        """Whose session it is."""
        return call(self._saved()).tenant

    async def tenant_async(self) -> str | None:
        """``tenant``, awaited."""
        return (await self._saved()).tenant

    @property
    def queue(self) -> str | None:
        """The session's own queue, where its turns go unless they name one; None leaves it to the agent."""
        return call(self._saved()).queue

    async def queue_async(self) -> str | None:
        """``queue``, awaited."""
        return (await self._saved()).queue

    @property
    def files(self) -> dict[str, File]:
        """The files of the session by name, ready to be said: ``session.run(["Read:", session.files["a.pdf"]])``."""
        return call(self._saved()).files

    async def files_async(self) -> dict[str, File]:
        """``files``, awaited."""
        return (await self._saved()).files

    def add_file(self, file: File) -> None:
        """Keep a file under its name, by reference: its ``url`` or the provider's ``file_id``, not its bytes."""
        call(self.add_file_async(file))

    async def add_file_async(self, file: File) -> None:
        """``add_file``, awaited."""
        if not file.name:
            raise UsageError("A file of a session needs a name: File(name=…).")
        if not (file.url or file.file_id):
            raise UsageError("A session keeps files by reference: File(url=…) or File(file_id=…).")
        await self._edit(Edit(files={file.name: file}))

    @property
    def system(self) -> str | None:
        """The session's own system prompt; without one, its agent's is used."""
        return call(self._saved()).system

    async def system_async(self) -> str | None:
        """``system``, awaited."""
        return (await self._saved()).system

    def status(self) -> SessionStatus:
        """What is done, what is running (with its step) and what is waiting."""
        return call(self.status_async())

    async def status_async(self) -> SessionStatus:
        """``status``, awaited."""
        return await (await self._ready()).status(self._ref)

    # Saving.

    def to_dict(self) -> dict[str, Any]:
        """The session in plain types, for a JSON file or a database; ``Session.from_dict`` restores it."""
        return call(self.to_dict_async())

    async def to_dict_async(self) -> dict[str, Any]:
        """``to_dict``, awaited."""
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
        """
        saved = read_saved(data)
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
        """
        pending = self._opening or Opening()
        opening = opening_of(
            system=system, variables=variables, tenant=pending.tenant, queue=queue or pending.queue,
            parent=self.session_id,
        )  # fmt: skip
        opener = agent or self._agent
        if self._given_runtime is None and opener is not None and not isinstance(opener, str):
            return opener.open_session(session_id, opening, ttl=self._ref.ttl, store=self._ref.store)
        known = new_session_id() if session_id is None else checked_session_id(session_id)
        return Session(opener, msgspec.structs.replace(self._ref, id=known), opening, self._given_runtime)

    @property
    def parent(self) -> str | None:
        """The id of the session that this one is a child of."""
        return call(self._saved()).parent

    async def parent_async(self) -> str | None:
        """``parent``, awaited."""
        return (await self._saved()).parent

    def children(self) -> list[str]:
        """The ids of this session's children."""
        return call(self.children_async())

    async def children_async(self) -> list[str]:
        """``children``, awaited."""
        return await (await self._ready()).children(self._ref)

    def report(self) -> None:
        """Add this child's last answer to its parent's history, under the name of the agent that gave it.

        Waits for the parent's turns before it. In a tool, return the answer instead: it becomes the tool's result.
        """
        call(self.report_async())

    async def report_async(self) -> None:
        """``report``, awaited."""
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
        """End the session: it can still be read, saved and forked, but takes no more turns or changes."""
        call(self.close_async())

    async def close_async(self) -> None:
        """``close``, awaited."""
        await (await self._ready()).close(self._ref)

    def delete(self) -> bool:
        """Forget the session, in its store too, and cancel its turns. True where there was one."""
        return call(self.delete_async())

    async def delete_async(self) -> bool:
        """``delete``, awaited."""
        return await (await self._ready()).delete(self._ref)

    async def _saved(self) -> SavedSession:
        return await (await self._ready()).save(self._ref, messages=False)

    async def _edit(self, edit: Edit) -> None:
        check_if_busy(edit.if_busy)
        await (await self._ready()).edit(self._ref, edit)
