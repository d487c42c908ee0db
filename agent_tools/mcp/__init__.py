"""The door for MCP clients: code, commands and files in containers, by the Model Context Protocol."""
