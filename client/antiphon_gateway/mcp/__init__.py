"""Agents as tools of an MCP server. Nothing here imports the package ``mcp`` before it is used."""
