"""A gateway that is killed, and comes back at the same address."""

import socket
from typing import Any

import httpx2
from support.processes import COMMAND, Process, Processes

from antiphon.errors import StoreUnavailable


class Gateway:
    """``antiphon serve`` in a process of its own."""

    def __init__(self, processes: Processes, redis_url: str) -> None:
        self._processes, self._redis_url = processes, redis_url
        with socket.create_server(("127.0.0.1", 0)) as found:
            self._port = found.getsockname()[1]
        self._process = self._started()
        self._http = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{self._port}", timeout=10)

    def _started(self) -> Process:
        place = ("--redis-url", self._redis_url, "--port", str(self._port))
        return self._processes.start(COMMAND, "serve", *place, name="gateway")

    def kill(self) -> None:
        """Kill it, and start another one."""
        self._process.kill()
        self._process = self._started()

    async def send_event(self, name: str, data: Any, *, key: str, tenant: str) -> None:
        """Send an event. Raises ``StoreUnavailable`` where it may not have arrived."""
        try:
            answer = await self._http.post(
                f"/events/{name}", json={"data": data, "key": key, "tenant": tenant}
            )
        except httpx2.TransportError as exc:
            raise StoreUnavailable(f"The gateway is away: {exc!r}.") from exc
        if answer.status_code >= 500:
            raise StoreUnavailable(f"The gateway says {answer.status_code}: {answer.text[:200]}")
        answer.raise_for_status()

    async def aclose(self) -> None:
        await self._http.aclose()
