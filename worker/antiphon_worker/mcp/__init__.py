"""Tools of MCP servers. Nothing here is imported before a turn needs it."""
