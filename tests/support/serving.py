"""Serves an ASGI application with uvicorn on the test's loop."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from support.eventually import wait_until_async


@asynccontextmanager
async def serving(app: Any, ws: Any = "websockets-sansio", http: Any = "auto") -> AsyncIterator[int]:
    """Serve the application, and yield its port. A stream still open at the end is closed after a second."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app, log_level="warning", ws=ws, http=http, timeout_graceful_shutdown=1, log_config=None
    )
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        await wait_until_async(lambda: server.started or running.done())
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        await running
        listening.close()
