"""Tools of MCP servers elsewhere, in a response: as they are asked for, listed, approved and called."""
