"""The MCP server: code, commands and files in containers, by the Model Context Protocol."""
