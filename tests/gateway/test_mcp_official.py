"""The gateway as an MCP server, by the official conformance suite. ``make mcp`` installs it."""

import pytest
from support.gateway import open_gateway
from support.here import running_worker
from support.mcp_official import EARLIER, MODERN, conformance
from support.mcp_servers import without_watcher

from antiphon import Agent
from antiphon.testing import script
from antiphon_worker.app import App

pytestmark = [pytest.mark.one_server, pytest.mark.nightly]

# The scenarios about what the gateway serves. The others call tools, resources and prompts of a server of the suite's.
SCENARIOS = [
    ("server-initialize", EARLIER), ("ping", EARLIER), ("tools-list", EARLIER), ("tools-list", MODERN),
    ("server-stateless", MODERN), ("server-sse-multiple-streams", MODERN),
    ("dns-rebinding-protection", EARLIER), ("dns-rebinding-protection", MODERN), ("caching", MODERN),
    ("http-header-validation", MODERN),
    ("input-required-result-unsupported-methods", MODERN), ("input-required-result-ignore-extra-params", MODERN),
]  # fmt: skip
ABSENT = ("Not testable", "-32601: Method not found")
"""How a check fails that needs a tool of the suite's own, or a method that the gateway does not have."""


@pytest.mark.parametrize(("scenario", "version"), SCENARIOS)
async def test_the_server_conforms(redis_url, tmp_path, scenario, version):
    app = App(agents=[Agent(script("Hello."), "any", name="clerk")])
    async with running_worker(redis_url, app), open_gateway(redis_url) as (api, _):
        url = api.url.replace("127.0.0.1", "localhost")
        checks = await conformance("server", scenario, version, tmp_path, "--url", f"{url}/mcp")
    await without_watcher()
    assert "SUCCESS" in checks.values(), checks
    failed = {name: status for name, status in checks.items() if status.startswith("FAILURE")}
    assert {name: status for name, status in failed.items() if not any(one in status for one in ABSENT)} == {}
