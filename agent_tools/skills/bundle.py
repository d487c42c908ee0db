"""The files and the frontmatter of a skill, read from a folder or a zip that may be hostile, and checked.

Sizes are counted while reading and never taken from a header. The limits are those of OpenAI's /v1/skills, but for the
sum: 50 MiB for a zip, 500 files, 25 MiB for a file, 64 MiB for all. The frontmatter is that of
https://agentskills.io/specification. A skill is an instruction to the model, so all of it is data here: it grants no
rights (`allowed-tools` is not read), and its texts become one line without invisible characters.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import re
import stat
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import yaml

from agent_tools.engines.engine import MAX_SKILL_BYTES
from agent_tools.errors import InvalidParams
from agent_tools.limits import MIB
from agent_tools.machine.folder import OPEN_FILE
from agent_tools.skills.skill import MANIFEST, MAX_DESCRIPTION, Manifest, one_line

MAX_ZIP, MAX_FILES, MAX_FILE, MAX_BYTES = 50 * MIB, 500, 25 * MIB, MAX_SKILL_BYTES
MAX_PATH, MAX_DEPTH = 255, 10  # characters of a path; folders above a file, the skill's own included
MAX_ENTRIES = 20_000  # of a zip's directory, which is read whole before its files are counted
_LEFT_OUT = frozenset({"__MACOSX", ".DS_Store", ".git", "__pycache__"})
_DIRECTORY_ENTRY = b"PK\x01\x02"
_BAD_ZIP = (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, OSError, RuntimeError, ValueError)
MAX_FRONTMATTER = 16 * 1024  # bytes
MAX_NESTED = 20  # brackets in brackets: the time to scan them grows with the square of their depth
_NAME = re.compile(r"(?!-)(?!.*--)[a-z0-9-]{1,64}(?<!-)")
_FRONTMATTER = re.compile(
    rb"(?:\xef\xbb\xbf)?(?:[ \t]*(?:#[^\n]*|<!--[^\n]*-->[ \t]*)?\r?\n)*---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)",
    re.DOTALL,
)
_PLAIN_VALUE = re.compile(r"^([A-Za-z][\w-]*):[ \t]+(?![\"'|>{\[!&\s])(.*\S)[ \t]*$", re.MULTILINE)
_ODD_VALUE = re.compile(r"^([A-Za-z][\w-]*):[ \t]+(\[[^\[\]\n]*(?:\][ \t]+\S.*)?)$", re.MULTILINE)
_BAD_YAML = (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class Entry(NamedTuple):
    """A file to read: its path, its mode (0 if unknown), and a function that opens it for a `with` statement."""

    path: str
    mode: int
    open: Callable[[], AbstractContextManager[IO[bytes]]]


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
    try:
        return read_entries(_in_folder(folder), folder.name)
    except OSError as exc:
        raise InvalidParams(f"{exc.filename or folder} cannot be read: {exc.strerror}.") from exc


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
            return read_entries(_in_zip(archive))
    except _BAD_ZIP as exc:
        raise InvalidParams(f"The zip cannot be read ({type(exc).__name__}): pack the skill's folder again.") from None


def read_entries(entries: Iterable[Entry], folder: str = "") -> Bundle:
    """Read the files of a skill; the folder that has SKILL.md is left out of their paths.

    Raises:
        InvalidParams: a path, a size or SKILL.md is invalid, or something is not a plain file.
    """
    files: dict[str, SkillFile] = {}
    room = MAX_BYTES
    for path, mode, opened in entries:
        _check_path(path)
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            raise InvalidParams(f"{path!r:.80} is a link or a device: a skill has plain files alone.")
        if path in files:
            raise InvalidParams(f"Two files have the path {path!r:.80}: give each its path in the folder.")
        if len(files) == MAX_FILES:
            raise InvalidParams(f"There are more than {MAX_FILES} files, the maximum of a skill.")
        with opened() as content:
            data = content.read(min(MAX_FILE, room) + 1)
        if len(data) > min(MAX_FILE, room):
            raise InvalidParams(f"A skill may have {MAX_BYTES // MIB} MiB in all, and {MAX_FILE // MIB} MiB a file.")
        room -= len(data)
        files[path] = SkillFile(data, bool(mode & stat.S_IXUSR) or data.startswith(b"#!"))
    _check_names(files)
    manifests = [path for path in files if path.rpartition("/")[2].lower() == MANIFEST.lower()]
    top = manifests[0][: -len(MANIFEST)] if manifests else ""
    if len(manifests) != 1 or top.count("/") > 1 or not all(path.startswith(top) for path in files):
        raise InvalidParams(
            f"There are {len(manifests)} files {MANIFEST}: a skill has exactly one, in the folder that holds all files."
        )
    files = {path.removeprefix(top): file for path, file in files.items()}
    files[MANIFEST] = files.pop(manifests[0].removeprefix(top))
    return Bundle(files, read_manifest(files[MANIFEST].data, folder))


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


def _check_path(path: str) -> None:
    parts = path.split("/")
    if len(path) > MAX_PATH or len(parts) > MAX_DEPTH:
        raise InvalidParams(f"The path {path!r:.80} is too long: {MAX_PATH} characters and {MAX_DEPTH} parts may be.")
    if any(part in ("", ".", "..") for part in parts) or "\\" in path:
        raise InvalidParams(f"The path {path!r:.80} is not usable: give relative paths with /, without '..'.")
    if any(unicodedata.category(each) in ("Cc", "Cs") for each in path):
        raise InvalidParams(f"The path {path!r:.80} has a control character: rename the file.")


def _check_names(paths: Iterable[str]) -> None:
    """Raise an error for paths that are the same on some file systems, and for a file that is also a folder."""
    found = sorted((unicodedata.normalize("NFC", path).casefold().split("/"), path) for path in paths)
    for (parts, path), (next_parts, next_path) in itertools.pairwise(found):  # a folder's files follow each other
        if next_parts[: len(parts)] == parts:
            raise InvalidParams(f"{path!r:.80} and {next_path!r:.80} collide on some file systems: rename one.")


def _in_zip(archive: zipfile.ZipFile) -> Iterator[Entry]:
    for info in archive.infolist():
        if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise InvalidParams("The zip is encrypted, or compressed in another way than deflate: pack it again.")
        path = info.orig_filename  # which `filename` is cut short of, at a null byte
        if not info.is_dir() and _LEFT_OUT.isdisjoint(path.split("/")):
            yield Entry(path, info.external_attr >> 16, partial(archive.open, info))


def _in_folder(folder: Path) -> Iterator[Entry]:
    for above, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = [each for each in folders if each not in _LEFT_OUT]
        for path in (Path(above, each) for each in (*names, *folders)):
            mode = path.lstat().st_mode
            if path.name not in _LEFT_OUT and not stat.S_ISDIR(mode):
                yield Entry(path.relative_to(folder).as_posix(), mode, partial(_opened, path))


def _opened(path: Path) -> IO[bytes]:
    return open(os.open(path, OPEN_FILE), "rb")


def _raise(error: OSError) -> None:
    raise error


class _Loader(yaml.SafeLoader):
    """Reads plain values. An alias is an error: a few of them can stand for billions of nodes."""

    def fetch_flow_collection_start(self, token: type[yaml.Token]) -> None:
        if self.flow_level == MAX_NESTED:
            raise yaml.YAMLError("it is nested too deeply")
        super().fetch_flow_collection_start(token)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias")
        return super().compose_node(parent, index)


def read_manifest(data: bytes, folder: str = "") -> Manifest:
    """Return the frontmatter of a SKILL.md. A name that differs from the name of `folder` is a warning.

    Raises:
        InvalidParams: there is none, or it lacks a usable name or description.
    """
    match = _FRONTMATTER.match(data[: MAX_FRONTMATTER + 64])
    if not match:
        raise InvalidParams(
            f"{MANIFEST} does not begin with frontmatter: give YAML of at most {MAX_FRONTMATTER // 1024} KiB between "
            "two lines of ---."
        )
    try:
        found = _loaded(match[1].decode())
    except _BAD_YAML as exc:
        mark = getattr(exc, "problem_mark", None)
        above = data[: match.start(1)].count(10)  # line ends
        line = f", line {above + mark.line + 1}" if mark else ""
        reason = " ".join(str(exc).split())
        raise InvalidParams(f"The frontmatter of {MANIFEST}{line} is no plain YAML in UTF-8: {reason:.200}") from None
    if not isinstance(found, Mapping):
        raise InvalidParams(f"The frontmatter of {MANIFEST} is no mapping: give lines such as `name: pdf`.")
    return _checked(found, folder)


def _loaded(text: str) -> Any:
    """Parse YAML. Where it is none, values without quotes are text, as people mean `description: Use when: asked`.

    Raises:
        yaml.YAMLError and others of _BAD_YAML: it is no YAML in either way.
    """
    try:
        return yaml.load(text, _Loader)  # noqa: S506  (a SafeLoader)
    except yaml.YAMLError as exc:
        quoted = _ODD_VALUE.sub(_quoted, _PLAIN_VALUE.sub(_quoted, text))
        try:
            return yaml.load(quoted, _Loader)  # noqa: S506
        except yaml.YAMLError:
            raise exc from None


def _quoted(found: re.Match[str]) -> str:
    return f"{found[1]}: {json.dumps(found[2])}"


def _checked(found: Mapping[object, object], folder: str) -> Manifest:
    name, description, compatibility = (found.get(each) for each in ("name", "description", "compatibility"))
    name = str(name) if isinstance(name, int) else name  # `name: 123`
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidParams(f"name={name!r:.80} is not usable: give 1 to 64 of a-z, 0-9 and single hyphens.")
    line = one_line(description) if isinstance(description, str) else ""
    if not line:
        raise InvalidParams(f"The skill {name!r} has no description: give 1 to {MAX_DESCRIPTION:,} characters.")
    needs = one_line(compatibility) if isinstance(compatibility, str) else ""
    warnings = []
    if folder not in ("", name):
        warnings.append(f"the folder is named {folder!r}, and not as the skill")
    if len(line) > MAX_DESCRIPTION:
        warnings.append(f"the description has {len(line):,} characters: a model is shown the first {MAX_DESCRIPTION:,}")
    return Manifest(name, line, needs, tuple(warnings), found)
