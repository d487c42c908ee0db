"""An archive that is loaded into a folder within the sandbox: a tar, plain or compressed, from whoever made it."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
import tempfile
from io import BufferedRWPair

from agent_tools.guest.files import service
from agent_tools.guest.wire.files import CONTENT, HEAD, HEADS
from agent_tools.guest.wire.framing import FrameReader, pack
from tests.fuzz.oracle import Bound, Parts, Target

PIECE = 1024 * 1024  # bytes, as the host sends them


def load(parts: Parts) -> None:
    """Load it: it is in the folder, or one answer says why not."""
    data, answers = b"".join(parts), io.BytesIO()
    pieces = [data[at : at + PIECE] for at in range(0, len(data), PIECE)]
    sent = b"".join(pack(CONTENT, each) for each in [*pieces, b""])
    stream = BufferedRWPair(io.BytesIO(sent), answers)  # type: ignore[type-var]  # they are raw enough
    with tempfile.TemporaryDirectory() as folder:
        request = {"op": "load", "path": folder, "variables": False}
        service.serve_path(request, stream)
    stream.flush()
    ((kind, answer),) = FrameReader(HEADS.get, lambda *frame: frame).feed(answers.getvalue())
    assert kind == HEAD
    assert isinstance(json.loads(answer), dict)
    assert not stream.read(1), "the next request would not be found"


def tar(*members: tuple[str, bytes]) -> bytes:
    """Return a tar of these names and contents."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w|", format=tarfile.PAX_FORMAT) as new:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            new.addfile(info, io.BytesIO(content))
    return made.getvalue()


_SMALL = tar(("a/x", b"1"), ("b" * 120, b"2"))
TARGET = Target(
    load,
    bound=Bound(seconds=1.0),
    words=(
        _SMALL,
        gzip.compress(_SMALL),
        bz2.compress(_SMALL),
        lzma.compress(_SMALL),
        lzma.compress(_SMALL, format=lzma.FORMAT_ALONE),
        *(b"\x1f\x8b\x08", b"BZh9", b"\xfd7zXZ", b"\x5d\0\0\x80", b"ustar\x0000", b"L", b"K", b"x", b"S"),
    ),
    max_len=16384,
)
