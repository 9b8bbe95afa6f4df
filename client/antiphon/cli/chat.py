"""``antiphon chat``: a conversation in a terminal. Ctrl-C stops the turn, not the program."""

from __future__ import annotations

import argparse
import importlib
import sys
from contextlib import suppress
from typing import Any, TextIO

import msgspec

from antiphon.cli.arguments import (
    add_agent,
    add_json,
    add_options,
    add_redis,
    agent_of,
    command_parser,
    options_in,
    redis_urls,
    whole,
)
from antiphon.cli.terminal import Paint, message_lines, one_line, printable, safe_json
from antiphon.client import Client
from antiphon.errors import AgentError, AlreadyDecided, SessionNotFound
from antiphon.events import (
    Event,
    Handoff,
    ModelChanged,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallEvent,
    ToolProgress,
    ToolResultEvent,
    TurnCancelledEvent,
    TurnFailedEvent,
    TurnFinished,
    TurnRetrying,
)
from antiphon.input.ids import new_session_id, session_id
from antiphon.input.request import AgentSpec
from antiphon.model import OpenCall
from antiphon.session.turn import Turn
from antiphon.tools.approval import asked_by

MOST_SHOWN = 200  # characters of a tool's arguments and results


class Answer:
    """Shows one turn on a screen. ``seq`` is that of the last event shown, or 0 before the first."""

    def __init__(self, out: TextIO, paint: Paint, *, plain_json: bool = False) -> None:
        self.seq = 0
        self.finished = False
        self._out = out
        self._paint = paint
        self._json = plain_json
        self._running = ""  # the kind of text on the unfinished line

    def show(self, event: Event) -> None:
        """Write an event immediately."""
        self.seq = event.seq or self.seq
        self.finished = isinstance(event, TurnFinished)
        if self._json:
            self._out.write(safe_json(event.to_json()) + "\n")
        elif isinstance(event, TextDelta | RefusalDelta | ReasoningDelta):
            self._piece(event)
        else:
            self._told(event)
        self._out.flush()

    def end_line(self) -> None:
        """End the unfinished line, if there is one."""
        if self._running:
            self._out.write("\n")
        self._running = ""

    def _piece(self, event: TextDelta | RefusalDelta | ReasoningDelta) -> None:
        if self._running != event.type:
            self.end_line()
        self._running = event.type
        text = printable(event.text)
        self._out.write(self._paint(text, "dim") if isinstance(event, ReasoningDelta) else text)

    def _told(self, event: Event) -> None:
        match event:
            case ToolCallEvent(name=name, arguments=arguments):
                self._line(f"[{_short(name)} {_short(str(arguments))}]", "cyan")
            case ToolResultEvent(name=name, result=result, is_error=is_error):
                how = "failed" if is_error else "returned"
                self._line(f"[{_short(name)} {how}: {_short(result)}]", "red" if is_error else "cyan")
            case ToolProgress(name=name, text=text, fraction=fraction):
                done = "" if fraction is None else f" {fraction:.0%}"
                self._line(f"[{_short(name)}{done}: {_short(text)}]", "cyan")
            case TurnRetrying(reason=reason):
                self._line(f"[{_short(reason)} The answer starts again.]", "yellow")
            case ModelChanged(target=target):
                self._line(f"[{_short(target)} answers]", "yellow")
            case Handoff(target=target):
                self._line(f"[{_short(target)} takes over]", "cyan")
            case TurnFailedEvent(code=code, message=message):
                self._line(f"[failed ({_short(code)}): {_short(message)}]", "red")
            case TurnCancelledEvent(reason=reason):
                self._line(f"[{_short(reason)}]", "yellow")
            case TurnFinished():
                self.end_line()
            case _:
                return

    def _line(self, text: str, style: str) -> None:
        self.end_line()
        self._out.write(self._paint(text, style) + "\n")


def _short(text: str) -> str:
    return one_line(text, MOST_SHOWN)


def ask_about(turn: Turn, call: OpenCall, by: str) -> bool:
    """Ask until there is a decision. Return False if it is left for later, as at the end of the input."""
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
    """Ask for the result of a client-side tool call. Return False if it is left for later."""
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


HELP = """\
/history  show the conversation      /session  show its id
/quit     end (or Ctrl-D)            Ctrl-C    stop the answer
What else you write is sent. The up arrow brings back what you wrote before."""


def chat(argv: list[str]) -> int:
    """Talk to a session in a terminal; Ctrl-C stops an answer

    It continues a session whose id you give, also while its turn runs, and begins a new one otherwise. Ctrl-D ends
    it; a turn that runs goes on. From a pipe, each line is a turn. Exit code 1 if the last turn did not finish.
    """
    parser = command_parser(chat)
    parser.add_argument("session", nargs="?", help="the session's id; a new one without it")
    add_agent(parser)
    add_options(parser, "chat")
    parser.add_argument(
        "--last", type=whole, default=10, metavar="N", help="show the last N messages; default: 10"
    )
    parser.add_argument(
        "--by",
        metavar="NAME",
        default="the command line",
        help="the name recorded with decisions about tool calls",
    )
    add_json(parser, "print a line of JSON for each event")
    add_redis(parser)
    options = parser.parse_args(argv)
    agent = agent_of(options, parser)
    with Client(redis_urls(options.redis_url), prefix=options.prefix) as client:
        return _Chat(client, options, agent).run()


class _Chat:
    """One run of the command."""

    def __init__(self, client: Client, options: argparse.Namespace, agent: str | AgentSpec | None) -> None:
        self._client = client
        self._options = options
        self._agent = agent
        self._session = session_id(options.session) if options.session else new_session_id()
        self._terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self._paint = Paint(sys.stdout)
        self._good = True

    def run(self) -> int:
        if self._terminal:
            with suppress(ImportError):
                importlib.import_module("readline")  # enables line editing and history
            self._say(f"Session {self._session}. /help lists the commands, Ctrl-D ends.")
        self._catch_up()
        while True:
            try:
                text = self._read()
            except KeyboardInterrupt:
                print()
                self._say("Nothing runs. Ctrl-D ends.")
                continue
            except EOFError:
                if self._terminal:
                    print()
                return 0 if self._good else 1
            if text.startswith("/"):
                if text.strip() == "/quit":
                    return 0
                self._command(text.strip())
            elif text.strip():
                self._submit(text)

    def _read(self) -> str:
        if not self._terminal:
            return input()
        return input("\x01\x1b[36m\x02>\x01\x1b[0m\x02 " if self._paint("x", "cyan") != "x" else "> ")

    def _command(self, text: str) -> None:
        if text == "/history":
            self._show_history(None)
        elif text == "/session":
            print(printable(self._session))
        else:
            print(HELP)

    def _catch_up(self) -> None:
        """Show the history, and follow the running turn."""
        try:
            running = self._show_history(self._options.last)
        except SessionNotFound:
            return
        if running:
            self._say(f"Turn {running} runs:")
            self._follow(self._client.turn(running))

    def _show_history(self, last: int | None) -> str | None:
        found = self._client.snapshot(self._session) if last is None else self._client.snapshot(
            self._session, last=last
        )  # fmt: skip
        for message in [] if self._options.json else found.messages:
            print("\n".join(message_lines(message)))
        return found.turn_id

    def _submit(self, text: str) -> None:
        try:
            turn = self._client.submit(self._session, text, agent=self._agent, **options_in(self._options))
        except AgentError as exc:
            self._good = False
            self._say(exc.message, "red")
            return
        self._follow(turn)

    def _follow(self, turn: Turn) -> None:
        """Show a turn until it ends. Ctrl-C cancels the turn; a second Ctrl-C stops showing it."""
        shown = Answer(sys.stdout, self._paint, plain_json=self._options.json)
        try:
            try:
                self._show(turn, shown)
            except KeyboardInterrupt:
                shown.end_line()
                self._say("Stopping. Ctrl-C again leaves the turn to itself.")
                turn.cancel("stopped at the command line", keep="partial")
                self._show(turn, shown)
        except KeyboardInterrupt:
            self._say(f"The turn goes on: antiphon explain {turn.id}")
        except AgentError as exc:
            shown.end_line()
            self._say(exc.message, "red")
        self._good = shown.finished

    def _show(self, turn: Turn, shown: Answer) -> None:
        for event in turn.stream(shown.seq or None):
            shown.show(event)
            if asked_by(event) and not self._decide(turn):
                return

    def _decide(self, turn: Turn) -> bool:
        """Ask about the calls that a suspended turn waits for. Return False if the turn is left waiting."""
        calls = turn.info().calls
        if not calls:
            return True  # decided in the meantime
        if self._terminal and all(ask_about(turn, call, self._options.by) for call in calls):
            return True
        self._say(f"The turn waits for a decision: antiphon approve {turn.id}", "yellow")
        return False

    def _say(self, text: str, *styles: str) -> None:
        print(self._paint(printable(text), *(styles or ("dim",))), file=sys.stderr, flush=True)
