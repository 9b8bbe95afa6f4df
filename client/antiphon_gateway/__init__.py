"""The gateway: sessions and turns over HTTP, for any language, any browser and any OpenAI client."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon_gateway.access.access import Access
    from antiphon_gateway.access.caller import Caller
    from antiphon_gateway.app import Gateway, gateway
    from antiphon_gateway.observing.metrics import GatewayMetrics
    from antiphon_gateway.observing.traces import GatewayTraces
    from antiphon_gateway.problems import Refused
    from antiphon_gateway.settings import Limits

__all__ = ["Access", "Caller", "Gateway", "GatewayMetrics", "GatewayTraces", "Limits", "Refused", "gateway"]

_MODULES = {
    "Access": "access.access",
    "Caller": "access.caller",
    "Gateway": "app",
    "GatewayMetrics": "observing.metrics",
    "GatewayTraces": "observing.traces",
    "Limits": "settings",
    "Refused": "problems",
    "gateway": "app",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
