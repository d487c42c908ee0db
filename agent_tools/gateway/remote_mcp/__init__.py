"""Remote MCP servers, whose tools a request offers to its model. MCP's client is imported at the first use."""
