"""The host's access to work_dir: stages files, saves figures, and finds changes. Its contents are untrusted.

Every access is relative to an open descriptor of the folder, follows no link and waits for no FIFO; new files are
created exclusively, so existing files are never replaced, deleted or written through.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import itertools
import os
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

from agent_tools.engines.guest import Guest
from agent_tools.errors import FileRejected, InvalidParams
from agent_tools.limits import Limits
from agent_tools.machine.folder import (
    OPEN_FILE,
    FileTime,
    changed,
    last_figure,
    moment,
    numbered,
    open_folder,
    open_parent,
    safe_name,
)
from agent_tools.machine.guest_ids import owner_of
from agent_tools.machine.path_walk import parts_below
from agent_tools.results.execution import Changes, FileChange, StagedFile

MAX_FILES = 100  # staged in one call
CHUNK_BYTES = 256 * 1024  # bytes of a file that are read at once
MAX_NAMES = 5  # entries listed of a folder in which a file is missing
MAX_TRIES = 100_000  # names to try for a figure


@dataclass
class Workspace:
    """One work_dir of one tool instance; remembers what it has staged."""

    path: Path
    guest: Guest
    limits: Limits
    allow_private_urls: bool = False
    last_changes: Callable[[], Changes | None] = lambda: None
    """Returns the changes of the last run, if its execution still exists."""
    _staged: dict[tuple[object, ...], str] = field(default_factory=dict)
    _written: set[str] = field(default_factory=set)
    _figures: dict[str, int] = field(default_factory=dict)

    def stage(self, sources: Sequence[str]) -> tuple[StagedFile, ...]:
        """Copy files in: local paths, file:// and http(s) URLs. Failures are in the result, not raised.

        An unchanged source is not copied again, and a copy that the code has edited since stays as it is. If a name
        exists, a number is added.
        """
        if len(sources) > MAX_FILES:
            raise InvalidParams(
                f"{len(sources)} files are more than {MAX_FILES} in one call: copy the others with further calls."
            )
        return tuple(self._stage_one(source) for source in sources)

    def unstage(self, name: str) -> None:
        """Remove a file that `stage` copied in. A file that existed before stays."""
        if name in self._written:
            self._written.discard(name)
            with contextlib.suppress(OSError), open_folder(self.path) as dir_fd:
                os.unlink(name, dir_fd=dir_fd)

    def settle(self) -> None:
        """Find the changes of the last run, if they can still be requested, before the folder is emptied."""
        if changes := self.last_changes():
            changes.look()

    def save_picture(self, data: bytes, suffix: str, folder: Path | None = None) -> str:
        """Write a picture as figure-001.png, or with the next number that is free, and return its path.

        Raises:
            FileRejected: the disk is full or the folder is gone.
        """
        target, first = folder or self.path, f"figure-{1:03d}{suffix}"
        if ".." in target.parts:  # by the name in work_dir's own path: links before it do not matter
            target = Path(os.path.abspath(target))
        try:
            inside = parts_below(target, self.path)
            if inside is None:
                target.mkdir(parents=True, exist_ok=True)
            top, names = (target, (first,)) if inside is None else (self.path, (*inside, first))
            with open_parent(top, "/".join(names), make=True) as (dir_fd, _):
                name = self._write_figure(dir_fd, str(target), data, suffix)
        except OSError as exc:
            raise FileRejected(f"a picture could not be saved: {exc.strerror}") from exc
        return str(target / name)

    def _stage_one(self, source: str) -> StagedFile:
        shown = _shown(source)
        try:
            if is_url(source):
                return self._stage_url(source, shown)
            return self._stage_path(_local_path(source), shown)
        except FileRejected as exc:
            return StagedFile(shown, None, error=str(exc))
        except (OSError, ValueError) as exc:
            reason = getattr(exc, "strerror", None) or "the name is not usable"
            return StagedFile(shown, None, error=str(reason).lower())

    def _stage_url(self, url: str, shown: str) -> StagedFile:
        key = ("url", url)
        if key in self._staged and self._still_has(self._staged[key]):
            name = self._staged[key]
            return StagedFile(shown, name, is_renamed=name != _last_part(shown))
        from agent_tools.runtime.files.download import open_url  # loads urllib3

        download = open_url(url, self.limits, self.allow_private_urls)
        wanted = safe_name(download.name)
        with open_folder(self.path) as dir_fd:
            name = self._write_new(dir_fd, wanted, download.chunks)
        self._staged[key] = name
        return StagedFile(shown, name, is_renamed=name != _last_part(shown))

    def _stage_path(self, path: Path, shown: str) -> StagedFile:
        path = Path(os.path.abspath(path))
        inside = self._name_inside(path)
        if inside is not None:
            return StagedFile(shown, inside)
        with _regular_file(path, self.limits) as (fd, facts):
            key = ("path", facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns)
            if key not in self._staged or not self._still_has(self._staged[key]):
                self._staged[key] = self._copy(fd, safe_name(path.name))
        name = self._staged[key]
        return StagedFile(shown, name, is_renamed=name != path.name)

    def _still_has(self, name: str) -> bool:
        """Return whether a staged file is still there as a file; the code may have deleted it."""
        try:
            with open_folder(self.path) as fd:
                return stat.S_ISREG(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
        except OSError:
            return False

    def _name_inside(self, path: Path) -> str | None:
        """Return the name of a source that already lies in work_dir, which is used without a copy.

        Work_dir is recognised on any path to it; below it, links belong to the guest.
        """
        parts = parts_below(path, self.path)
        if not parts:
            return None
        relative = "/".join(parts)
        with open_parent(self.path, relative) as (fd, last):
            if not stat.S_ISREG(os.stat(last, dir_fd=fd, follow_symlinks=False).st_mode):
                raise FileRejected("it is not a regular file")
        return relative

    def _copy(self, source_fd: int, wanted: str) -> str:
        with open_folder(self.path) as dir_fd:
            if _same_content(source_fd, dir_fd, wanted):
                return wanted
            os.lseek(source_fd, 0, os.SEEK_SET)
            return self._write_new(dir_fd, wanted, iter(lambda: os.read(source_fd, CHUNK_BYTES), b""))

    def _write_new(self, dir_fd: int, wanted: str, chunks: Iterator[bytes]) -> str:
        """Write under the wanted name, or with the first number that is free."""
        for name in itertools.islice(numbered(wanted), 10_000):
            try:
                self._write(dir_fd, name, chunks, self.limits.max_file_bytes)
            except FileExistsError:
                continue
            self._written.add(name)
            return name
        raise FileRejected("no free name is left")

    def _write_figure(self, dir_fd: int, folder: str, data: bytes, suffix: str) -> str:
        """Write a figure under the next number that is free; the code or another tool may have used some."""
        last = self._figures.get(folder) or last_figure(dir_fd, self.limits.max_listed_entries)
        for number in range(last + 1, last + MAX_TRIES):
            name = f"figure-{number:03d}{suffix}"
            try:
                self._write(dir_fd, name, iter([data]), limit=len(data))
            except FileExistsError:
                continue
            self._figures[folder] = number
            return name
        raise FileRejected("a picture could not be saved: no free name is left")

    def _write(self, dir_fd: int, name: str, chunks: Iterator[bytes], limit: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o644, dir_fd=dir_fd)
        try:
            with os.fdopen(fd, "wb") as file:
                for chunk in chunks:
                    if file.tell() + len(chunk) > limit:
                        raise FileRejected(f"it is larger than {limit:,} bytes (max_file_bytes)")
                    file.write(chunk)
                file.flush()
                if os.getuid() == 0:
                    os.fchown(file.fileno(), *owner_of(self.path, self.guest.host_ids))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=dir_fd)  # made exclusively, so it is this process's own file
            raise


def watch_changes(path: Path, limits: Limits) -> Callable[[Collection[str]], Changes]:
    """Record that a run begins in a work_dir; return a function to call at its end, which returns the changes.

    It takes the names of files that the host replaced, which are not new although they were just made. Files are looked
    at only when the changes are read.
    """
    began = moment(path, is_start=True)

    def end(replaced: Collection[str]) -> Changes:
        return Changes(find=partial(_changes, path, limits, began, moment(path), frozenset(replaced)))

    return end


def _changes(path: Path, limits: Limits, began: FileTime, ended: FileTime, replaced: frozenset[str]) -> Changes:
    found, is_complete = changed(path, began, ended, limits.max_listed_entries)
    files = [FileChange(name, size, is_new and name not in replaced) for name, size, is_new in sorted(found)]
    return Changes(files, is_complete=is_complete)


def _shown(source: str) -> str:
    """Return a source in a form for a model: without a URL's credentials and query."""
    if not is_url(source):
        return source
    with contextlib.suppress(ValueError):
        parts = urlsplit(source)
        return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
    return "a URL"


def what_is_there(source: str) -> str:
    """Return a sentence on the folder of a missing file on the host; '' for a URL or an unreadable folder."""
    if is_url(source):
        return ""
    with contextlib.suppress(OSError, ValueError, FileRejected):
        path = Path(os.path.abspath(_local_path(source)))
        if not path.parent.is_dir():
            return f" There is no folder {path.parent}."
        if not os.path.lexists(path):
            names = sorted(os.listdir(path.parent))
            shown = difflib.get_close_matches(path.name, names, MAX_NAMES) or names[:MAX_NAMES]
            more = f" and {len(names) - len(shown):,} more" if len(names) > len(shown) else ""
            return f" In {path.parent} there is {', '.join(map(repr, shown)) or 'nothing'}{more}."
    return ""


def _last_part(shown: str) -> str:
    """Return the file name at the end of a URL."""
    return unquote(shown.rpartition("/")[2])


def _local_path(source: str) -> Path:
    if source.lower().startswith("file:"):
        return Path(unquote(urlsplit(source).path))
    if "://" in source:
        raise FileRejected("only paths, file://, http:// and https:// are known")
    return Path(os.path.expanduser(source))


@contextlib.contextmanager
def _regular_file(path: Path, limits: Limits) -> Iterator[tuple[int, os.stat_result]]:
    """Open a caller's own file without waiting for FIFOs or devices. The caller's links may be followed."""
    fd = os.open(path, OPEN_FILE & ~os.O_NOFOLLOW)
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise FileRejected("it is not a regular file")
        if facts.st_size > limits.max_file_bytes:
            raise FileRejected(f"it is larger than {limits.max_file_bytes:,} bytes (max_file_bytes)")
        yield fd, facts
    finally:
        os.close(fd)


def _same_content(source_fd: int, dir_fd: int, name: str) -> bool:
    """Return whether work_dir already has this content under this name, as from an earlier session."""
    try:
        fd = os.open(name, OPEN_FILE, dir_fd=dir_fd)
    except OSError:
        return False
    try:
        theirs, ours = os.fstat(fd), os.fstat(source_fd)
        return stat.S_ISREG(theirs.st_mode) and theirs.st_size == ours.st_size and _digest(fd) == _digest(source_fd)
    finally:
        os.close(fd)


def _digest(fd: int) -> bytes:
    digest = hashlib.sha256()
    os.lseek(fd, 0, os.SEEK_SET)
    while chunk := os.read(fd, CHUNK_BYTES):
        digest.update(chunk)
    return digest.digest()


def is_url(source: str) -> bool:
    """Return whether a source is fetched over HTTP."""
    return source.lower().startswith(("http://", "https://"))
