"""The official conformance suite of MCP and third-party servers, as installed by ``make mcp``."""

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest
from support.eventually import patience
from support.source_tree import ROOT

INSTALLED = ROOT / ".venv" / "mcp"
MODULES = INSTALLED / "node_modules"
NODE = MODULES / ".bin" / "node"
SUITE = MODULES / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
PYTHON = INSTALLED / "python" / "bin"
MODERN, EARLIER = "2026-07-28", "2025-11-25"


def check_installed() -> None:
    """Skip the test without what ``make mcp`` installs."""
    if not NODE.exists() or not (PYTHON / "mcp-server-git").exists():
        pytest.skip("the conformance suite of MCP is not installed: make mcp")


async def conformance(
    kind: str, scenario: str, version: str, results: Path, *arguments: str, **env: str
) -> dict[str, str]:
    """Run a scenario of the suite, and return its checks: each id with its status, and the reason of a failure."""
    check_installed()
    command = [
        NODE,
        SUITE,
        kind,
        "--scenario",
        scenario,
        "--spec-version",
        version,
        "-o",
        results,
        *arguments,
    ]
    ran = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=False, timeout=patience(120),
        env={**os.environ, **env},
    )  # fmt: skip
    return _checks(results, ran.stdout + ran.stderr)


def _checks(results: Path, printed: str) -> dict[str, str]:
    found = sorted(results.glob("*/checks.json"))
    assert found, printed
    checks = json.loads(found[-1].read_text())
    return {
        one["id"]: one["status"] if one["status"] != "FAILURE" else f"FAILURE: {one.get('errorMessage')}"
        for one in sorted(checks, key=lambda one: one["status"] == "FAILURE")
    }
