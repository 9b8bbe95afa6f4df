"""Which way requests go: directly, or through a proxy that the options or the environment name."""

from __future__ import annotations

from urllib.request import getproxies, proxy_bypass

import httpx2

__all__ = ["ProxyRoutes", "proxies_of"]


def proxies_of(given: str | None, *, environment: bool) -> dict[str, str]:
    """Proxies by the scheme of the URL: the one that was given for all, or those of the environment."""
    if given:
        return {"all": given}
    found = getproxies() if environment else {}
    return {
        scheme: proxy if "://" in proxy else f"http://{proxy}"
        for scheme, proxy in found.items()
        if scheme in ("http", "https", "all")
    }


class ProxyRoutes(httpx2.AsyncBaseTransport):
    """Sends through ``proxies``, and ``direct`` where there is none for a URL or ``NO_PROXY`` has its host.

    A proxy that was ``given`` is used for every host.
    """

    def __init__(
        self,
        direct: httpx2.AsyncBaseTransport,
        proxies: dict[str, str],
        limits: httpx2.Limits,
        *,
        given: bool,
    ) -> None:
        self._direct = direct
        self._given = given
        self._routes = {
            scheme: httpx2.AsyncHTTPTransport(proxy=proxy, limits=limits) for scheme, proxy in proxies.items()
        }

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return await self._route(request.url).handle_async_request(request)

    async def aclose(self) -> None:
        for transport in (self._direct, *self._routes.values()):
            await transport.aclose()

    def _route(self, url: httpx2.URL) -> httpx2.AsyncBaseTransport:
        if not self._given and proxy_bypass(url.host):
            return self._direct
        return self._routes.get(url.scheme) or self._routes.get("all") or self._direct
