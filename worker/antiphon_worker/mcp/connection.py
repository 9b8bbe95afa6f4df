"""One connection to a server: for one user, or for all users if the server has no ``auth=``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from importlib.metadata import version
from typing import Any, TypeVar, cast

from mcp import MCPError
from mcp.client import Client, IncomingMessage, Transport
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import (
    CONNECTION_CLOSED,
    HEADER_MISMATCH,
    INVALID_REQUEST,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    ErrorData,
    Implementation,
    InputRequiredResult,
    PaginatedRequestParams,
    Tool,
    ToolListChangedNotification,
)
from pydantic import TypeAdapter, ValidationError

from antiphon.errors import ToolRaised
from antiphon.input.limits import LIMITS
from antiphon.mcp import MCP
from antiphon_worker.mcp.credentials import Credentials
from antiphon_worker.mcp.http import UNREACHABLE
from antiphon_worker.mcp.questions import NO_ANSWERS, Answers
from antiphon_worker.mcp.task_models import NewTask, Tasks
from antiphon_worker.mcp.tools import RemoteTool, usable_tools

KEEP_SECONDS = 60.0
"""How long a list of tools is used if its server sets no time."""
LONGEST_KEEP_SECONDS = 24 * 3600.0
_RESULT: TypeAdapter[Any] = TypeAdapter(NewTask | CallToolResult | InputRequiredResult)
R = TypeVar("R")


class Unreachable(ToolRaised):
    """The server could not be reached, or its connection ended."""


class Connection:
    """A connection that is being made, is in use, or has ended.

    A task of its own enters and leaves the client, as the library requires. ``busy`` counts its current uses.
    """

    def __init__(self, server: MCP, transport: Transport, credentials: Credentials) -> None:
        self.server, self.credentials = server, credentials
        self.busy, self.used = 0, time.monotonic()
        self.closed = False
        self.noted = False
        """Whether the list of tools was compared with the previous one."""
        self._client: Client | None = None
        self._error: BaseException | None = None
        self._tools: list[RemoteTool] | None = None
        self._until = 0.0
        self._listing = asyncio.Lock()
        self._ready, self._leave = asyncio.Event(), asyncio.Event()
        self._task = asyncio.create_task(self._own(transport), name=f"MCP server {server.name}")

    async def _own(self, transport: Transport) -> None:
        try:
            async with AsyncExitStack() as stack:
                client = Client(
                    transport, cache=None, message_handler=self._heard, elicitation_callback=_not_in_a_call,
                    extensions=[Tasks()],
                    client_info=Implementation(name="antiphon", version=version("antiphon")),
                )  # fmt: skip
                async with asyncio.timeout(self.server.connect_timeout):
                    self._client = await stack.enter_async_context(client)
                self._ready.set()
                await self._leave.wait()
        except BaseException as exc:  # noqa: BLE001 - whatever a server causes is a failure of its calls
            self._error = first_of(exc)
        finally:
            self.closed = True
            self._ready.set()

    async def opened(self) -> None:
        """Wait until the connection is made. Raises ``Unreachable``."""
        await self._ready.wait()
        if self._client is None:
            raise Unreachable(
                f"The MCP server {self.server.name} is unavailable: {self._reason()}."
            ) from None

    @property
    def refused(self) -> bool:
        """Whether the server answered, and refused this user."""
        return isinstance(self._error, MCPError) and self._error.code != UNREACHABLE

    def _reason(self) -> str:
        if isinstance(self._error, TimeoutError):
            return f"it did not answer within {self.server.connect_timeout:g} s"
        if self._error is None:
            return "its connection has ended"
        return self._text(str(self._error) or type(self._error).__name__)

    async def tools(self) -> list[RemoteTool]:
        """Return the tools that agents may use, listed again at expiry. Raises ``ToolError`` or ``TimeoutError``."""
        async with self._listing:
            if self._tools is None or time.monotonic() >= self._until:
                async with asyncio.timeout(self.server.connect_timeout):
                    await self._list()
            assert self._tools is not None
            return self._tools

    @property
    def last_tools(self) -> list[RemoteTool]:
        """The tools that were listed last."""
        return self._tools or []

    async def _list(self) -> None:
        found: list[Tool] = []
        keep, cursor = LONGEST_KEEP_SECONDS, None
        while True:
            page = await self._asked(self.session.list_tools(params=PaginatedRequestParams(cursor=cursor)))
            found += page.tools
            said = "ttl_ms" in page.model_fields_set
            keep = min(keep, page.ttl_ms / 1000 if said else KEEP_SECONDS)
            cursor = page.next_cursor
            if cursor is None or len(found) >= LIMITS.mcp_tools:
                break
        self._tools = usable_tools(self.server, found[: LIMITS.mcp_tools], self.credentials)
        self._until = time.monotonic() + keep
        self.noted = False

    async def call(
        self, name: str, arguments: Mapping[str, Any], progress: ProgressFnT, answers: Answers = NO_ANSWERS
    ) -> CallToolResult | InputRequiredResult | NewTask:
        """Call a tool of the server, with the answers to its earlier questions. Raises ``ToolError``."""
        params = CallToolRequestParams(
            name=name,
            arguments=dict(arguments),
            input_responses=answers.responses,
            request_state=answers.state,
        )

        async def send() -> Any:
            return await self._asked(
                self.session.send_request(CallToolRequest(params=params), _RESULT, progress_callback=progress)
            )

        try:
            return await send()
        except _Mismatch:  # the server's schema has changed, which decides the headers of a call
            async with asyncio.timeout(self.server.connect_timeout):
                await self._list()
            return await send()

    @property
    def has_resources(self) -> bool:
        """Whether the server offers resources."""
        assert self._client is not None
        return self._client.server_capabilities.resources is not None

    async def request(self, request: Any, kind: type[R]) -> R:
        """Return the answer to a request as this type. Raises ``ToolError``."""
        return await self._asked(self.session.send_request(request, kind))

    @property
    def session(self) -> Any:
        """The protocol session. It checks no result against a schema, whose patterns could block this process."""
        assert self._client is not None
        return self._client.session

    async def _asked(self, request: Any) -> Any:
        """Return the answer to a request. Raises ``ToolError`` with the reason."""
        try:
            return await request
        except MCPError as exc:
            if exc.code == HEADER_MISMATCH:
                raise _Mismatch(self._text(str(exc))) from None
            if exc.code == CONNECTION_CLOSED or (exc.code == INVALID_REQUEST and "terminated" in str(exc)):
                self.closed = True
                self._leave.set()
                raise Unreachable(
                    f"The connection to the MCP server {self.server.name} has ended: {self._text(str(exc))}"
                ) from None
            failure = Unreachable if exc.code == UNREACHABLE else ToolRaised
            raise failure(f"{self.server.name}: {self._text(str(exc))}") from None
        except (ValidationError, RuntimeError, ValueError) as exc:
            raise ToolRaised(
                f"The MCP server {self.server.name} sent an answer that does not follow the protocol "
                f"({type(exc).__name__})."
            ) from None

    async def _heard(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._until = 0.0

    def _text(self, text: str) -> str:
        return self.credentials.out_of(" ".join(text.split()))[:500].rstrip(".")

    async def aclose(self) -> None:
        """Leave the server, and wait until that is done."""
        self.closed = True
        self._leave.set()
        if not self._ready.is_set():
            self._task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait([self._task])

    def leave(self) -> None:
        """Leave the server, without waiting."""
        self.closed = True
        self._leave.set()


class _Mismatch(ToolRaised):
    """The server refused the headers of a call."""


async def _not_in_a_call(context: Any, params: Any) -> ErrorData:
    """Refuse a question in an earlier version of the protocol, which would have to be answered on this connection."""
    return ErrorData(code=INVALID_REQUEST, message="Questions need the protocol of 2026-07-28.")


def first_of(exc: BaseException) -> BaseException:
    """Return an exception, or the first one in a group."""
    while isinstance(exc, BaseExceptionGroup):
        exc = cast("BaseExceptionGroup[BaseException]", exc).exceptions[0]
    return exc
