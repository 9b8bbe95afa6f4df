"""The card of a published agent: what it can do, where it is reached, and how callers authenticate."""

from __future__ import annotations

import hashlib

import msgspec
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import MessageToDict

from antiphon_gateway.published import A2AAgent, Skill

VERSION = "1.0"
"""The supported version of the protocol."""
BINDINGS = ("JSONRPC", "HTTP+JSON")
SCHEME = "bearer"


def card_of(agent: A2AAgent, url: str, *, closed: bool) -> pb.AgentCard:
    """Return the card of an agent that is reached at ``url``. ``closed`` is whether callers must authenticate."""
    card = pb.AgentCard(
        name=agent.title or agent.name, description=agent.description or f"The agent {agent.name}.",
        version=agent.version, default_input_modes=agent.input_modes, default_output_modes=agent.output_modes,
        supported_interfaces=[
            pb.AgentInterface(url=url, protocol_binding=binding, protocol_version=VERSION) for binding in BINDINGS
        ],
        capabilities=pb.AgentCapabilities(streaming=True, push_notifications=True, extended_agent_card=False),
        skills=[_skill(one) for one in agent.skills or [Skill(agent.name, description=agent.description)]],
    )  # fmt: skip
    if agent.organization:
        url = agent.organization_url
        card.provider.CopyFrom(pb.AgentProvider(organization=agent.organization, url=url))
    if agent.documentation_url:
        card.documentation_url = agent.documentation_url
    if agent.icon_url:
        card.icon_url = agent.icon_url
    if closed:
        http = pb.HTTPAuthSecurityScheme(scheme="Bearer", description="An API key, or a JSON web token.")
        card.security_schemes[SCHEME].http_auth_security_scheme.CopyFrom(http)
        card.security_requirements.add().schemes[SCHEME].CopyFrom(pb.StringList())
    return card


def _skill(one: Skill) -> pb.AgentSkill:
    name = one.name or one.id
    return pb.AgentSkill(
        id=one.id,
        name=name,
        description=one.description or name,
        tags=one.tags or [one.id],
        examples=one.examples,
    )


def written_card(card: pb.AgentCard) -> tuple[bytes, str]:
    """Return the JSON of a card, and its entity tag."""
    body = msgspec.json.encode(MessageToDict(card))
    return body, f'"{hashlib.sha256(body).hexdigest()[:32]}"'
