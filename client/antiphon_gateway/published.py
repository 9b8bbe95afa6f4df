"""``A2AAgent``: an agent of the workers that the gateway offers to other agents, and how its card describes it.

url = "https://agents.example.com"       # where clients reach the gateway; by default, the address that a request used

[agents.support]
description = "Answers questions about orders."

[[agents.support.skills]]
id = "orders"
description = "Finds an order, and says when it arrives."
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from antiphon.errors import SettingsError

INPUT_MODES = [
    "text/plain", "text/markdown", "text/html", "text/csv", "application/json", "application/pdf",
    "image/png", "image/jpeg", "image/gif", "image/webp",
]  # fmt: skip
OUTPUT_MODES = ["text/plain", "application/json"]


def _input_modes() -> list[str]:
    return list(INPUT_MODES)


def _output_modes() -> list[str]:
    return list(OUTPUT_MODES)


class Skill(Struct, forbid_unknown_fields=True):
    """What an agent can do, as its card describes it. ``name`` defaults to the id."""

    id: str
    name: str = ""
    description: str = ""
    tags: list[str] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)


class A2AAgent(Struct, forbid_unknown_fields=True):
    """An agent of the workers that other agents may call over the A2A protocol.

    ``name`` is its name among the workers' agents. ``title``, ``description``, ``version``, ``skills``,
    ``documentation_url`` and ``icon_url`` are for its card. ``organization`` and ``organization_url`` name its
    provider. ``input_modes`` are the media types that it accepts, where ``*`` matches any text, and ``output_modes``
    those of its answers. ``url`` is where clients reach the gateway; without it, the card contains the address of the
    request that reads it. ``private_push`` also allows push notifications to addresses in your own network.

    >>> A2AAgent("support", description="Answers questions about orders.").accepts("text/plain")
    True
    """

    name: str
    title: str = ""
    description: str = ""
    version: str = "1.0.0"
    skills: list[Skill] = field(default_factory=list)
    organization: str = ""
    organization_url: str = ""
    documentation_url: str = ""
    icon_url: str = ""
    input_modes: list[str] = field(default_factory=_input_modes)
    output_modes: list[str] = field(default_factory=_output_modes)
    url: str = ""
    private_push: bool = False

    def accepts(self, media_type: str) -> bool:
        """Return whether messages may have parts of this media type.

        >>> A2AAgent("support").accepts("video/mp4")
        False
        """
        plain = media_type.partition(";")[0].strip().lower()
        return any(fnmatchcase(plain, mode.lower()) for mode in self.input_modes)


class _File(Struct, forbid_unknown_fields=True):
    agents: dict[str, dict[str, Any]]
    url: str = ""


def read_agents(path: Path) -> list[A2AAgent]:
    """Read a file of agents to publish. Raises ``SettingsError``."""
    try:
        found = msgspec.toml.decode(path.read_bytes(), type=_File)
        agents = [
            msgspec.convert({"url": found.url, **fields, "name": name}, A2AAgent)
            for name, fields in found.agents.items()
        ]
    except OSError as exc:
        raise SettingsError(f"The A2A agents in {path} cannot be read: {exc.strerror}.") from exc
    except (msgspec.MsgspecError, UnicodeError) as exc:
        raise SettingsError(f"The A2A agents in {path} cannot be read: {exc}.") from exc
    published(agents)
    return agents


def published(agents: Iterable[A2AAgent]) -> Mapping[str, A2AAgent]:
    """Return agents by name. Raises ``SettingsError``."""
    found: dict[str, A2AAgent] = {}
    for one in agents:
        given: Any = one
        if not isinstance(given, A2AAgent) or not one.name:
            raise SettingsError(
                "a2a= must be a list of A2AAgent, each with the name of an agent of the workers."
            )
        if one.name in found:
            raise SettingsError(f"Two A2A agents have the name {one.name!r}: leave one out.")
        if one.url and not one.url.startswith(("https://", "http://")):
            raise SettingsError(f"url= of the A2A agent {one.name!r} must begin with https:// or http://.")
        found[one.name] = one
    return found
