"""A small MCP server over stdio, for the tests."""

from __future__ import annotations

from typing import Annotated, Any

from mcp.server.mcpserver import Image, MCPServer
from pydantic import Field
from typing_extensions import TypedDict

server = MCPServer("weather")


class Weather(TypedDict):
    city: str
    celsius: int


@server.tool()
def get_weather(city: str, days: int = 1) -> Weather:
    """Weather of a city."""
    return {"city": city, "celsius": 20 + days}


@server.tool()
def fail(why: str) -> str:
    """Fails."""
    raise ValueError(why)


@server.tool(name="plain-text", structured_output=False)
def plain_text() -> str:
    """Text without a schema."""
    return "only text"


@server.tool(name="user.find")
def find_user(user: str) -> str:
    """A tool whose name is none in Python."""
    return f"user {user}"


@server.tool(structured_output=False)
def draw(
    shape: Annotated[str, Field(json_schema_extra={"pattern": r"^\p{L}(?<n>a)?", "$ref": "http://[::1]:1/a"})],
) -> Any:
    """A picture; the patterns of its schema are of JavaScript."""
    return ["A square:", Image(data=b"png", format="png")]


if __name__ == "__main__":
    server.run()
