"""An archive of images that an operator loads into an engine: the names in it. The first byte chooses: `R` raw bytes.

Anything else is `manifest.json`, `repositories` and `index.json`, with MARK between them.
"""

from __future__ import annotations

import io
import tarfile

from agent_tools.engines.docker.image_archive import names_in
from agent_tools.errors import EngineError
from tests.fuzz import unfold
from tests.fuzz.oracle import Parts, Target

MARK = b"<|>"
NAMES = ("manifest.json", "repositories", "index.json")


def packed(data: bytes) -> Parts:
    """The bytes of the archive."""
    if data[:1] == b"R":
        return [unfold.text(data[1:])]
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, content in zip(NAMES, unfold.text(data).split(MARK), strict=False):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return [file.getvalue()]


def read(parts: Parts) -> None:
    """Read the names: texts."""
    assert all(isinstance(name, str) for name in names_in(io.BytesIO(b"".join(parts))))


TARGET = Target(
    read,
    packed,
    allowed=(EngineError,),
    words=(
        *(
            MARK,
            b'[{"RepoTags": ["agent-tools:a"]}]',
            b'{"manifests": [{"annotations": {',
            b"]",
            b"}",
            b"null",
            b"[]",
            b"5",
        ),
        *(
            b'"io.containerd.image.name": "docker.io/library/x:1"',
            b'"org.opencontainers.image.ref.name": ',
            b'{"x": {"l": "1"}}',
        ),
        unfold.repeat(3, 12),
    ),
)
