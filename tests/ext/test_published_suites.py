"""The tests that the Agents SDK publishes for its sessions pass with ours. `make neighbours` fetches them."""

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from support.source_tree import ROOT

pytestmark = pytest.mark.short

SOURCES = Path(sys.prefix) / "neighbours" / f"openai_agents-{version('openai-agents')}"
SUITES = ("tests/memory/test_session.py", "tests/memory/test_session_limit.py")


@pytest.mark.skipif(
    not SOURCES.exists(),
    reason="the source distribution of openai-agents is not here: make .venv/.neighbours fetches it",
)
def test_sessions_of_the_agents_sdk(redis_url):
    command = [
        "-m",
        "pytest",
        "-p",
        "support.sdk_sessions",
        "-p",
        "no:cloudcoil",
        "-p",
        "no:randomly",
        "-p",
        "no:cacheprovider",
    ]
    environment = {
        **os.environ, "SESSIONS_REDIS": redis_url, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), "."]),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, *command, "-q", *SUITES], cwd=SOURCES, env=environment, capture_output=True, text=True,
        timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) >= 50
