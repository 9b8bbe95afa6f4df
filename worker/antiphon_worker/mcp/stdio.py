"""The connection to a server that runs as a subprocess. A line longer than the limit ends it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
from mcp.client import Transport
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from antiphon.input.limits import LIMITS
from antiphon.mcp import MCP

log = logging.getLogger("antiphon.mcp")

EXIT_SECONDS = 1.0
"""How long a program may take to exit after each of: the end of its input, SIGTERM, SIGKILL."""
LAST_WORDS = 2_000


def stdio_transport(server: MCP) -> Transport:
    """Return a transport that starts the program of a server, and ends it."""
    return _running(server)  # type: ignore[return-value]


@asynccontextmanager
async def _running(server: MCP) -> AsyncGenerator[tuple[Any, Any]]:
    program = await asyncio.create_subprocess_exec(
        *server.command, stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=LIMITS.mcp_bytes, start_new_session=True,
        env=get_default_environment() | dict(server.env), cwd=server.cwd,
    )  # fmt: skip
    arrived, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, leaving = anyio.create_memory_object_stream[SessionMessage](0)
    pipes = [
        asyncio.create_task(_read(server, program, arrived), name=f"output of MCP server {server.name}"),
        asyncio.create_task(_write(program, leaving, arrived), name=f"input of MCP server {server.name}"),
        asyncio.create_task(_note_errors(server, program), name=f"errors of MCP server {server.name}"),
    ]
    try:
        yield read, write
    finally:
        read.close()
        write.close()
        try:
            await asyncio.shield(_stop(program))
        finally:
            for pipe in pipes:
                pipe.cancel()
            arrived.close()
            leaving.close()
            _close(program)


async def _read(server: MCP, program: Process, arrived: Any) -> None:
    """Pass on the messages that the program writes, one per line. Other lines are ignored."""
    assert program.stdout is not None
    async with arrived:
        while True:
            try:
                line = await program.stdout.readuntil(b"\n")
            except asyncio.IncompleteReadError:
                return
            except asyncio.LimitOverrunError:
                log.warning(
                    "the MCP server %s wrote a line of more than %d bytes: it is stopped",
                    server.name, LIMITS.mcp_bytes, extra={"action": "mcp_too_large", "server": server.name},
                )  # fmt: skip
                return
            with suppress(ValueError):
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                try:
                    await arrived.send(SessionMessage(message))
                except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                    return


async def _write(program: Process, leaving: Any, arrived: Any) -> None:
    assert program.stdin is not None
    with suppress(OSError, anyio.ClosedResourceError):
        async for message in leaving:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            program.stdin.write(text.encode() + b"\n")
            await program.stdin.drain()
        return
    await arrived.aclose()  # otherwise calls would wait for answers to messages that were not sent


async def _note_errors(server: MCP, program: Process) -> None:
    """Log the end of the program's standard error, at debug level."""
    assert program.stderr is not None
    last = b""
    while piece := await program.stderr.read(64 * 1024):
        last = (last + piece)[-LAST_WORDS:]
    if last:
        log.debug("the MCP server %s has ended: %s", server.name, last.decode(errors="replace").strip())


async def _stop(program: Process) -> None:
    """End the program and its children."""
    assert program.stdin is not None
    program.stdin.close()
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(program.pid, number)
        with suppress(TimeoutError):
            async with asyncio.timeout(EXIT_SECONDS):
                while program.returncode is None:  # noqa: ASYNC110 - wait() waits for children with the pipes too
                    await asyncio.sleep(0.01)
        if program.returncode is not None:
            break
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(program.pid, signal.SIGKILL)  # its children


def _close(program: Process) -> None:
    """Close the pipes, which children of the program may hold open."""
    transport: Any = getattr(program, "_transport", None)
    if transport is not None:
        transport.close()
