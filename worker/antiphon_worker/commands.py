"""The subcommands that need the worker's packages. Each takes its arguments and returns the exit code."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.bytestores.of_process import bytes_of_process
from antiphon.cli.arguments import (
    add_json,
    add_options,
    add_redis,
    add_settings,
    command_parser,
    options_in,
    print_json,
    redis_urls,
    with_acts,
)
from antiphon.errors import AgentError, MissingPackage

if TYPE_CHECKING:
    pass


def _check_workers(argv: list[str]) -> int:
    """Show which workers of this host are alive; exit with 1 if a Redis has not heard from one for a minute

    With --app, show instead which agents of the App lack a package, a key or a tool on this machine, and start nothing;
    exit with 1 if an agent lacks something.
    """
    parser = command_parser(_check_workers, "worker check")
    parser.add_argument("--app", metavar="MODULE:APP", help="check this App, without a Redis or a worker")
    add_json(parser, "print a line of JSON for each worker, or each agent with what it lacks")
    add_redis(parser)
    options = parser.parse_args(argv)
    if options.app is not None:
        return _check_app(options.app, json=options.json)

    async def check() -> None:
        from antiphon.wire.cell import Cell
        from antiphon.wire.connection.open import open_redis, redact
        from antiphon.wire.lists.inspection import workers
        from antiphon_worker.supervisor.supervisor import is_of_this_host

        for url in redis_urls(options.redis_url):
            connection = open_redis(url, retries=0)
            try:
                known = await workers(Cell(connection, prefix=options.prefix))
            finally:
                await connection.aclose()
            ours = [name for name in known if is_of_this_host(name)]
            if not ours:
                raise AgentError(
                    f"No worker of this host ({socket.gethostname()}) is alive on {redact(url)}: read the worker's log."
                )
            if options.json:
                print_json([{"worker": name} for name in ours])
            else:
                print("\n".join(ours))

    asyncio.run(check())
    return 0


def _check_app(path: str, *, json: bool) -> int:
    from antiphon_worker.app import load_app

    app = load_app(path)

    async def lacks() -> dict[str, list[str]]:
        try:
            return await app.lacks()
        finally:
            await app.aclose()

    lacking = asyncio.run(lacks())
    if json:
        print_json([{"agent": name, "lacks": lacking.get(name, [])} for name in app.agents])
        return 1 if lacking else 0
    for name in app.agents:
        print(f"{name}: {' '.join(lacking.get(name, ['ready']))}")
    if not app.agents:
        print("The App has no agents of its own.")
    return 1 if lacking else 0


@with_acts({"check": _check_workers})
def worker(argv: list[str]) -> int:
    """Run turns until stopped

    Every option is also a variable: --lease is ANTIPHON_LEASE. An option takes precedence. Write durations in seconds,
    or as 500ms, 30s, 5m, 1h. SIGTERM and Ctrl-C drain: turns are finished or requeued. A second signal requeues them
    at once. Set the keys of model services in the environment: OPENAI_API_KEY, ANTHROPIC_API_KEY.
    With --reload, it starts again when a Python file in this folder changes: for development only.
    `antiphon worker check` shows which workers of this host are alive, and `antiphon worker check --app module:app`
    what the agents of an App lack on this machine.
    """
    from antiphon_worker.settings import Settings

    parser = command_parser(worker)
    parser.usage = "antiphon worker [OPTIONS]"
    parser.add_argument(
        "--reload", action="store_true", help="start again when a Python file in this folder changes"
    )
    add_settings(parser, Settings)
    options = parser.parse_args(argv)
    settings = Settings.load(vars(options))
    if options.reload:
        from antiphon_worker.supervisor.reload import run_and_reload

        return run_and_reload([one for one in argv if one != "--reload"], Path.cwd())
    if not settings.app and not any(map(importlib.util.find_spec, ("openai", "anthropic"))):
        raise MissingPackage("Workers need the packages of model services: pip install 'antiphon[worker]'.")

    from antiphon.encryption.keyring import keyring_of_process
    from antiphon.telemetry import set_up_logging
    from antiphon_worker.app import load_app
    from antiphon_worker.observing.observer import serving_worker_status
    from antiphon_worker.supervisor.supervisor import Supervisor

    set_up_logging(settings.log_level, settings.log_format)
    app = load_app(settings.app)  # an invalid App is reported once here, instead of by each process
    archive = app.archive(settings.archive)
    app.prices(settings.prices)
    bytes_of_process()  # and an invalid URL of a byte store
    keys = keyring_of_process()  # and invalid keys
    if keys:
        app.memories.check_sealed()
    if app.search:
        from antiphon_worker.memory.search import check_search

        check_search(archive, sealed=bool(keys))
    supervisor = Supervisor(settings)
    with serving_worker_status(settings, supervisor):
        asyncio.run(supervisor.run())
    return 0


def run(argv: list[str]) -> int:
    """Run one turn in this process, and print its answer as it arrives

    It needs no Redis and no worker. With --session, the conversation continues from one call to the next, and is
    kept in the file that --store names.
    """
    parser = command_parser(run)
    parser.add_argument("text", help="the user's text; - reads it from standard input")
    parser.add_argument("--provider", required=True, help="openai, openai-chat, anthropic or scripted")
    parser.add_argument("--model", required=True)
    parser.add_argument("--session", metavar="ID", help="continue this session")
    parser.add_argument("--system", metavar="TEXT", help="the system prompt")
    parser.add_argument(
        "--store",
        metavar="FILE",
        type=Path,
        default=Path("antiphon.db"),
        help="the file that keeps the session; default: antiphon.db",
    )
    add_options(parser, "local")
    add_json(parser, "print a line of JSON for each event")
    options = parser.parse_args(argv)

    from antiphon.agent import Agent
    from antiphon.cli.terminal import PrintedTurn
    from antiphon.stores.sqlite import SQLiteStore

    store = SQLiteStore(options.store) if options.session else None
    agent = Agent(provider=options.provider, model=options.model, system=options.system, store=store)
    text = sys.stdin.read() if options.text == "-" else options.text
    asked = options_in(options)
    printed = PrintedTurn(json=options.json)
    with agent.session(options.session).stream(text, **asked.pop("params", {}), **asked) as events:
        for event in events:
            printed.show(event)
    return printed.end()
