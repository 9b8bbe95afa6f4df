"""Agents of other systems as tools, over the A2A protocol.

>>> from antiphon import Agent
>>> from antiphon.a2a import RemoteAgent
>>> weather = RemoteAgent("https://agents.example.com/a2a/weather", name="weather", description="Knows the weather.")
>>> Agent("scripted", "any", tools=[weather]).tools
[<Tool weather>]
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from typing import Any, cast
from urllib.parse import urlsplit

from antiphon.errors import MissingPackage, ToolRaised, UsageError
from antiphon.input.values import duration, is_a
from antiphon.mcp import Auth, Requester, check_auth
from antiphon.model import AtLimit
from antiphon.tools.approval import ToolRule
from antiphon.tools.context import Context
from antiphon.tools.functions import Tool

__all__ = ["RemoteAgent", "Requester"]

PARAMETERS = {
    "type": "object",
    "properties": {
        "input": {"type": "string", "description": "The task, with all that the agent needs to know."}
    },
    "required": ["input"],
    "additionalProperties": False,
}
MARGIN_SECONDS = 60.0
"""How much longer than its time limit a call may take, so that it can cancel the task at the other agent."""


class RemoteAgent(Tool[..., Any]):
    """An agent that another system serves over A2A, as a tool. Each call is a task of that agent.

    ``url`` is the address of the agent; its card is below it. The model sees ``name`` and ``description``. ``auth``
    is a function (asynchronous or not) of the ``Requester`` that returns the credentials of this user: a token, headers
    or None. Workers call it for each request. ``headers`` are sent for all users. A call may take ``timeout`` seconds
    (default: 300), not counting the time in which it waits for the user. ``connect_timeout`` is the time limit of the
    connection and the card. With ``own_context``, calls choose their ``contextId``, so that the other agent recognizes
    a message that is sent again after a crash; set it to False for agents that refuse this. ``approval``,
    ``approval_timeout`` and ``approval_at_limit`` are those of ``antiphon.tool``.

    If the worker crashes, another one continues to wait for the same task. Raises ``UsageError``, and
    ``MissingPackage`` without the package ``a2a-sdk``.

    >>> RemoteAgent("https://agents.example.com/a2a/weather", name="weather", approval=True).parameters["required"]
    ['input']
    """

    env: Mapping[str, str] = {}
    """Always empty: only MCP servers that are programs have an environment."""

    def __init__(
        self,
        url: str,
        *,
        name: str,
        description: str = "",
        auth: Auth | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | timedelta | None = None,
        connect_timeout: float | timedelta = 10.0,
        own_context: bool = True,
        approval: ToolRule = False,
        approval_timeout: float | timedelta | None = None,
        approval_at_limit: AtLimit = "reject",
    ) -> None:
        if importlib.util.find_spec("a2a") is None:
            raise MissingPackage("Remote agents need a package: pip install 'antiphon[a2a]'.")
        parts = urlsplit(url if is_a(url, str) else "")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            raise UsageError(
                "The URL of a remote agent must begin with http:// or https://, without credentials."
            )
        check_auth(auth)
        given: Any = headers or {}
        if not isinstance(given, Mapping) or not all(
            is_a(one, str) for pair in cast("Mapping[Any, Any]", given).items() for one in pair
        ):
            raise UsageError("headers= of a remote agent must be a dictionary of texts.")
        self.seconds = duration(timeout, "timeout") or 300.0
        super().__init__(
            _unbound, name=name, description=description or f"Give the agent {name} a task, and get its answer.",
            parameters=PARAMETERS, timeout=self.seconds + MARGIN_SECONDS, approval=approval,
            approval_timeout=approval_timeout, approval_at_limit=approval_at_limit,
        )  # fmt: skip
        self.url, self.auth, self.headers = url.rstrip("/"), auth, dict(cast("Mapping[str, str]", given))
        self.connect_timeout = duration(connect_timeout, "connect_timeout") or 10.0
        self.own_context = own_context

    def bound(self, run: Callable[[RemoteAgent, str, Context], Coroutine[Any, Any, Any]]) -> RemoteAgent:
        """Return a copy of the tool for a turn, whose calls are passed to ``run``."""
        found = copy.copy(self)

        async def call(input: str, context: Context) -> Any:  # noqa: A002
            return await run(found, input, context)

        found.function = cast("Any", call)
        return found


async def _unbound(input: str, context: Context) -> str:  # noqa: A002
    """Refuse the call: a turn calls the tool that ``bound`` returns."""
    raise ToolRaised("A remote agent runs only in a turn.")
