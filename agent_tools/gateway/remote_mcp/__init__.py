"""MCP servers elsewhere, whose tools a request offers to its model."""
