"""What an MCP client gives as handles, paths and URIs, and as arguments of a tool."""

from __future__ import annotations

import contextlib
import json

from agent_tools.errors import InvalidParams
from agent_tools.mcp.names import read_handle, read_path, read_uri, uri_of
from agent_tools.mcp.tools import TOOLS
from tests.fuzz.oracle import Bound, Parts, Target

HANDLE = "cntr_00000000"


def read_names(parts: Parts) -> None:
    """Read them as each of these; whatever is taken leads nowhere else, and comes back from its URI."""
    text = parts[0].decode("utf-8", "surrogatepass" if b"\xed" in parts[0] else "replace")
    for read in (read_handle, read_uri):
        with contextlib.suppress(InvalidParams):
            read(text)
    with contextlib.suppress(InvalidParams):
        path = read_path(text)
        assert path
        assert not path.startswith("/")
        assert ".." not in path.split("/")
        assert "\0" not in path
        assert read_uri(uri_of(HANDLE, path)) == (HANDLE, path)
    for name, tool in TOOLS.items():
        for arguments in ({"code": text, "container": text}, {"path": text, "content": text}, _object(text)):
            with contextlib.suppress(InvalidParams):
                tool.read(name, arguments)


def _object(text: str) -> dict[str, object]:
    with contextlib.suppress(ValueError, RecursionError):
        read = json.loads(text)
        if isinstance(read, dict):
            return read
    return {"seconds": text}


TARGET = Target(
    read_names,
    lambda data: [data],
    allowed=(InvalidParams, UnicodeDecodeError),
    bound=Bound(seconds_per_byte=20e-6, bytes_per_byte=128),
    words=(
        *(b"sandbox://", b"cntr_00000000", b"/../", b"%2e%2e", b"%00", b"/workspace/", b"/mnt/data/", b"//", b"./"),
        *(b'{"code": "', b'"container": null', b'"timeout": 1e999', b'"offset": -1', b"\xed\xa0\x80"),
    ),
)
