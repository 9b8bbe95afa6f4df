"""The gateway: sessions and turns over HTTP, for any language, any browser and any OpenAI client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphon.lazy import names_of

if TYPE_CHECKING:
    from antiphon_gateway.access.access import Access
    from antiphon_gateway.access.caller import Caller
    from antiphon_gateway.app import Gateway, gateway
    from antiphon_gateway.observing.metrics import GatewayMetrics
    from antiphon_gateway.observing.traces import GatewayTraces
    from antiphon_gateway.problems import Refused
    from antiphon_gateway.published import A2AAgent, Skill
    from antiphon_gateway.settings import Limits

__all__ = [
    "A2AAgent", "Access", "Caller", "Gateway", "GatewayMetrics", "GatewayTraces", "Limits", "Refused", "Skill",
    "gateway",
]  # fmt: skip

__getattr__, __dir__ = names_of(
    __name__,
    {
        "A2AAgent": "published",
        "Access": "access.access",
        "Caller": "access.caller",
        "Gateway": "app",
        "GatewayMetrics": "observing.metrics",
        "GatewayTraces": "observing.traces",
        "Limits": "settings",
        "Refused": "problems",
        "Skill": "published",
        "gateway": "app",
    },
)
