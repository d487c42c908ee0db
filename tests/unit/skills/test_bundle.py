"""Skills from folders and zips, the usable ones and the hostile ones."""

from __future__ import annotations

import io
import os
import stat
import zipfile
from pathlib import Path

import pytest

from agent_tools.errors import InvalidParams
from agent_tools.limits import MIB
from agent_tools.skills.bundle import (
    MAX_BYTES,
    MAX_ENTRIES,
    MAX_FILES,
    MAX_ZIP,
    SkillFile,
    read_folder,
    read_manifest,
    read_zip,
)
from tests.skills import MANIFEST, skill_folder

PLAIN = stat.S_IFREG | 0o644


def zipped(*entries: tuple[str, bytes] | tuple[str, bytes, int]) -> bytes:
    """Return a zip of paths, contents and modes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data, *mode in entries:
            info = zipfile.ZipInfo(path)
            info.external_attr = (mode[0] if mode else PLAIN) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return out.getvalue()


def front(text: str) -> bytes:
    return zipped(("m/SKILL.md", f"---\n{text}\n---\n".encode()))


TOP = ("m/SKILL.md", MANIFEST)
BAD = {
    "a path that leads out": (zipped(TOP, ("m/../../x", b"")), "without '..'"),
    "an absolute path": (zipped(("/SKILL.md", MANIFEST)), "give relative paths"),
    "a backslash": (zipped(TOP, ("m/a\\..\\b", b"")), "give relative paths"),
    "a control character": (zipped(TOP, ("m/a\nb", b"")), "control character"),
    "a link": (zipped(TOP, ("m/l", b"/etc/passwd", stat.S_IFLNK | 0o777)), "a link or a device"),
    "a device": (zipped(TOP, ("m/d", b"", stat.S_IFCHR | 0o666)), "a link or a device"),
    "two manifests": (zipped(TOP, ("m/skill.md", MANIFEST)), "collide on some"),
    "a nested manifest": (zipped(TOP, ("m/sub/SKILL.md", MANIFEST)), "There are 2 files SKILL.md"),
    "no manifest": (zipped(("m/x", b"")), "There are 0 files SKILL.md"),
    "no file": (zipped(), "There are 0 files SKILL.md"),
    "two top folders": (zipped(TOP, ("b/x", b"")), "in the folder that holds all files"),
    "a file that is a folder": (zipped(TOP, ("m/a", b""), ("m/a/b", b"")), "collide on some"),
    "names of one case": (zipped(TOP, ("m/a", b""), ("m/A", b"")), "collide on some"),
    "names of one normal form": (zipped(TOP, ("m/\u00e9", b""), ("m/e\u0301", b"")), "collide on some"),
    "too many files": (zipped(TOP, *((f"m/{n}", b"") for n in range(MAX_FILES))), "more than 500 files"),
    "a bomb": (zipped(TOP, *((f"m/{n}", bytes(24 * MIB)) for n in range(3))), "64 MiB in all"),
    "a large file": (zipped(TOP, ("m/a", bytes(26 * MIB))), "25 MiB a file"),
    "a deep path": (zipped(TOP, ("m/" + "d/" * 10 + "a", b"")), "too long"),
    "a long path": (zipped(TOP, ("m/" + "n" * 254, b"")), "too long"),
    "no zip": (b"PK\x03\x04rubbish", "cannot be read"),
    "a large zip": (bytes(MAX_ZIP + 1), "larger than 50 MiB"),
    "a large directory": (b"PK\x01\x02" * (MAX_ENTRIES + 1), "too many entries"),
    "aliases": (front("name: m\ndescription: &x [1]\nb: [*x, *x]"), "alias"),
    "a tag of Python": (front("name: m\ndescription: !!python/object/apply:os.system ['id']"), "no plain YAML"),
    "deep nesting": (front("name: m\ndescription: " + "[" * 5_000), "nested too deeply"),
    "a value that is no time": (front("name: m\ndescription: !!timestamp x"), "no plain YAML"),
    "long frontmatter": (front("name: m\ndescription: d\nx: " + "y" * 17_000), "at most 16 KiB"),
    "no frontmatter": (zipped(("m/SKILL.md", b"# Title\n")), "does not begin with frontmatter"),
    "a list": (front("- name"), "no mapping"),
    "text that is no UTF-8": (zipped(("m/SKILL.md", b"---\nname: \xff\n---\n")), "no plain YAML in UTF-8"),
    "no name": (front("description: d"), "name=None"),
    "a bad name": (front("name: Bad_Name\ndescription: d"), "1 to 64 of a-z"),
    "a double hyphen": (front("name: a--b\ndescription: d"), "1 to 64 of a-z"),
    "a name that leads out": (front("name: ../x\ndescription: d"), "1 to 64 of a-z"),
    "no description": (front("name: m"), "no description"),
    "an unseen description": (front('name: m\ndescription: "\\u200b \\u202e"'), "no description"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_zip_is_an_error_that_says_why(case: str) -> None:
    data, why = BAD[case]
    with pytest.raises(InvalidParams, match=why.replace("(", r"\(")):
        read_zip(data)


def test_an_encrypted_zip_is_an_error() -> None:
    data = bytearray(zipped(TOP))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + offset] |= 1
    with pytest.raises(InvalidParams, match="encrypted"):
        read_zip(bytes(data))


def test_a_size_that_a_zip_states_is_not_believed() -> None:
    data = bytearray(zipped(TOP, ("m/a", bytes(26 * MIB))))
    start = data.rindex(b"PK\x01\x02")
    data[start + 24 : start + 28] = (26 * MIB - 1).to_bytes(4, "little")
    with pytest.raises(InvalidParams, match="25 MiB a file"):
        read_zip(bytes(data))


def test_what_zips_have_by_custom_is_taken() -> None:
    script = ("m/run", b"#!/bin/sh\n")
    bundle = read_zip(
        zipped(
            ("m/skill.md", MANIFEST),
            ("m/", b"", stat.S_IFDIR | 0o755),
            ("m/s", b"x", stat.S_IFREG | 0o4755),
            script,
            ("__MACOSX/m/._SKILL.md", b""),
            ("m/.DS_Store", b""),
        )
    )
    assert bundle.files == {
        "SKILL.md": SkillFile(MANIFEST),
        "s": SkillFile(b"x", is_executable=True),
        "run": SkillFile(script[1], is_executable=True),
    }
    assert read_zip(zipped(("SKILL.md", MANIFEST), ("scripts/a.py", b""))).files.keys() == {"SKILL.md", "scripts/a.py"}
    assert (bundle.manifest.name, bundle.manifest.description) == ("m", "Does things.")


def test_texts_become_one_line_that_hides_nothing() -> None:
    text = 'name: m\ndescription: "a\\n\\tb\\e[2J\\u202ec"\ncompatibility: "needs\\n pypdf"\nallowed-tools: Bash'
    manifest = read_zip(front(text)).manifest
    assert (manifest.description, manifest.compatibility) == ("a b[2Jc", "needs pypdf")


def test_a_long_description_is_a_warning() -> None:
    (warning,) = read_zip(front("name: m\ndescription: " + "d" * 1_500)).manifest.warnings
    assert "1,500 characters" in warning


def test_a_folder_is_read_with_its_rights(tmp_path: Path) -> None:
    folder = skill_folder(tmp_path / "m", {"scripts/a.py": "#!/usr/bin/env python\n", ".git/config": "x", "tool": "y"})
    (folder / "tool").chmod(0o700)
    files = read_folder(folder).files
    assert {path: file.is_executable for path, file in files.items()} == {
        "SKILL.md": False,
        "scripts/a.py": True,
        "tool": True,
    }


def test_links_and_devices_in_a_folder_are_errors(tmp_path: Path) -> None:
    folder = skill_folder(tmp_path / "m")
    (folder / "l").symlink_to("/etc/passwd")
    with pytest.raises(InvalidParams, match="is a link or a device"):
        read_folder(folder)
    (folder / "l").unlink()
    os.mkfifo(folder / "pipe")
    with pytest.raises(InvalidParams, match="is a link or a device"):
        read_folder(folder)


def test_a_folder_without_bounds_is_an_error(tmp_path: Path) -> None:
    folder = skill_folder(tmp_path / "m", {"large": ""})
    for size in (26 * MIB, MAX_BYTES * 1_000):
        os.truncate(folder / "large", size)
        with pytest.raises(InvalidParams, match="25 MiB a file"):
            read_folder(folder)
    (folder / "large").unlink()
    for number in range(MAX_FILES):
        (folder / str(number)).touch()
    with pytest.raises(InvalidParams, match="more than 500 files"):
        read_folder(folder)


def test_the_digest_is_of_paths_contents_and_rights() -> None:
    manifest = ("SKILL.md", MANIFEST)
    others = [("a", b"x"), ("a", b"y"), ("b", b"x"), ("a", b"x", PLAIN | 0o100)]
    digests = {read_zip(zipped(manifest, other)).digest for other in others}
    assert len(digests) == 4
    assert read_zip(zipped(others[0], manifest)).digest in digests


AS_MEANT = {
    "a colon and a space": ("description: Use when: the user asks", "Use when: the user asks"),
    "a tab after the key": ("description:\tUse it", "Use it"),
    "a bracket": ("description: [beta] Use it", "[beta] Use it"),
    "a star": ("description: *Use* it", "*Use* it"),
    "an at": ("description: @agent uses it", "@agent uses it"),
    "a percent sign": ("description: %run uses it", "%run uses it"),
    "a dash": ("description: - use it", "- use it"),
    "quotes": ("description: 'Use when: asked'", "Use when: asked"),
    "folded": ("description: >\n  Use when: it is\n  asked", "Use when: it is asked"),
}


@pytest.mark.parametrize(("line", "description"), AS_MEANT.values(), ids=AS_MEANT)
def test_a_description_is_read_as_people_mean_it(line: str, description: str) -> None:
    assert read_manifest(f"---\nname: m\n{line}\n---\n".encode()).description == description


@pytest.mark.parametrize("above", ["\n", "\n  \n", "# made by hand\n", "<!-- made by hand -->\n\n", "\ufeff\n"])
def test_blank_lines_and_comments_may_stand_above_the_frontmatter(above: str) -> None:
    found = read_manifest(f"{above}---\nname: 123\ndescription: d\n---\n".encode())
    assert (found.name, found.description) == ("123", "d")


def test_the_line_of_bad_frontmatter_is_named() -> None:
    with pytest.raises(InvalidParams, match=r"SKILL\.md, line 4 is no plain YAML"):
        read_manifest(b"\n---\nname: m\ndescription: 'never closed\n---\n")
