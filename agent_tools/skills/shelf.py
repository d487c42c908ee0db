"""The shelf: a folder with one copy of each skill, by its digest, which all sandboxes mount read-only.

A copy is written beside its place and renamed into it, so that it is there whole or not at all. A `Skill` keeps a
shared lock on its copy; a copy without a lock is removed once it is a day old.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import tempfile
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path

from agent_tools.errors import InvalidParams
from agent_tools.machine.folder import OPEN_DIR, open_folder
from agent_tools.machine.path_walk import identity, identity_now
from agent_tools.machine.removal import remove_tree
from agent_tools.skills.bundle import Bundle, read_folder, read_manifest
from agent_tools.skills.skill import MANIFEST, Manifest, Skill

log = logging.getLogger(__name__)
MAX_SKILLS = 50  # of one sandbox
UNUSED_SECONDS = 86_400.0  # after which a copy without a user is removed
_DIGEST = re.compile("[0-9a-f]{64}")
_PART = ".part-"  # how the name of a copy begins that is being written


class _Lock:
    """A shared lock on a copy, until it is garbage."""

    def __init__(self, copy: Path) -> None:
        self.fd = os.open(copy, OPEN_DIR)
        weakref.finalize(self, os.close, self.fd)
        fcntl.flock(self.fd, fcntl.LOCK_SH)
        os.utime(self.fd)


_locks: weakref.WeakValueDictionary[Path, _Lock] = weakref.WeakValueDictionary()


def shelved(paths: Iterable[str | os.PathLike[str]], root: Path) -> tuple[Skill, ...]:
    """Return the skills of folders, with their copies below `root`. A folder is a skill, or holds some.

    A `Skill` among them is taken as it is, and so is a copy below `root`. Of a folder of several, unusable ones are
    left out, with a warning in the log.

    Raises:
        InvalidParams: a folder has no usable skill; or two skills have one name.
    """
    found: dict[str, Skill] = {}
    root = Path(os.path.abspath(os.path.expanduser(root)))  # as engines need it
    for given in paths:
        for skill in (given,) if isinstance(given, Skill) else _read(Path(given), root):
            if skill.name in found:
                raise InvalidParams(f"Two skills are named {skill.name!r}: leave out one of them.")
            found[skill.name] = skill
    if len(found) > MAX_SKILLS:
        raise InvalidParams(f"There are {len(found)} skills: a sandbox may have {MAX_SKILLS}.")
    return tuple(found.values())


def folders_of(given: str | os.PathLike[str]) -> Sequence[Path]:
    """Return a skill's folder, or those in a folder of such.

    Raises:
        InvalidParams: it is neither.
    """
    folder = Path(given).expanduser().absolute()
    try:
        if _has_manifest(folder):
            return [folder]
        found = [each for each in sorted(folder.iterdir()) if each.is_dir() and _has_manifest(each)]
    except OSError as exc:
        raise InvalidParams(f"skills: {str(folder)!r} cannot be read: {exc.strerror}.") from exc
    if not found:
        raise InvalidParams(f"skills: {str(folder)!r} has no {MANIFEST}, and no folder in it has one.")
    return found


def put(bundle: Bundle, root: Path) -> Skill:
    """Return a skill with its copy below `root`, made if it is not there."""
    copy = root / bundle.digest
    return _locked(copy, bundle.manifest, partial(_write, bundle, copy))


def _locked(copy: Path, manifest: Manifest, make: Callable[[], object]) -> Skill:
    """Return a skill with a lock on its copy; as long as the copy is not there, `make` makes it, or raises an error."""
    lock = _locks.get(copy)
    while not lock or identity(lock.fd) != identity_now(copy):
        make()
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            lock = _locks[copy] = _Lock(copy)
            sweep(copy.parent)
    return Skill(**vars(manifest), folder=copy / manifest.name, lock=lock)


def _read(given: Path, root: Path) -> list[Skill]:
    copy = given.parent
    if copy.parent == root and _DIGEST.fullmatch(copy.name):
        try:
            return [_locked(copy, read_manifest((given / MANIFEST).read_bytes()), copy.lstat)]
        except FileNotFoundError as exc:
            raise InvalidParams(f"The copy of the skill {given.name!r} is gone: give its folder again.") from exc
    read = [_read_one(folder, root) for folder in folders_of(given)]
    skills = [each for each in read if isinstance(each, Skill)]
    errors = [each for each in read if isinstance(each, InvalidParams)]
    if not skills:
        raise errors[0]
    for error in errors:
        log.warning("%s It is left out.", error)
    return skills


def _read_one(folder: Path, root: Path) -> Skill | InvalidParams:
    """Return the skill in a folder, or why it cannot be used."""
    try:
        return put(read_folder(folder), root)
    except InvalidParams as exc:
        return InvalidParams(f"The skill in {str(folder)!r} is not usable. {exc}")
    except OSError as exc:
        raise InvalidParams(f"Skills cannot be copied to {str(root)!r}: {exc.strerror or exc}.") from exc


def _has_manifest(folder: Path) -> bool:
    return any(each.lower() == MANIFEST.lower() for each in os.listdir(folder))


def _write(bundle: Bundle, copy: Path) -> None:
    if copy.is_dir():
        return
    copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=_PART, dir=copy.parent))
    try:
        for path, file in bundle.files.items():
            target = part / bundle.manifest.name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.data)
            target.chmod(0o755 if file.is_executable else 0o644)
        for folder, _, _ in os.walk(part):
            os.chmod(folder, 0o755)  # noqa: S103  (the guest reads it; `root` is for its owner alone)
        os.rename(part, copy)
    except OSError:
        if not copy.is_dir():  # else another process was first
            raise
    finally:
        remove_tree(part)


def sweep(root: Path, used: Collection[str] = (), seconds: float = UNUSED_SECONDS) -> None:
    """Remove copies, and halves of some, that no process uses and that are so old; none of these digests."""
    for digest in used:
        with contextlib.suppress(FileNotFoundError):
            os.utime(root / digest)  # for other processes
    oldest = time.time() - seconds
    for entry in list(os.scandir(root)):
        with contextlib.suppress(OSError), open_folder(Path(entry)) as fd:
            if entry.name not in used and os.fstat(fd).st_mtime < oldest:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                gone = root / f"{_PART}{entry.name}"
                os.rename(entry, gone)
                remove_tree(gone)
