"""The files of a skill, read from a folder or a zip that may be hostile, and checked.

Sizes are counted while reading and never taken from a header. The limits are those of OpenAI's /v1/skills, but for the
sum: 50 MiB for a zip, 500 files, 25 MiB for a file, 64 MiB for all.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import unicodedata
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent_tools.engines.engine import MAX_SKILL_BYTES
from agent_tools.errors import InvalidParams
from agent_tools.limits import MIB
from agent_tools.skills.frontmatter import Manifest, read_manifest
from agent_tools.skills.skill import MANIFEST

MAX_ZIP, MAX_FILES, MAX_FILE, MAX_BYTES = 50 * MIB, 500, 25 * MIB, MAX_SKILL_BYTES
MAX_PATH, MAX_DEPTH = 255, 10  # characters of a path; folders above a file, the skill's own included
MAX_ENTRIES = 20_000  # of a zip's directory, which is read whole before its files are counted
MAX_WALKED = 5_000  # entries of a folder that are looked at
_LEFT_OUT = frozenset({"__MACOSX", ".DS_Store", ".git", "__pycache__"})
_DIRECTORY_ENTRY = b"PK\x01\x02"
_BAD_ZIP = (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, OSError, RuntimeError, ValueError)
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class SkillFile:
    """The content of a file, and whether it can be executed."""

    data: bytes
    is_executable: bool = False


@dataclass(frozen=True)
class Bundle:
    """A skill as read: its files, by their path in its folder, and the frontmatter of its SKILL.md."""

    files: Mapping[str, SkillFile]
    manifest: Manifest

    @property
    def digest(self) -> str:
        """SHA-256 of all files, with their paths and rights, in hexadecimal."""
        whole = hashlib.sha256()
        for path, file in sorted(self.files.items()):
            whole.update(f"{path}\0{file.is_executable:d}\0".encode() + hashlib.sha256(file.data).digest())
        return whole.hexdigest()


def read_folder(folder: Path) -> Bundle:
    """Read a skill's folder, without .git, __pycache__, .DS_Store and __MACOSX.

    Raises:
        InvalidParams: it is not a usable skill; a link or a device in it is an error, too.
    """
    files: dict[str, SkillFile] = {}
    room = MAX_BYTES
    try:
        for path in _walk(folder):
            data, is_executable = _read(folder, path, min(MAX_FILE, room))
            room -= len(data)
            files[path] = SkillFile(data, is_executable)
            if len(files) > MAX_FILES:
                raise InvalidParams(f"There are more than {MAX_FILES} files: a skill may have {MAX_FILES}.")
    except OSError as exc:
        raise InvalidParams(f"{exc.filename or folder} cannot be read: {exc.strerror}.") from exc
    return checked(files)


def read_zip(data: bytes) -> Bundle:
    """Read a zip of a skill's folder, with or without the folder itself.

    Raises:
        InvalidParams: it is no usable skill.
    """
    if len(data) > MAX_ZIP:
        raise InvalidParams(f"The zip is larger than {MAX_ZIP // MIB} MiB.")
    if data.count(_DIRECTORY_ENTRY) > MAX_ENTRIES:
        raise InvalidParams(f"The zip has too many entries: a skill may have {MAX_FILES} files.")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return checked(dict(_unzipped(archive)))
    except _BAD_ZIP as exc:
        raise InvalidParams(f"The zip cannot be read ({type(exc).__name__}): pack the skill's folder again.") from None


def zipped(bundle: Bundle) -> bytes:
    """Return a skill as a zip of its folder; the same bytes for the same skill."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, file in sorted(bundle.files.items()):
            info = zipfile.ZipInfo(f"{bundle.manifest.name}/{path}")
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (stat.S_IFREG | (0o755 if file.is_executable else 0o644)) << 16
            archive.writestr(info, file.data)
    return out.getvalue()


def checked(files: Mapping[str, SkillFile]) -> Bundle:
    """Return files as a skill; a common top folder is removed from their paths.

    Raises:
        InvalidParams: a path, a size or SKILL.md is invalid.
    """
    if not 0 < len(files) <= MAX_FILES:
        raise InvalidParams(f"There are {len(files)} files: a skill may have 1 to {MAX_FILES}.")
    if any(len(each.data) > MAX_FILE for each in files.values()) or sum(map(_size, files.values())) > MAX_BYTES:
        raise _too_large()
    for path in files:
        _check_path(path)
    inner = _without_folder(files)
    _check_names(inner)
    manifests = [path for path in inner if path.rpartition("/")[2].lower() == MANIFEST.lower()]
    if len(manifests) != 1 or "/" in manifests[0]:
        raise InvalidParams(
            f"There are {len(manifests)} files {MANIFEST}: a skill has exactly one, in the folder that holds all files."
        )
    inner[MANIFEST] = inner.pop(manifests[0])
    return Bundle(inner, read_manifest(inner[MANIFEST].data))


def _size(file: SkillFile) -> int:
    return len(file.data)


def _too_large() -> InvalidParams:
    return InvalidParams(f"A skill may have {MAX_BYTES // MIB} MiB in all, and {MAX_FILE // MIB} MiB a file.")


def _check_path(path: str) -> None:
    parts = path.split("/")
    if len(path) > MAX_PATH or len(parts) > MAX_DEPTH:
        raise InvalidParams(f"The path {path!r:.80} is too long: {MAX_PATH} characters and {MAX_DEPTH} parts may be.")
    if any(part in ("", ".", "..") for part in parts) or "\\" in path:
        raise InvalidParams(f"The path {path!r:.80} is not usable: give relative paths with /, without '..'.")
    if any(unicodedata.category(each) in ("Cc", "Cs") for each in path):
        raise InvalidParams(f"The path {path!r:.80} has a control character: rename the file.")


def _without_folder(files: Mapping[str, SkillFile]) -> dict[str, SkillFile]:
    """Return files by their path below the one folder that they all lie in, if they do."""
    tops = {path.partition("/")[0] for path in files}
    if len(tops) > 1 or not all("/" in path for path in files):
        return dict(files)
    return {path.partition("/")[2]: file for path, file in files.items()}


def _check_names(paths: Iterable[str]) -> None:
    """Raise an error for paths that are the same on some file systems, and for a file that is also a folder."""
    known: dict[str, str] = {}
    for path in paths:
        folded = unicodedata.normalize("NFC", path).casefold()
        if folded in known:
            raise InvalidParams(f"{path!r:.80} and {known[folded]!r:.80} are one name on some systems: rename one.")
        known[folded] = path
    for folded, path in known.items():
        if above := next((known[each] for each in _folders(folded) if each in known), None):
            raise InvalidParams(f"{above!r:.80} is a file, and the folder of {path!r:.80}: rename one of them.")


def _folders(path: str) -> Iterator[str]:
    """Yield the paths of all folders above a file."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _unzipped(archive: zipfile.ZipFile) -> Iterator[tuple[str, SkillFile]]:
    infos = [info for info in archive.infolist() if not info.is_dir() and _LEFT_OUT.isdisjoint(_parts(info.filename))]
    if len(infos) > MAX_FILES:
        raise InvalidParams(f"There are {len(infos)} files: a skill may have {MAX_FILES}.")
    if len({info.filename for info in infos}) < len(infos):
        raise InvalidParams("The zip has two files of one path: pack the skill's folder again.")
    room = MAX_BYTES
    for info in infos:
        mode = info.external_attr >> 16
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            raise InvalidParams(f"{info.filename!r:.80} is a link or a device: a skill has plain files alone.")
        if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise InvalidParams("The zip is encrypted, or compressed in another way than deflate: pack it again.")
        _check_path(info.orig_filename)  # which `filename` is cut short of, at a null byte
        with archive.open(info) as file:
            data = file.read(min(MAX_FILE, room) + 1)
        if len(data) > min(MAX_FILE, room):
            raise _too_large()
        room -= len(data)
        yield info.filename, SkillFile(data, bool(mode & stat.S_IXUSR) or data.startswith(b"#!"))


def _parts(path: str) -> list[str]:
    return path.split("/")


def _walk(folder: Path) -> Iterator[str]:
    """Yield the relative paths of all files of a folder, in order."""
    walked, left = 0, [""]
    while left:
        above = left.pop()
        for entry in sorted(os.scandir(folder / above), key=lambda each: each.name):
            walked += 1
            path = f"{above}/{entry.name}" if above else entry.name
            if walked > MAX_WALKED:
                raise InvalidParams(f"{folder} has more than {MAX_WALKED:,} entries: this is no skill's folder.")
            if entry.name in _LEFT_OUT:
                continue
            if entry.is_dir(follow_symlinks=False):
                left.append(path)
                _check_path(path)
            else:
                yield path


def _read(folder: Path, path: str, most: int) -> tuple[bytes, bool]:
    """Return the content of a plain file, and whether it can be executed."""
    if not stat.S_ISREG(os.lstat(folder / path).st_mode):
        raise InvalidParams(f"{folder / path} is a link or a device: a skill has plain files alone.")
    with open(os.open(folder / path, _OPEN_FILE), "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        data = file.read(most + 1)
    if len(data) > most:
        raise _too_large()
    return data, bool(mode & stat.S_IXUSR) or data.startswith(b"#!")
