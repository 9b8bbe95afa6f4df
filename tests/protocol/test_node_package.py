"""The package of client/node against real servers, in its short form; ``make node`` runs all of it, on Node 24."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from support.browser import ABSENT, open_browser
from support.eventually import wait_until
from support.node_stand import Stand
from support.proxy import Proxy
from support.servers import RedisServer

PACKAGE = Path(__file__).parents[2] / "client" / "node"
LOCK, INSTALLED = PACKAGE / "package-lock.json", PACKAGE / "node_modules" / ".package-lock.json"
OLDEST = 20

pytestmark = pytest.mark.short


@pytest.fixture(scope="module")
def installed():
    """What the package's tests need from npm; skips where it cannot be had."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not installed: the package for Node cannot be tested here")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.lstrip("v").partition(".")[0]) < OLDEST:
        pytest.skip(f"the package needs Node {OLDEST} or newer, and this is {version}")
    if INSTALLED.exists() and INSTALLED.stat().st_mtime >= LOCK.stat().st_mtime:
        return
    command = [npm, "ci", "--no-audit", "--no-fund", "--prefix", PACKAGE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("npm ci takes longer than three minutes: the package for Node cannot be tested here")
    if done.returncode:
        pytest.skip(f"npm ci fails, so the package for Node cannot be tested here: {done.stderr[-300:]}")
    INSTALLED.touch()


@pytest.mark.usefixtures("installed")
def test_the_package_for_node_keeps_its_promises_on_real_servers():
    files = sorted((PACKAGE / "test").glob("*.test.js"))
    env = {**os.environ, "ANTIPHON_PYTHON": sys.executable, "ANTIPHON_NODE_SHORT": "1"}
    command = [
        "node",
        "--test",
        "--test-concurrency=4",
        "--test-timeout=150000",
        "--test-reporter=tap",
        *files,
    ]
    done = subprocess.run(
        command, cwd=PACKAGE, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, (
        "\n".join(part for part in done.stdout.split("# Subtest: ") if "not ok" in part) + done.stderr
    )
    assert "# fail 0" in done.stdout
    passed = int(done.stdout.rpartition("# pass ")[2].split()[0])
    assert passed > 40, done.stdout


IN_PAGE = """
const [url, key, agent] = arguments;
window.found = null;
(async () => {
  const { Client } = await import("/src/index.js");
  const turn = await new Client(url, { key }).submit("s", "go gate:g", { agent });
  const seqs = [];
  for await (const event of turn.events()) seqs.push(event.seq);
  window.found = { seqs, text: (await turn.result()).text };
})().catch((error) => { window.found = { error: String(error) }; });
"""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """A web server with these files."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.skipif(bool(ABSENT), reason=ABSENT)
def test_a_page_of_another_origin_follows_an_answer_while_its_gateway_is_killed(tmp_path):
    with (
        RedisServer() as redis, Proxy(redis.port) as proxy, served(PACKAGE) as origin,
        open_browser(tmp_path / "profile") as driver,
    ):  # fmt: skip
        stand = Stand(tmp_path, redis, proxy, "--cors", origin)
        try:
            places = stand.up()
            driver.get(f"{origin}/package.json")
            agent = {"provider": "stage", "model": "stage-1", "tools": ["note"]}
            driver.execute_script(IN_PAGE, places["gateway"], places["key"], agent)
            stand.waits("g")
            stand.kill_gateway()
            stand.open("g")
            stand.start_gateway()
            found = wait_until(
                lambda: driver.execute_script("return window.found"), 40, "the page has read the answer"
            )
        finally:
            stand.close()
    assert "error" not in found, found
    assert found["seqs"] == list(range(1, len(found["seqs"]) + 1))
    assert found["text"].startswith("The first words. I was shown 1 messages")
