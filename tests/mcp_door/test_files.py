"""Files in and out of a container, as an MCP client sees them."""

from __future__ import annotations

import base64
import os
import struct
import zlib

import pytest
from mcp import Client, MCPError
from mcp_types import BlobResourceContents, EmbeddedResource, ImageContent, TextResourceContents

from agent_tools.mcp.answers import MAX_LINKS
from agent_tools.mcp.files import MAX_BLOB_BYTES
from tests.gateway.in_loop import LargeJsonHere
from tests.mcp_door.conftest import Converse, text_of


def test_a_file_goes_in_is_listed_and_comes_back(converse: Converse) -> None:
    async def talk(client: Client) -> None:
        put = await client.call_tool("put_file", {"path": "/mnt/data/d/ä.csv", "content": "a,b\n1,2\n"})
        file = put.structured_content["file"]
        assert (file["path"], file["size"]) == ("d/ä.csv", 8)
        ran = await client.call_tool("run_python", {"code": "open('d/ä.csv').read()"})
        assert ran.structured_content["result"] == "'a,b\\n1,2\\n'"
        assert (await client.call_tool("list_files", {})).structured_content["files"] == [file]
        got = await client.call_tool("get_file", {"path": "d/ä.csv"})
        assert (got.structured_content["text"], got.structured_content["next_offset"]) == ("a,b\n1,2\n", None)
        (resource,) = (await client.read_resource(file["uri"])).contents
        assert isinstance(resource, TextResourceContents)
        assert (resource.text, resource.mime_type) == ("a,b\n1,2\n", "text/csv")
        resources = await client.list_resources()
        (listed,) = resources.resources
        assert (listed.uri, listed.size) == (file["uri"], 8)
        assert (resources.meta or {})["agent_tools/is_complete"] is True

    converse(talk)


def test_bytes_go_in_and_out_as_base64(converse: Converse) -> None:
    async def talk(client: Client) -> None:
        data = bytes(range(256))
        content = base64.b64encode(data).decode()
        put = await client.call_tool("put_file", {"path": "a.bin", "content": content, "encoding": "base64"})
        got = await client.call_tool("get_file", {"path": "a.bin"})
        (block,) = [each for each in got.content if isinstance(each, EmbeddedResource)]
        assert isinstance(block.resource, BlobResourceContents)
        assert base64.b64decode(block.resource.blob) == data
        (resource,) = (await client.read_resource(put.structured_content["file"]["uri"])).contents
        assert isinstance(resource, BlobResourceContents)
        assert base64.b64decode(resource.blob) == data
        await client.call_tool("put_file", {"path": "a.png", "content": content, "encoding": "base64"})
        picture = await client.call_tool("get_file", {"path": "a.png"})
        assert [each.mime_type for each in picture.content if isinstance(each, ImageContent)] == ["image/png"]

    converse(talk)


def png(width: int, height: int) -> bytes:
    """Return a picture that cannot be compressed."""

    def part(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = b"".join(b"\0" + os.urandom(3 * width) for _ in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", zlib.compress(rows)) + part(b"IEND", b"")


def test_large_files_and_pictures_are_read_and_written_beside_the_event_loop(converse: Converse) -> None:
    code = "import base64\ndata = base64.b64encode(open('a.png', 'rb').read()).decode()\n"
    code += "display({'image/png': data}, raw=True)"
    content = base64.b64encode(png(400, 300)).decode()

    async def talk(client: Client) -> None:
        with LargeJsonHere() as found:
            put = await client.call_tool("put_file", {"path": "a.png", "content": content, "encoding": "base64"})
            await client.call_tool("get_file", {"path": "a.png"})
            await client.read_resource(put.structured_content["file"]["uri"])
            ran = await client.call_tool("run_python", {"code": code})
        assert [each for each in ran.content if isinstance(each, ImageContent)]
        assert [what for what, _ in found.sizes if what == "base64"] == []

    converse(talk)


def test_a_long_text_comes_in_parts(converse: Converse) -> None:
    async def talk(client: Client) -> None:
        text = "".join(f"{n:>9}\n" for n in range(30_000))
        await client.call_tool("put_file", {"path": "a.txt", "content": text})
        parts, offset = "", 0
        while offset is not None:
            got = (await client.call_tool("get_file", {"path": "a.txt", "offset": offset})).structured_content
            parts, offset = parts + got["text"], got["next_offset"]
        assert parts == text

    converse(talk)


def test_what_is_too_large_is_refused_with_its_size(converse: Converse) -> None:
    async def talk(client: Client) -> None:
        content = base64.b64encode(bytes(MAX_BLOB_BYTES + 1)).decode()
        put = await client.call_tool("put_file", {"path": "a.bin", "content": content, "encoding": "base64"})
        got = await client.call_tool("get_file", {"path": "a.bin"})
        assert got.is_error
        assert f"{MAX_BLOB_BYTES + 1:,} bytes" in text_of(got)
        with pytest.raises(MCPError, match=f"{MAX_BLOB_BYTES + 1:,} bytes"):
            await client.read_resource(put.structured_content["file"]["uri"])

    converse(talk)


def test_a_file_beyond_the_limit_of_uploads_is_not_written(converse: Converse) -> None:
    async def talk(client: Client) -> None:
        refused = await client.call_tool("put_file", {"path": "a.txt", "content": "x" * 1_001})
        assert "larger than 1,000 bytes" in text_of(refused)
        assert (await client.call_tool("list_files", {})).structured_content["files"] == []

    converse(talk, max_upload_bytes=1_000)


def test_a_list_says_that_there_are_more_files_than_are_looked_at(converse: Converse) -> None:
    async def talk(client: Client) -> None:
        await client.call_tool("run_python", {"code": "import os\nfor n in range(10_001): os.mkdir(str(n))"})
        assert "some may be missing here" in text_of(await client.call_tool("list_files", {}))
        listed = await client.list_resources()
        assert (listed.meta or {})["agent_tools/is_complete"] is False

    converse(talk)


def test_resources_are_the_newest_files_and_say_that_there_are_more(converse: Converse) -> None:
    async def talk(client: Client) -> None:
        code = f"import os\nfor n in range({MAX_LINKS} + 1):\n    open(str(n), 'w').close(); os.utime(str(n), (n, n))"
        await client.call_tool("run_python", {"code": code})
        found = await client.list_resources()
        assert [each.name for each in found.resources] == [str(n) for n in range(MAX_LINKS, 0, -1)]
        assert (found.meta or {})["agent_tools/is_complete"] is False

    converse(talk)


def test_no_link_that_code_made_leads_out(converse: Converse) -> None:
    async def talk(client: Client) -> None:
        code = "import os; os.symlink('/etc', 'etc'); os.symlink('/etc/passwd', 'p'); os.mkfifo('fifo')"
        container = (await client.call_tool("run_python", {"code": code})).structured_content["container"]
        for path in ("p", "etc/passwd", "fifo"):
            assert "There is no file" in text_of(await client.call_tool("get_file", {"path": path}))
            with pytest.raises(MCPError, match="There is no file"):
                await client.read_resource(f"sandbox://{container}/{path}")
        refused = await client.call_tool("put_file", {"path": "etc/x", "content": "x"})
        assert "cannot be written" in text_of(refused)
        assert (await client.call_tool("list_files", {})).structured_content["files"] == []

    converse(talk)


@pytest.mark.parametrize(
    "uri", ["sandbox://x/a", "file:///etc/passwd", "sandbox://cntr_00000000/a", "sandbox://cntr_00000000/../a", "x"]
)
def test_a_resource_that_is_not_there_is_invalid_params(converse: Converse, uri: str) -> None:
    async def talk(client: Client) -> None:
        with pytest.raises(MCPError) as raised:
            await client.read_resource(uri)
        assert raised.value.code == -32602

    converse(talk)


def test_what_more_files_there_are_than_are_listed_is_told(converse: Converse) -> None:
    async def talk(client: Client) -> None:
        await client.call_tool("run_python", {"code": "for n in range(1_002): open(f'{n}', 'w').close()"})
        listed = await client.call_tool("list_files", {})
        assert listed.structured_content["left_out"] == 2
        assert "and 2 more" in text_of(listed)

    converse(talk)
