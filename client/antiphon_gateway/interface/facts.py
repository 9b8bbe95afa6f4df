"""Facts: what a memory knows of a tenant, of an agent's users, or from one session."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from antiphon.client import AsyncFacts, Fact
from antiphon_gateway.http.operations import Answer, Call, operation

__all__ = ["OPERATIONS"]


class FactsQuery(Struct, kw_only=True):
    """Whose facts: those of an ``agent`` or of a ``session``, or of a whole tenant, as the memory's scope is.

    ``memory`` is the name of its ``FactModel``. ``tenant`` is for keys of every tenant.
    """

    memory: str = "memory"
    agent: str | None = None
    session: str | None = None
    tenant: str | None = None


class FactText(Struct, kw_only=True, forbid_unknown_fields=True):
    """How the fact reads, in at most 1,000 characters."""

    text: str


class FactList(Struct):
    """Facts, the one that was known first at the beginning."""

    facts: list[Fact]


@operation("GET", "/facts", right="read")
async def list_facts(call: Call[FactsQuery, None]) -> FactList:
    """List what a memory knows"""
    return FactList([one async for one in _facts(call)])


@operation("POST", "/facts", right="write", status=201)
async def add_fact(call: Call[FactsQuery, FactText]) -> Answer[Fact]:
    """Add a fact, as a person knows it"""
    fact = await _facts(call).add(call.body.text)
    return Answer(fact, 201, {"location": call.address("facts", fact.id)})


@operation("PATCH", "/facts/{fact}", right="write")
async def edit_fact(call: Call[FactsQuery, FactText]) -> Fact:
    """Let a fact read differently; no turn that was said before changes it again"""
    return await _facts(call).edit(call.path["fact"], call.body.text)


@operation("DELETE", "/facts/{fact}", right="write", status=204)
async def delete_fact(call: Call[FactsQuery, None]) -> None:
    """Delete a fact; the turns that said it are not distilled again"""
    await _facts(call).delete(call.path["fact"])


def _facts(call: Call[FactsQuery, Any]) -> AsyncFacts:
    """The facts that the caller may use. Raises ``Refused``: those of a tenant or an agent tell of all its sessions."""
    asked = call.query
    if asked.session is None:
        call.caller.check_every_session()
    else:
        call.caller.check_session(asked.session)
    tenant = call.caller.tenant_for(asked.tenant)
    return call.client.memory(asked.memory, tenant=tenant, agent=asked.agent, session=asked.session)


OPERATIONS = [list_facts, add_fact, edit_fact, delete_fact]
