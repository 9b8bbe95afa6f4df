"""The tools of the MCP server: one for each agent of the workers, and those that read, answer and cancel turns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from antiphon.client import AsyncClient
from antiphon.input.wrong_values import wrong_value
from antiphon.mcp import LONGEST_TOOL_NAME, usable_name
from antiphon.model import OpenCall, Status
from antiphon.wire.lists.workers import offers
from antiphon_gateway.access.caller import Right
from antiphon_gateway.problems import Refused

ASK = "ask_"
LONGEST_WAIT = 600.0
USUAL_WAIT = 50.0
"""Less than the 60 s after which many clients abandon a call."""

_Wait = Annotated[
    float,
    Meta(ge=0, le=LONGEST_WAIT, description="Wait at most so many seconds. The turn continues in any case."),
]
_Turn = Annotated[str, Meta(description="The turn_id of an earlier result.")]


class Ask(Struct, kw_only=True, forbid_unknown_fields=True):
    """A message to an agent."""

    message: Annotated[str, Meta(min_length=1, description="The message to the agent.")]
    session_id: Annotated[
        str | None, Meta(description="The conversation to continue. Without it, a new one begins.")
    ] = None
    key: Annotated[
        str | None,
        Meta(description="Any unique text. A repeated call with the same key gets the same turn."),
    ] = None
    wait: _Wait = USUAL_WAIT


class GetTurn(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which turn to read."""

    turn_id: _Turn
    wait: _Wait = USUAL_WAIT


class AnswerCall(Struct, kw_only=True, forbid_unknown_fields=True):
    """A decision about a call that a turn waits for."""

    turn_id: _Turn
    call_id: Annotated[str, Meta(description="The call_id of one of the calls that the turn waits for.")]
    decision: Annotated[
        Literal["approve", "reject", "result"],
        Meta(description="approve or reject a call of the kind approval; give the result of one of the kind tool."),
    ]  # fmt: skip
    reason: Annotated[str | None, Meta(description="Why the call is rejected.")] = None
    arguments: Annotated[
        dict[str, Any] | None, Meta(description="Arguments that replace those of an approved call.")
    ] = None
    result: Annotated[Any, Meta(description="The result of a call of the kind tool.")] = None
    is_error: Annotated[bool, Meta(description="Whether the result is an error.")] = False
    wait: _Wait = USUAL_WAIT


class CancelTurn(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which turn to cancel."""

    turn_id: _Turn
    reason: Annotated[str, Meta(description="Why it is cancelled.")] = "cancelled by the client"


class Outcome(Struct, omit_defaults=True):
    """A turn after a call of a tool. ``text`` and ``output`` are the answer; ``calls`` are what the turn waits for."""

    turn_id: str
    session_id: str
    status: Status
    text: str = ""
    output: Any = None
    code: str = ""
    error: str = ""
    calls: list[OpenCall] = msgspec.field(default_factory=list)


class Offered(NamedTuple):
    """A tool. ``agent`` is the agent that it asks, '' for the tools of turns. ``right`` is what callers need."""

    name: str
    description: str
    arguments: type[Struct]
    right: Right
    agent: str = ""

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of its arguments."""
        return schema_of(self.arguments)


TURNS = (
    Offered("get_turn", "Wait for a turn that an agent has not finished yet, and return its answer.", GetTurn, "read"),
    Offered(
        "answer_call", "Decide about a tool call that a turn waits for, and wait for the answer.", AnswerCall, "write"
    ),
    Offered("cancel_turn", "Cancel a turn.", CancelTurn, "write"),
)  # fmt: skip
"""The tools of turns."""


async def offered(client: AsyncClient, rights: Iterable[Right]) -> list[Offered]:
    """Return the tools that a caller with these rights may use: the agents of the workers that run now, and turns.

    Raises ``StoreError``.
    """
    found = [offer for cell in client.connections.cells for offer in await offers(cell)]
    agents = sorted({agent for offer in found for agent in offer.agents})
    return [one for one in (*map(_asking, agents), *TURNS) if one.right in rights]


def _asking(agent: str) -> Offered:
    name = ASK + usable_name(agent, LONGEST_TOOL_NAME - len(ASK))
    return Offered(name, f"Ask the agent {agent}.", Ask, "write", agent)


def schema_of(kind: type[Struct]) -> dict[str, Any]:
    """Return the JSON schema of an object, with its ``type`` at the root."""
    (_,), known = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    own = known.pop(kind.__name__)
    own.pop("description", None)
    return {**own, "$defs": known} if known else own


def read_arguments(tool: Offered, arguments: dict[str, Any]) -> Any:
    """Return the arguments as the struct of the tool. Raises ``Refused``."""
    try:
        return msgspec.convert(arguments, tool.arguments)
    except msgspec.ValidationError as exc:
        sentence, field = wrong_value(exc, tool.arguments)
        raise Refused(400, "invalid_arguments", sentence, param=field or None) from None
