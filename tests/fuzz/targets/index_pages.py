"""A page of the package index, as a sandbox's egress allowlist shows it: files of one server, by their hash alone."""

from __future__ import annotations

import json

from agent_tools.runtime.egress.packages import METADATA, read_page
from agent_tools.runtime.egress.refusals import NotReached
from tests.fuzz import unfold
from tests.fuzz.oracle import Parts, Target

URL = "https://files.pythonhosted.org/packages/ab/a-1.whl"


def read(parts: Parts) -> None:
    """Read a page; all that is shown of it lies on the one server, and has the hash that is checked."""
    page = read_page(b"".join(parts))
    shown = json.loads(page.text or b"")
    for file in shown["files"]:
        path = file["url"].removeprefix("http://files.pythonhosted.org")
        assert path != file["url"]
        assert len(page.hash_of(path)) == len(file["hashes"]["sha256"]) == 64
        if "core-metadata" in file:
            assert len(page.hash_of(path + METADATA) or page.hash_of(path)) == 64
    assert page.hash_of("/packages/no-such-file") == ""


def _file(**more: object) -> bytes:
    return json.dumps({"filename": "a-1.whl", "url": URL, "hashes": {"sha256": "0" * 64}, **more}).encode()


TARGET = Target(
    read,
    lambda data: [unfold.text(data)],
    allowed=(NotReached,),
    words=(
        *(b'{"name": "a", "files": [', b"]}", b'"', b", ", b"{}", b"[]", b"null", b"\\u0000", b"\\ud800", b"1e999"),
        *(_file(), _file(**{"core-metadata": {"sha256": "1" * 64}}), _file(yanked="why", size=-1)),
        *(b'"url": ', b'"hashes": ', b'"sha256": ', b'"core-metadata": ', URL.encode(), b"http://", b"//evil.example/"),
        *(b'"' + b"ab" * 32 + b'"', b"/../", b"?", b"#", b"\n", b"[::1]", unfold.repeat(3, 12), unfold.repeat(1, 14)),
    ),
)
