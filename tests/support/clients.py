"""The official JavaScript clients, as ``make clients`` installs them, run by a test."""

import asyncio
import json
import subprocess
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.eventually import patience
from support.source_tree import ROOT

INSTALLED = ROOT / ".venv" / "clients"
NODE = INSTALLED / "node_modules" / ".bin" / "node"
PROGRAMS = ROOT / "tests" / "clients"


class Program:
    """A program running in Node. It prints one word or one line of JSON at a time, and reads lines."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    async def line(self) -> str:
        """Return the next line that it prints."""
        assert self._process.stdout is not None
        found = await asyncio.wait_for(asyncio.to_thread(self._process.stdout.readline), patience(60))
        assert found, "the program ended"
        return found.rstrip("\n")

    async def said(self) -> Any:
        """Return the next line, decoded from JSON."""
        return json.loads(await self.line())

    def go_on(self) -> None:
        """Let it continue where it waits."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()


@asynccontextmanager
async def running(name: str, *arguments: str):
    """Run a program of tests/clients; skip the test if the clients are not installed."""
    if not NODE.exists():
        pytest.skip("the JavaScript clients are not installed: make clients")
    command = [str(NODE), str(PROGRAMS / name), str(INSTALLED), *arguments]
    process = await asyncio.to_thread(
        subprocess.Popen, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield Program(process)
    finally:
        process.kill()
        await asyncio.to_thread(process.communicate)
