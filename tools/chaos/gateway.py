"""A gateway that is killed and restarted at the same address."""

from pathlib import Path
from typing import Any

import httpx2
from support.network import free_port
from support.processes import COMMAND, Process, Processes

from antiphon.errors import StoreUnavailable
from antiphon_gateway.access.caller import EVERY_TENANT, hash_of, new_key
from chaos.network import Network


class Gateway:
    """``antiphon serve`` in its own process."""

    def __init__(self, processes: Processes, network: Network, directory: Path) -> None:
        self._processes, self._network, self._keys = processes, network, directory / "keys.toml"
        key = new_key()
        self._keys.write_text(
            f'[keys.errands]\nhash = "{hash_of(key)}"\ntenant = "{EVERY_TENANT}"\nrights = ["send"]\n'
        )
        self._port = free_port()
        self._process = self._started()
        self._http = httpx2.AsyncClient(
            base_url=f"http://{network.gateway_address()}:{self._port}",
            headers={"Authorization": f"Bearer {key}"},
            timeout=10,
        )

    def _started(self) -> Process:
        return self._processes.start(
            *self._network.inside(None), COMMAND, "serve",
            "--redis-url", self._network.clients_url(), "--keys", self._keys,
            "--host", self._network.gateway_address(), "--port", str(self._port), name="gateway",
        )  # fmt: skip

    def kill(self) -> None:
        """Kill the gateway, and start another one."""
        self._process.kill()
        self._process = self._started()

    async def send_event(self, name: str, data: Any, *, key: str, tenant: str) -> None:
        """Send an event. Raises ``StoreUnavailable`` if it may not have arrived."""
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
