"""``AntiphonSession``: the history of a session, as the Agents SDK reads and writes it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from msgspec import UNSET, UnsetType

from antiphon.agent import Agent
from antiphon.ext.openai_agents.items import PROVIDER, items_of, message_of, messages_of
from antiphon.ext.outcome import outcome_of
from antiphon.input.values import lifetime
from antiphon.model import Message
from antiphon.session.runtime import Edit, SessionRef

if TYPE_CHECKING:
    from agents import SessionSettings, TResponseInputItem

__all__ = ["AntiphonSession"]


class AntiphonSession:
    """A session of the Agents SDK, for ``Runner.run(…, session=…)``, whose items are the history of one of ours.

    >>> from antiphon.ext.openai_agents import AntiphonSession
    >>> session = AntiphonSession("user-123", ttl=3600)
    >>> await session.add_items([{"role": "user", "content": "Hello"}])
    >>> await session.get_items()
    [{'role': 'user', 'content': 'Hello'}]
    >>> await session.pop_item()
    {'role': 'user', 'content': 'Hello'}

    ``redis`` is a URL, a list of URLs or a redis-py client; without it, the session lives in this process. ``ttl``
    (seconds or a timedelta) is how long it is kept without being used, by default 30 days. With a ``tenant``, a session
    of another one raises ``WrongTenant``.

    Items come back as they were added, in their order. Each change is one atomic step on the server: of two callers
    that pop, each gets another item, and what one call adds stays together. A change that is cancelled is waited for,
    so that no item gets lost. It may be used from any event loop and thread, also with ``Runner.run_sync``. The history
    is that of a session: a turn of ours that runs in it reads what the SDK has added, and the SDK reads what our turns
    have said. A change waits for a turn that runs. Raises ``AgentError`` (``store_unavailable``, …).
    """

    session_settings: SessionSettings | None = None

    def __init__(
        self,
        session_id: str,
        *,
        redis: Any = None,
        prefix: str | None = None,
        ttl: float | timedelta | UnsetType | None = UNSET,
        tenant: str | None = None,
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        agent = Agent(PROVIDER, "any", redis=redis, prefix=prefix)
        self._session = agent.session(session_id, ttl=ttl, tenant=tenant)
        self._runtime = agent.runtime
        self._ref = SessionRef(self._session.session_id, None, lifetime(ttl), tenant)
        self.session_id: str = self._session.session_id
        self.session_settings = _settings(session_settings)

    def __repr__(self) -> str:
        return f"AntiphonSession({self.session_id!r})"

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the items in their order, or the last ``limit`` of them.

        Without ``limit``, that of ``session_settings`` counts.

        >>> await AntiphonSession("new").get_items(limit=10)
        []
        """
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        if limit is None:
            return _typed(_items(await self._session.messages_async()))
        if limit <= 0:
            return []
        return _typed(_items(await self._session.history_async(-limit))[-limit:])

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items at the end, all in one step.

        >>> await AntiphonSession("new").add_items([])
        """
        if items:
            messages = messages_of(cast("list[dict[str, Any]]", items))
            await outcome_of(self._session.add_message_async(*messages))

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the last item and return it, or None if there is none. No other caller gets it.

        >>> await AntiphonSession("new").pop_item()
        """
        popped: list[dict[str, Any]] = []

        def shortened(last: Message | None) -> list[Message]:
            items = [] if last is None else items_of(last) or [{}]
            popped[:] = items[-1:]
            return [message_of(items[:-1], last)] if items[1:] else []

        while True:
            await outcome_of(self._runtime.edit(self._ref, Edit(ends_with=shortened)))
            if not popped or popped[0]:  # a message that says nothing to the SDK goes with the next one
                return _typed(popped)[0] if popped else None

    async def clear_session(self) -> None:
        """Remove all items.

        >>> await AntiphonSession("new").clear_session()
        """
        await outcome_of(self._session.clear_async())


def _settings(settings: SessionSettings | dict[str, Any] | None) -> SessionSettings:
    from agents import SessionSettings
    from agents.memory.session_settings import coerce_session_settings

    return SessionSettings() if settings is None else coerce_session_settings(settings)


def _items(messages: list[Message]) -> list[dict[str, Any]]:
    return [item for message in messages for item in items_of(message)]


def _typed(items: list[dict[str, Any]]) -> list[TResponseInputItem]:
    return cast("list[TResponseInputItem]", items)
