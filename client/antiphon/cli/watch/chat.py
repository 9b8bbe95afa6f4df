"""``antiphon chat``: a conversation in a terminal. Ctrl-C stops the turn, and not the program."""

from __future__ import annotations

import argparse
import importlib
import sys
from contextlib import suppress

from antiphon.cli.arguments import add_agent, add_json, add_redis, agent_of, command_parser, redis_urls
from antiphon.cli.terminal import message_lines, printable
from antiphon.cli.watch.answer import Answer
from antiphon.cli.watch.colour import Paint
from antiphon.cli.watch.questions import ask_about
from antiphon.client import Client
from antiphon.errors import AgentError, SessionNotFound
from antiphon.events import TurnSuspended
from antiphon.input.ids import new_session_id, session_id
from antiphon.input.request import AgentSpec
from antiphon.session.turn import Turn

__all__ = ["chat"]

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
    parser.add_argument("--queue", help="the queue of the turns")
    parser.add_argument("--tenant", metavar="NAME", help="whose session it is")
    parser.add_argument(
        "--last", type=int, default=10, metavar="N", help="show the last N messages; by default 10"
    )
    parser.add_argument(
        "--by", metavar="NAME", default="the command line", help="who decides about tool calls"
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
                importlib.import_module("readline")  # lines can be edited, and called back
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
        """Show what was said, and follow the turn that runs."""
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
            turn = self._client.submit(
                self._session, text, agent=self._agent, queue=self._options.queue, tenant=self._options.tenant
            )
        except AgentError as exc:
            self._good = False
            self._say(exc.message, "red")
            return
        self._follow(turn)

    def _follow(self, turn: Turn) -> None:
        """Show a turn until it ends; Ctrl-C cancels it, and a second one leaves it alone."""
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
            if isinstance(event, TurnSuspended) and not self._decide(turn):
                return

    def _decide(self, turn: Turn) -> bool:
        """Ask about the calls that a suspended turn waits for. False if it is left waiting."""
        calls = turn.info().calls
        if not calls:
            return True  # it was decided meanwhile
        if self._terminal and all(ask_about(turn, call, self._options.by) for call in calls):
            return True
        self._say(f"The turn waits for a decision: antiphon approve {turn.id}", "yellow")
        return False

    def _say(self, text: str, *styles: str) -> None:
        print(self._paint(printable(text), *(styles or ("dim",))), file=sys.stderr, flush=True)
