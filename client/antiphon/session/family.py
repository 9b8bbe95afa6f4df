"""``SessionFamily``: the methods of ``AsyncSession`` for the sessions above and below it."""

from __future__ import annotations

from abc import ABC, abstractmethod

from antiphon.model.recording import SessionRecording
from antiphon.session.runtime import Runtime, SessionRef
from antiphon.session.saved import SavedSession


class SessionFamily(ABC):
    """The methods of a session for its parent, its children and the turns of all of them."""

    _ref: SessionRef

    @abstractmethod
    async def _readable(self) -> Runtime: ...
    @abstractmethod
    async def _saved(self) -> SavedSession: ...

    async def parent(self) -> str | None:
        """The id of the parent session, or None.

        >>> await session.child().parent(), await session.parent()
        ('user-123', None)
        """
        return (await self._saved()).parent

    async def children(self) -> list[str]:
        """Return the ids of this session's children.

        >>> research = session.child(session_id="research")
        >>> (await research.run("Look it up")).text, await session.children()
        ('You said: Look it up', ['research'])
        """
        return await (await self._readable()).children(self._ref)

    async def graph(self) -> str:
        """Return the last 100 turns, with their agents, hand-offs and child turns, as a Mermaid diagram.

        It contains no text of users, models or tools, and goes back as far as the session keeps events. Raises
        ``WrongTenant`` and ``StoreError``.

        >>> (await session.graph()).splitlines()
        ['flowchart TD', '  t1["parrot<br/>finished"]']
        """
        return await (await self._readable()).graph(self._ref)

    async def recording(self) -> SessionRecording:
        """Return the ended turns that are still kept as a recording: see ``antiphon.testing.replay``.

        It contains the texts of users, models and tools. Raises ``UsageError`` if there are none, ``WrongTenant`` and
        ``StoreError``.

        >>> [turn.input[0].text for turn in (await session.recording()).turns]
        ['My name is Alice']
        """
        return await (await self._readable()).recording(self._ref)
