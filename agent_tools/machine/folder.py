"""Safe access to a folder that untrusted code writes to: relative to open descriptors, never following links."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import stat
import time
import unicodedata
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

from agent_tools.machine.machine import IS_LINUX, birth_time

Facts = tuple[int, int, int]
"""Of a file: size in bytes, mtime in ns, inode."""
Snapshot = dict[str, Facts]
"""Relative names and facts of regular files."""

OPEN_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
PASS_DIR = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags to open a folder for lookups only, on Linux whatever its mode is."""
OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
MAX_DEPTH = 16  # folders below which nothing is listed
MAX_LEVELS = 64  # levels of folders that are counted: each level needs an open descriptor
MAX_SOCKET_SEARCH = 10_000  # entries that are searched for sockets
MAX_NAME_BYTES = 200
_UNSAFE = re.compile(r'[\x00-\x1f\x7f-\x9f/\\:*?"<>|\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]')
FIGURE = re.compile(r"figure-(\d{3,9})\.(?:png|jpg|gif)", re.ASCII)
"""The names of figures, by their numbers in a folder."""
_LEADING = re.compile(r"^[\s.-]+")
_BLOCK = 512  # bytes: the unit of st_blocks
_OTHER_CLOCK = 60 * 10**9  # ns by which a file system's clock may differ from this machine's, as with a file server
_COARSEST = 2 * 10**9  # ns between two ticks of the clock of a file system, such as FAT's
_TICKS = 20  # ms to wait for the next tick


@dataclass(frozen=True)
class FolderUsage:
    """The contents of a folder in numbers: bytes on disk, entries, and levels of folders. Counting stops at a limit.

    Attributes:
        changed: the bytes on disk of files that changed since a moment.
        largest: the file with the most bytes on disk, and its bytes; ('', 0) if there is none.
    """

    bytes: int
    entries: int
    levels: int
    changed: int = field(default=0, compare=False)
    largest: tuple[str, int] = field(default=("", 0), compare=False)


def safe_name(name: str) -> str:
    """Make a file name harmless: no separators, control or direction characters, no leading dots or dashes, short."""
    name = unicodedata.normalize("NFC", name.encode("utf-8", "replace").decode()).replace("\\", "/").rsplit("/", 1)[-1]
    name = _LEADING.sub("", _UNSAFE.sub("_", name)).rstrip() or "file"
    stem, dot, suffix = name.rpartition(".")
    stem, suffix = (stem, dot + suffix) if dot and len(suffix) <= 16 else (name, "")
    return _cut_bytes(stem, MAX_NAME_BYTES - len(suffix.encode())) + suffix


def readable(name: str) -> str:
    r"""Return a file's name as text: bytes that are not UTF-8 as Python writes them in literals, such as `a\xe9`."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def numbered(name: str) -> Iterator[str]:
    """Yield a file's name, and then the same with numbers: x.csv, x-1.csv, x-2.csv, ..."""
    yield name
    stem, suffix = os.path.splitext(name)
    for number in itertools.count(1):
        yield f"{stem}-{number}{suffix}"


def last_figure(folder: int, most: int) -> int:
    """Return the highest number of a figure among the first `most` entries of an open folder; 0 for none."""
    with os.scandir(folder) as entries:
        found = [FIGURE.fullmatch(entry.name) for entry in itertools.islice(entries, most)]
    return max((int(each[1]) for each in found if each), default=0)


def _cut_bytes(text: str, limit: int) -> str:
    return text.encode()[:limit].decode("utf-8", "ignore")


@contextlib.contextmanager
def open_folder(path: Path | str, dir_fd: int | None = None, flags: int = OPEN_DIR) -> Iterator[int]:
    """Return a descriptor of a folder, which must not be a link."""
    fd = os.open(path, flags, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def open_parent(
    path: Path, name: str, *, make: bool = False, owner: tuple[int, int] | None = None
) -> Iterator[tuple[int, str]]:
    """Return a descriptor of the folder that holds `name` (relative to `path`), and the last part of the name.

    At most two descriptors are open at once. Folders that root makes on the way are given to `owner`.

    Raises:
        OSError: there is no such folder, or no file can have such a name.
    """
    try:
        os.fsencode(name)
    except UnicodeEncodeError as exc:
        raise FileNotFoundError(errno.ENOENT, "no file has such a name", ascii(name)) from exc
    *folders, last = Path(name).parts
    fd = os.open(path, OPEN_DIR)
    try:
        for part in folders:
            is_new = make and _make_folder(fd, part)
            above, fd = fd, os.open(part, OPEN_DIR, dir_fd=fd)
            os.close(above)
            if is_new and owner and os.getuid() == 0:
                os.fchown(fd, *owner)
        yield fd, last
    finally:
        os.close(fd)


def _make_folder(fd: int, name: str) -> bool:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=fd)
        return True
    return False


def snapshot(path: Path, limit: int) -> tuple[Snapshot, bool]:
    """Return the regular files among the first `limit` entries, and whether there are no more entries."""
    found: Snapshot = {}
    looked_at = 0
    with contextlib.suppress(OSError), open_folder(path) as fd:
        for name, facts, _ in walk(fd, "", MAX_DEPTH):
            looked_at += 1
            if looked_at > limit:
                return found, False
            if stat.S_ISREG(facts.st_mode):
                found[readable(name)] = _facts(facts)
    return found, True


def usage(path: Path, limit: FolderUsage, since: int = 0) -> FolderUsage:
    """Count the contents of the folder, up to `limit`. A file with several names counts once.

    `since` is a moment (see `FileTime.ns`) for `FolderUsage.changed`.
    """
    size = entries = levels = changed = 0
    largest = ("", 0)
    several: set[int] = set()
    with contextlib.suppress(OSError), open_folder(path) as fd:
        for name, facts, _ in walk(fd, "", MAX_LEVELS, unlocks=True):  # code may write to what it has closed
            entries += 1
            levels = max(levels, name.count("/") + stat.S_ISDIR(facts.st_mode))
            if facts.st_nlink == 1 or stat.S_ISDIR(facts.st_mode) or facts.st_ino not in several:
                own = facts.st_blocks * _BLOCK
                size += own
                changed += own if facts.st_ctime_ns >= since else 0
                if own > largest[1] and not stat.S_ISDIR(facts.st_mode):
                    largest = name, own
            if facts.st_nlink > 1:
                several.add(facts.st_ino)
            if size > limit.bytes or entries > limit.entries or levels > limit.levels:
                break
    return FolderUsage(size, entries, levels, changed, largest)


class FileTime(NamedTuple):
    """A moment by the clock of a file system, for comparison with the ctime of its files.

    Before Linux 6.13 that clock ticks every 1 to 10 ms, so a change at the moment itself may count as before or after.

    Attributes:
        ns: files that changed after the moment have this ctime or a later one.
        end: files that changed before the moment have an earlier ctime than this.
        is_known: False if the file system's clock could not be read and this machine's was used.
    """

    ns: int
    end: int
    is_known: bool = True


def moment(path: Path, *, is_start: bool = False) -> FileTime:
    """Return the present moment by the clock of a folder's file system.

    With `is_start`, wait for the next tick if an entry of the folder was made in this tick, as when the host stages
    files for a run, so that the moment separates them from later files.
    """
    try:
        with open_folder(path) as fd:
            for _ in range(_TICKS):
                mtime, found = _moment(fd)
                if not is_start or found.end == found.ns or mtime < found.ns:
                    break
                time.sleep(0.001)
            return found
    except OSError:
        return _by_own_clock()


def _moment(fd: int) -> tuple[int, FileTime]:
    """Return the folder's mtime, and its ctime after its times were set to what they are.

    They are set twice: since Linux 6.13, a file whose times were read gets a finer time at its next change, and later
    changes get no earlier time.
    """
    before = os.fstat(fd)
    os.utime(fd, ns=(before.st_atime_ns, before.st_mtime_ns))
    first = os.fstat(fd).st_ctime_ns
    os.utime(fd, ns=(before.st_atime_ns, before.st_mtime_ns))
    last = os.fstat(fd).st_ctime_ns
    if last == before.st_ctime_ns and abs(last - time.time_ns()) > _OTHER_CLOCK:
        return 0, _by_own_clock()  # the file system has no ctime
    return before.st_mtime_ns, FileTime(last, last if last > first else last + 1)


def _by_own_clock() -> FileTime:
    now = time.time_ns()
    return FileTime(now - _COARSEST, now + _COARSEST, is_known=False)


def changed(path: Path, began: FileTime, ended: FileTime, limit: int) -> tuple[list[tuple[str, int, bool]], bool]:
    """Return the regular files that changed between two moments, and whether the list is complete.

    Each has its name, its size, and whether it was made between them. A file that changed again after `ended` is left
    out if it existed before `began`. Files in a moved folder count as changed: such a folder has changed without a new
    entry in it. At most `limit` entries are looked at.
    """
    files: list[tuple[str, int, bool]] = []
    is_complete, moved = began.is_known and ended.is_known, ""
    try:
        with open_folder(path) as top:
            for looked_at, (name, facts, fd) in enumerate(walk(top, "", MAX_DEPTH)):
                if looked_at >= limit:
                    return files, False
                moved = moved if name.startswith(moved) else ""
                if not moved and facts.st_ctime_ns < began.ns:
                    continue
                if stat.S_ISDIR(facts.st_mode) and facts.st_mtime_ns < began.ns:
                    moved = moved or f"{name}/"
                if stat.S_ISREG(facts.st_mode):
                    made = birth_time(fd, name.rpartition("/")[2], facts)
                    is_new = made is not None and made >= began.ns
                    if facts.st_ctime_ns < ended.end or (is_new and made is not None and made < ended.end):
                        files.append((readable(name), facts.st_size, is_new))
                    elif not is_new:
                        is_complete = False
    except OSError:
        is_complete = False
    return files, is_complete


def lift_deep(path: Path, levels: int) -> list[str]:
    """Move folders that lie deeper than `levels` to the top, under free names; return these names.

    A folder that is too deep to be walked and deleted is so divided into several that can be.
    """
    lifted: list[str] = []
    with contextlib.suppress(OSError), open_folder(path) as top:
        taken = set(os.listdir(top))
        names = (name for number in itertools.count(1) if (name := f"deep-{number}") not in taken)
        _lift(top, top, levels, lifted, names)
        for each in lifted:  # a move may add more
            with contextlib.suppress(OSError), open_folder(each, top) as fd:
                _lift(fd, top, levels - 1, lifted, names)
    return lifted


def _lift(fd: int, top: int, depth: int, lifted: list[str], names: Iterator[str]) -> None:
    with os.scandir(fd) as entries:
        folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    for name in folders:
        with contextlib.suppress(OSError):
            if depth:
                with open_folder(name, fd) as inner:
                    _lift(inner, top, depth - 1, lifted, names)
            else:
                free_name = next(names)
                os.rename(name, free_name, src_dir_fd=fd, dst_dir_fd=top)
                lifted.append(free_name)


@contextlib.contextmanager
def opened(path: Path, name: str) -> Iterator[BinaryIO | None]:
    """Open a regular file to read; None if no file has that name."""
    with contextlib.ExitStack() as stack:
        file = None
        with contextlib.suppress(OSError):
            file = stack.enter_context(reading(path, name))
        yield file


@contextlib.contextmanager
def reading(path: Path, name: str) -> Iterator[BinaryIO]:
    """Open a regular file to read. Raises OSError: it cannot be read, or is something else, such as a link."""
    with open_parent(path, name) as (fd, last):
        found = os.open(last, OPEN_FILE, dir_fd=fd)
        if not stat.S_ISREG(os.fstat(found).st_mode):  # checked first: a file object of a folder cannot be made
            os.close(found)
            raise OSError(errno.EINVAL, "not a regular file", name)
        with os.fdopen(found, "rb") as file:
            yield file


def facts_of(file: BinaryIO) -> Facts:
    """Return the facts of an open file."""
    return _facts(os.fstat(file.fileno()))


def delete(path: Path, name: str, known: Facts) -> None:
    """Delete a file if it is still the known one; a missing file is not an error."""
    with contextlib.suppress(OSError), open_parent(path, name) as (fd, last):
        if _facts(os.stat(last, dir_fd=fd, follow_symlinks=False)) == known:
            os.unlink(last, dir_fd=fd)


def replace(path: Path, name: str, chunks: Iterator[bytes], owner: tuple[int, int]) -> Facts:
    """Write a file and atomically replace the one of its name; return the facts of the new file.

    Raises:
        OSError: the disk is full, or a folder that is not empty has the name.
    """
    with replacing(path, name, owner, 0o644) as file:
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        return facts_of(file)


@contextlib.contextmanager
def replacing(path: Path, name: str, owner: tuple[int, int], mode: int) -> Iterator[BinaryIO]:
    """Open a new file that replaces the one of its name once it is written. Folders on the way are made.

    Raises:
        OSError: the disk is full, or a folder that is not empty has the name.
    """
    with open_parent(path, name, make=True, owner=owner) as (fd, last):
        temporary = f".{uuid.uuid4().hex}.part"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(temporary, flags, mode, dir_fd=fd), "wb") as file:
                yield file
                file.flush()
                if os.getuid() == 0:
                    os.fchown(file.fileno(), *owner)
            _remove_empty_folder(fd, last, MAX_DEPTH)
            os.replace(temporary, last, src_dir_fd=fd, dst_dir_fd=fd)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=fd)
            raise


def free(path: Path) -> int:
    """Return the free bytes of the folder's file system."""
    with contextlib.suppress(OSError):
        facts = os.statvfs(path)
        return facts.f_bavail * facts.f_frsize
    return 2**63


def _facts(found: os.stat_result) -> Facts:
    return found.st_size, found.st_mtime_ns, found.st_ino


def _remove_empty_folder(fd: int, name: str, depth: int) -> None:
    """Remove a folder that holds only empty folders; leave files, and folders with other contents."""
    with contextlib.suppress(OSError):
        with open_folder(name, fd) as inner:
            for entry in os.listdir(inner) if depth else ():
                _remove_empty_folder(inner, entry, depth - 1)
        os.rmdir(name, dir_fd=fd)


def walk(fd: int, prefix: str, depth: int, *, unlocks: bool = False) -> Iterator[tuple[str, os.stat_result, int]]:
    """Yield every entry below an open folder, with its lstat result and a descriptor of its parent.

    A folder is followed by its contents. Entries that vanish or cannot be read are skipped; with `unlocks`, folders are
    made readable for their owner first.
    """
    with os.scandir(fd) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                facts = entry.stat(follow_symlinks=False)
                yield prefix + entry.name, facts, fd
                if stat.S_ISDIR(facts.st_mode) and depth:
                    inner = open_unlocked(entry.name, fd) if unlocks else os.open(entry.name, OPEN_DIR, dir_fd=fd)
                    try:
                        yield from walk(inner, f"{prefix}{entry.name}/", depth - 1, unlocks=unlocks)
                    finally:
                        os.close(inner)


def sockets(fd: int) -> Iterator[tuple[str, os.stat_result, int]]:
    """Yield the sockets below an open folder, as `walk` does: first those in the folder itself, then all.

    Each search looks at MAX_SOCKET_SEARCH entries.
    """
    for depth in (0, MAX_LEVELS):
        for name, facts, parent in itertools.islice(walk(fd, "", depth), MAX_SOCKET_SEARCH):
            if stat.S_ISSOCK(facts.st_mode):
                yield name, facts, parent


def open_unlocked(name: Path | str, dir_fd: int | None) -> int:
    """Return a descriptor of a folder; one that its owner may not read gets all permissions for the owner first.

    Raises:
        OSError: it is not a folder, or the caller may not open it.
    """
    try:
        return os.open(name, OPEN_DIR, dir_fd=dir_fd)
    except PermissionError:
        unlock(name, dir_fd=dir_fd)
        return os.open(name, OPEN_DIR, dir_fd=dir_fd)


def unlock(name: Path | str, *, dir_fd: int | None) -> None:
    """Give a folder's owner all permissions, on Linux by a descriptor that needs none. Raises OSError."""
    if not IS_LINUX:
        os.chmod(name, stat.S_IRWXU, dir_fd=dir_fd, follow_symlinks=False)
        return
    with open_folder(name, dir_fd, PASS_DIR) as folder:
        os.chmod(f"/proc/self/fd/{folder}", stat.S_IRWXU)
