"""Routes requests directly, or through a proxy from the options or the environment."""

from __future__ import annotations

from urllib.request import getproxies, proxy_bypass

import httpx2

from antiphon.errors import ProviderRejected

_SCHEMES = ("http", "https", "socks5", "socks5h")


def proxies_of(given: str | None, *, environment: bool) -> dict[str, str]:
    """Return the proxies by the scheme of the URL: the given one for all, or those of the environment.

    A proxy without a scheme is an HTTP proxy.
    """
    found = {"all": given} if given else getproxies() if environment else {}
    return {
        scheme: proxy if "://" in proxy else f"http://{proxy}"
        for scheme, proxy in found.items()
        if scheme in ("http", "https", "all")
    }


class ProxyRoutes(httpx2.AsyncBaseTransport):
    """Sends through ``proxies``, or through ``direct`` if a URL has no proxy or ``NO_PROXY`` contains its host.

    A proxy that was ``given`` is used for every host. Raises ``ProviderRejected`` for an invalid proxy: at once if it
    was given, else on its first use.
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
        self._proxies = proxies
        self._limits = limits
        self._given = given
        self._routes: dict[str, httpx2.AsyncBaseTransport] = {}
        if given:
            self._through("all")

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        scheme = url.scheme if url.scheme in self._proxies else "all"
        direct = scheme not in self._proxies or (not self._given and _bypasses(url))
        route = self._direct if direct else self._through(scheme)
        return await route.handle_async_request(request)

    async def aclose(self) -> None:
        for transport in (self._direct, *self._routes.values()):
            await transport.aclose()

    def _through(self, scheme: str) -> httpx2.AsyncBaseTransport:
        if scheme not in self._routes:
            name = "proxy" if self._given else f"{scheme.upper()}_PROXY"
            self._routes[scheme] = _transport(name, self._proxies[scheme], self._limits)
        return self._routes[scheme]


def _bypasses(url: httpx2.URL) -> bool:
    """Return whether ``NO_PROXY`` contains this host, with or without its port."""
    port = url.port or (443 if url.scheme == "https" else 80)
    return bool(proxy_bypass(url.host if ":" in url.host else f"{url.host}:{port}"))


def _transport(name: str, proxy: str, limits: httpx2.Limits) -> httpx2.AsyncBaseTransport:
    try:
        url = httpx2.URL(proxy)
        if url.scheme in _SCHEMES and url.host:
            return httpx2.AsyncHTTPTransport(proxy=url, limits=limits)
    except ImportError:
        raise ProviderRejected(
            f"The SOCKS proxy in {name} needs another package: pip install socksio."
        ) from None
    except httpx2.InvalidURL:
        pass  # its text may hold a password
    raise ProviderRejected(
        f"{name} is not the URL of a proxy: write http://, https:// or socks5:// and a host, as in "
        "http://proxy.example:3128."
    )
