"""Posts to URLs set by users: no redirects, no addresses inside the network, and a time limit for the whole request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

import httpx2

from antiphon.errors import AgentError
from antiphon_worker.providers.errors import retry_after
from antiphon_worker.providers.http.addresses import is_public
from antiphon_worker.providers.http.failures import TransportErrors
from antiphon_worker.providers.http.transport import DirectTransport, ProxyRoutes, proxies_of

MOST_CONNECTIONS = 1024
KEEPALIVE_SECONDS = 30.0
MOST_BYTES = 16_384  # of an answer, whose content is not used


class Posted(NamedTuple):
    """The outcome of a request: its status, or 0 and an ``error``. ``retry_after`` is in seconds."""

    status: int
    retry_after: float | None = None
    error: str = ""


class Poster:
    """Posts over connections that stay open for a while. A proxy from the environment decides what it reaches."""

    def __init__(self) -> None:
        self._public, self._any = (
            ProxyRoutes(
                DirectTransport(max_connections=MOST_CONNECTIONS, keepalive=KEEPALIVE_SECONDS, allowed=allowed),
                proxies_of(None, environment=True), httpx2.Limits(max_connections=MOST_CONNECTIONS), given=False,
            )
            for allowed in (is_public, None)
        )  # fmt: skip

    async def post(
        self, url: str, body: bytes, headers: Mapping[str, str], *, private: bool, timeout: float
    ) -> Posted:
        """Send a body, and return the status of the answer. Raises nothing but a cancellation."""
        try:
            async with asyncio.timeout(timeout):
                request = httpx2.Request("POST", url, content=body, headers=dict(headers))
                response = await (self._any if private else self._public).handle_async_request(request)
                try:
                    await _read(response)
                finally:
                    await response.aclose()
        except TimeoutError:
            return Posted(0, error=f"no answer within {timeout:g} s")
        except (*TransportErrors, AgentError, OSError, ValueError, TypeError) as exc:
            return Posted(0, error=f"no connection: {_why(exc)}")
        return Posted(response.status_code, retry_after(response.headers))

    async def aclose(self) -> None:
        """Close all connections."""
        await self._public.aclose()
        await self._any.aclose()


async def _read(response: httpx2.Response) -> None:
    """Read a short answer to its end, so that its connection can be used again."""
    size = 0
    async for piece in response.aiter_raw():
        size += len(piece)
        if size > MOST_BYTES:
            return


def _why(exc: BaseException) -> str:
    """Return why an address is forbidden, or the type of the error: its text may quote the URL."""
    cause = exc.__cause__
    return str(cause) if isinstance(cause, PermissionError) else type(exc).__name__
