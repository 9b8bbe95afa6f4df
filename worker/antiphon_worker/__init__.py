"""Workers: run the turns of sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphon.lazy import names_of

if TYPE_CHECKING:
    from antiphon_worker.app import App
    from antiphon_worker.inline_agents import Allow
    from antiphon_worker.memory.titles import TitleModel

__all__ = ["Allow", "App", "TitleModel"]

__getattr__, __dir__ = names_of(
    __name__, {"Allow": "inline_agents", "App": "app", "TitleModel": "memory.titles"}
)
