"""Asks the person at a terminal about the tool calls that a turn waits for."""

from __future__ import annotations

from typing import Any

import msgspec

from antiphon.cli.terminal import printable
from antiphon.errors import AlreadyDecided
from antiphon.model import OpenCall
from antiphon.session.turn import Turn

__all__ = ["ask_about"]


def ask_about(turn: Turn, call: OpenCall, by: str) -> bool:
    """Ask until there is a decision. False if it is left for later, as at the end of the input."""
    shown = msgspec.json.encode(call.arguments).decode()
    print(printable(f"The turn asks for {call.name} {shown}"))
    try:
        return _result(turn, call, by) if call.kind == "tool" else _approval(turn, call, by)
    except EOFError:
        print()
        return False
    except AlreadyDecided as exc:
        print(printable(exc.message))
        return True


def _approval(turn: Turn, call: OpenCall, by: str) -> bool:
    while True:
        match input("Approve? [y]es, [n]o, [e]dit the arguments, [l]ater: ").strip().lower()[:1]:
            case "y":
                turn.approve(call.call_id, by=by)
                return True
            case "n":
                turn.reject(call.call_id, by=by, reason=input("Why? The model is told: ").strip() or None)
                return True
            case "e":
                arguments = _object(input("Arguments as a JSON object: "))
                if arguments is not None:
                    turn.approve(call.call_id, by=by, arguments=arguments)
                    return True
            case "l":
                return False
            case _:
                continue


def _result(turn: Turn, call: OpenCall, by: str) -> bool:
    """A tool of the caller: the person gives its result."""
    text = input("Its result, or nothing for later: ").strip()
    if not text:
        return False
    turn.tool_result(call.call_id, text, by=by)
    return True


def _object(text: str) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as exc:
        print(f"That is no JSON object: {exc}.")
        return None
