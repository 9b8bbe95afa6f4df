"""An MCP server for the files of one folder: `python files.py FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer

folder = Path(sys.argv[1]).resolve()
server = MCPServer("files")


def inside(path: str) -> Path:
    found = (folder / path).resolve()
    if not found.is_relative_to(folder):
        raise ValueError(f"{path} is outside of the folder.")
    return found


@server.tool()
def list_files() -> list[str]:
    """List all files."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@server.tool()
def read_file(path: str) -> str:
    """Read a file."""
    return inside(path).read_text()


@server.tool()
def write_file(path: str, text: str) -> str:
    """Write a file."""
    inside(path).write_text(text)
    return f"{path} has {len(text)} characters now."


server.run("stdio")
