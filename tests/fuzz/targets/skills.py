"""A skill from a stranger: a zip of it, or the frontmatter of its SKILL.md.

An input that begins with `PK` is a zip; any other is the SKILL.md.
"""

from __future__ import annotations

from functools import partial
from io import BytesIO
from pathlib import Path

from agent_tools.errors import InvalidParams
from agent_tools.limits import MIB
from agent_tools.skills.bundle import MAX_BYTES, MAX_FILES, Entry, read_entries, read_zip
from agent_tools.skills.skill import Skill, with_catalogue
from tests.fuzz.oracle import Bound, Parts, Target

SEEN = frozenset("\x08\n\r\x0b\x0c\x1b\x85\u2028\u2029\u202e")  # what would leave the line, or turn it


def ask(parts: Parts) -> None:
    """Read a skill: its files are within the limits, and its texts are one line."""
    data = b"".join(parts)
    bundle = read_zip(data) if data.startswith(b"PK") else read_entries([Entry("SKILL.md", 0, partial(BytesIO, data))])
    assert "SKILL.md" in bundle.files
    assert len(bundle.files) <= MAX_FILES
    assert sum(len(each.data) for each in bundle.files.values()) <= MAX_BYTES
    assert not any(part in ("", ".", "..") for path in bundle.files for part in path.split("/"))
    skill = Skill(**vars(bundle.manifest), folder=Path(bundle.digest))
    line = with_catalogue("", [skill]).rpartition("\n")[2]
    assert not SEEN.intersection(line)
    assert len(line) < 2_000


TARGET = Target(
    ask,
    allowed=(InvalidParams,),
    bound=Bound(seconds=2.0, bytes=2 * MAX_BYTES + 8 * MIB),
    words=(
        b"---\nname: m\ndescription: d\n---\n",
        b"compatibility: ",
        b"metadata:\n  a: b\n",
        b"!!binary ",
        b"!!timestamp ",
        b"!!omap ",
        b"&a ",
        b"*a",
        b"<<: ",
        b"PK\x01\x02",
        b"PK\x05\x06",
        b"SKILL.md",
    ),
)
