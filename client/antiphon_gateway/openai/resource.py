"""Makes the response resource of a turn. Pure functions."""

from __future__ import annotations

from typing import Any

from antiphon.model import Response
from antiphon.session.turn_info import TurnInfo
from antiphon_gateway.openai.items import items_of, usage_of

__all__ = ["PREFIX", "resource", "response_id", "turn_and_part", "with_outcome"]

PREFIX = "resp_"
STATUS = {
    "queued": "queued", "waiting": "queued", "running": "in_progress", "retrying": "in_progress",
    "suspended": "in_progress", "finished": "completed", "failed": "failed", "cancelled": "cancelled",
}  # fmt: skip
INCOMPLETE = {"max_tokens": "max_output_tokens", "content_filter": "content_filter"}


def response_id(turn: str, part: int = 0) -> str:
    """Return the id of the response that a turn is, or of one that follows results of the caller's tools."""
    return f"{PREFIX}{turn}.{part}" if part else PREFIX + turn


def turn_and_part(name: str) -> tuple[str, int] | None:
    """Return the turn that a response is of, and how often the caller's tools had answered before; None if invalid."""
    turn, dot, part = name.removeprefix(PREFIX).partition(".")
    if not name.startswith(PREFIX) or not turn or (dot and not (part.isascii() and part.isdigit())):
        return None
    return turn, int(part or 0)


def resource(info: TurnInfo, outcome: Response | None = None) -> dict[str, Any]:
    """Return the response that a turn is, with its ``outcome`` if it has finished."""
    echo: dict[str, Any] = info.metadata.get("openai") or {}
    found: dict[str, Any] = {
        "id": response_id(info.turn_id), "object": "response", "created_at": info.created // 1000,
        "completed_at": None, "status": STATUS[info.status], "incomplete_details": None,
        "model": echo.get("model") or info.agent or "", "previous_response_id": echo.get("previous_response_id"),
        "instructions": echo.get("instructions"), "output": [], "error": None, "tools": echo.get("tools") or [],
        "tool_choice": echo.get("tool_choice") or "auto",
        "truncation": "disabled", "parallel_tool_calls": echo.get("parallel_tool_calls", True),
        "text": echo.get("text") or {"format": {"type": "text"}}, "top_p": echo.get("top_p", 1.0),
        "presence_penalty": echo.get("presence_penalty", 0.0), "frequency_penalty": echo.get("frequency_penalty", 0.0),
        "top_logprobs": 0, "temperature": echo.get("temperature", 1.0), "reasoning": echo.get("reasoning"),
        "usage": None, "max_output_tokens": echo.get("max_output_tokens"), "max_tool_calls": None,
        "store": echo.get("store", True), "background": echo.get("background", False),
        "service_tier": echo.get("service_tier") or "default", "metadata": echo.get("metadata") or {},
        "safety_identifier": echo.get("safety_identifier"), "prompt_cache_key": echo.get("prompt_cache_key"),
        "conversation": {"id": info.session_id},
    }  # fmt: skip
    found["text"].setdefault("format", {"type": "text"})
    if outcome is not None:
        with_outcome(found, outcome, info.turn_id, info.ended)
    elif info.status in ("failed", "cancelled"):
        found["output"] = items_of(info.messages, info.turn_id)
        found["usage"] = usage_of(info.usage)
    if info.status == "failed":
        found["error"] = {"code": info.code or "turn_failed", "message": info.error or "The turn failed."}
    return found


def with_outcome(found: dict[str, Any], outcome: Response, turn: str, ended: int | None) -> None:
    """Fill in what a turn that has finished brought."""
    reason = INCOMPLETE.get(outcome.stop_reason)
    found["status"] = "incomplete" if reason else "completed"
    found["incomplete_details"] = {"reason": reason} if reason else None
    found["completed_at"] = None if reason or not ended else ended // 1000
    found["output"] = items_of(outcome.messages, turn)
    found["usage"] = usage_of(outcome.usage)
