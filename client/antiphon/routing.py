"""Routing: a function of the App chooses the agent, the model or the queue of a turn before it begins.

>>> from antiphon.routing import Route, Routing
>>> def choose(turn: Routing) -> Route | None:
...     if "invoice" in turn.text:
...         return Route(agent="billing", reason="It is about an invoice.")
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from antiphon.errors import UsageError
from antiphon.input.ids import check_queue
from antiphon.model import Message, encode

__all__ = ["Route", "Router", "Routing"]

LONGEST_REASON = 1_000
LONGEST_NAME = 2_048
"""The longest name of an agent or a model, in characters."""
ROUTER_FAILED = "The router failed"


class Route(Struct, frozen=True, omit_defaults=True):
    """What a router chooses for a turn. Fields that are None stay as the turn asks.

    ``agent`` is the name of an agent, ``model`` the model of that agent's provider, and ``queue`` the queue that the
    turn moves to before it begins. ``reason`` is for people: the event, ``info()`` and ``antiphon explain`` show it.

    >>> Route(model="gpt-5-mini", reason="A short question.").model
    'gpt-5-mini'
    """

    agent: str | None = None
    model: str | None = None
    queue: str | None = None
    reason: str = ""


class Routing(Struct, frozen=True):
    """A turn that is about to begin, as a router sees it.

    ``agent`` is the name that the turn, or else its session, asks for, or None. ``input`` is what was submitted,
    ``variables`` those of the session, and ``previous`` the last choice in the session, or None.

    >>> Routing("s1", "t1", "default", [Message("user", "My invoice?")]).text
    'My invoice?'
    """

    session_id: str
    turn_id: str
    queue: str
    input: Sequence[Message]
    agent: str | None = None
    tenant: str | None = None
    user: str | None = None
    metadata: Mapping[str, Any] = {}
    variables: Mapping[str, Any] = {}
    previous: Route | None = None

    @property
    def text(self) -> str:
        """The text of the input."""
        return "\n".join(message.text for message in self.input)


Choice: TypeAlias = Route | str | None
Router: TypeAlias = Callable[[Routing], Choice | Awaitable[Choice]]


def checked_route(chosen: object) -> Route | None:
    """Return the route that a router chose, if any. The name of an agent is a route to it. Raises ``UsageError``."""
    if isinstance(chosen, str):
        chosen = Route(agent=chosen)
    if chosen is None:
        return None
    if not isinstance(chosen, Route):
        raise UsageError(
            f"A router returns a Route, the name of an agent or None, not {type(chosen).__name__}."
        )
    for name in ("agent", "model"):
        value = getattr(chosen, name)
        if value is not None and (not isinstance(value, str) or not value):
            raise UsageError(f"{name}= must be a non-empty string, not {value!r}.")
        if value and len(value) > LONGEST_NAME:
            raise UsageError(f"{name}= has {len(value):,} characters: at most {LONGEST_NAME:,} are allowed.")
    if chosen.queue is not None:
        check_queue(chosen.queue)
    if not isinstance(chosen.reason, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"reason= must be text, not {chosen.reason!r}.")
    found = Route(chosen.agent, chosen.model, chosen.queue, chosen.reason[:LONGEST_REASON])
    try:
        encode(found)
    except UnicodeEncodeError:
        raise UsageError(
            "The route contains half a character (a lone surrogate), and cannot be stored."
        ) from None
    return None if found == Route() else found
