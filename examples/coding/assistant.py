"""A coding assistant: its file tools are an MCP server, and it asks before it writes.

    pip install 'antiphon[worker,mcp]'
    OPENAI_API_KEY=… python assistant.py ~/project "Add a test for parse()."

The official server has more tools: MCP.stdio(["npx", "-y", "@modelcontextprotocol/server-filesystem", folder], …).
"""

from __future__ import annotations

import sys
from pathlib import Path

from antiphon import Agent
from antiphon.mcp import MCP
from antiphon.model import OpenCall

SERVER = Path(__file__).with_name("files.py")


def coder(folder: str) -> Agent:
    files = MCP.stdio(
        [sys.executable, str(SERVER), folder], name="files", approval=["write_file"], connect_timeout=60
    )
    return Agent("openai", "gpt-5", name="coder", system="You are a careful programmer.", mcp=[files])


def allowed(call: OpenCall) -> bool:
    print(call.arguments.get("text"))
    return input(f"Write {call.arguments.get('path')}? [y/n] ") == "y"


def main() -> None:
    folder, *words = sys.argv[1:]
    print(coder(folder).session().run(" ".join(words), on_approval=allowed).text)


if __name__ == "__main__":
    main()
