"""Agents as tools of an MCP server. The package ``mcp`` is imported when it is first used."""
