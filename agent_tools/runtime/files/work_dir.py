"""Check which folders may be given to untrusted code as work_dir."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import os
import re
import secrets
import socket
import stat
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

from agent_tools.engines.engine import Guest
from agent_tools.errors import EngineError, InvalidParams
from agent_tools.machine.folder import OPEN_DIR
from agent_tools.machine.guest_ids import GUEST_UIDS, hand_over
from agent_tools.machine.machine import IS_LINUX
from agent_tools.machine.owner import CLAIM, Owner, owner_is_gone
from agent_tools.machine.path_walk import Identity, folders_passed, identity
from agent_tools.machine.private_folder import opened_own, private_base
from agent_tools.machine.removal import remove_tree
from agent_tools.machine.unsafe_folders import objection
from agent_tools.settings import runtime_dir

MAX_ENTRIES_LOOKED_AT = 10_000


def prepare_work_dir(path: Path, guest: Guest) -> Path:
    """Make and check a work_dir, and give it to the guest; return its absolute path.

    Raises:
        InvalidParams: the folder is not safe for untrusted code.
    """
    path = Path("/" + os.path.abspath(os.path.expanduser(path)).lstrip("/"))  # POSIX lets abspath keep "//"
    try:
        _refuse_unsafe(path)
        refuse_claimed(path)
        is_new = _make(path)
        fd = os.open(path, OPEN_DIR)
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or exc
        raise InvalidParams(f"work_dir {str(path)!r} cannot be used: {reason}. Give a folder of your own.") from exc
    try:
        _refuse_sockets(fd, path, guest)
        if os.getuid() == 0:
            hand_over(fd, guest.outside)
        if is_new:
            note_made(path, identity(fd))
    finally:
        os.close(fd)
    return path


def _make(path: Path) -> bool:
    """Make a folder if there is none of this name; return whether it was made."""
    try:
        path.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        return False
    return True


def _refuse_unsafe(path: Path) -> None:
    if reason := objection(path):
        raise InvalidParams(f"work_dir {path} {reason}; untrusted code may not have it. Give another folder.")
    if path.exists() and not path.is_dir():
        raise InvalidParams(f"work_dir {path} is not a folder. Give another one.")


def _refuse_sockets(fd: int, path: Path, guest: Guest) -> None:
    former = os.fstat(fd).st_uid
    guests = {guest.outside[0], *([former] if former in GUEST_UIDS else [])}
    with os.scandir(fd) as entries:
        for entry in itertools.islice(entries, MAX_ENTRIES_LOOKED_AT):
            with contextlib.suppress(OSError):
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISSOCK(found.st_mode) and not _is_left_by(guests, fd, entry.name, found.st_uid):
                    raise InvalidParams(
                        f"work_dir {path} holds a socket ({entry.name!r}), through which code could leave the "
                        "sandbox. Give another folder, or remove the socket."
                    )


def _is_left_by(guests: set[int], fd: int, name: str, owner: int) -> bool:
    """Return whether a socket was certainly left by code; if the guest has this user's uid, a dead one was."""
    return owner in guests and (owner != os.getuid() or not _is_listened_on(fd, name))


def _is_listened_on(fd: int, name: str) -> bool:
    """Return whether a process has this socket open; True if this is not known."""
    if not IS_LINUX:
        return True
    try:
        with contextlib.ExitStack() as stack:
            found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            stack.callback(os.close, found)
            asking = stack.enter_context(socket.socket(socket.AF_UNIX))
            asking.setblocking(False)
            asking.connect(f"/proc/self/fd/{found}")
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except OSError:
        return True
    return True


# Claims on work_dirs record the folders of live sandboxes, so that no sandbox gets a folder inside another's.
#
# Code may replace an entry of its own folder by a link at any time, even between the check of a path and the engine's
# mount of it. So a folder is refused if its path passes through a live sandbox's folder, or if it holds one.
#
# A claim is a file beside the run directories, named after its process: it is valid for all processes that share them,
# as long as its process lives. A process writes its claim before it reads others, so that of two at the same time at
# least one sees the other.


_PART = ".part"  # suffix of a claim that is being written


class Claim:
    """One live sandbox's work_dir, until released. Several sandboxes may have the same one.

    Raises:
        InvalidParams: the folder lies in a live sandbox's folder, or holds one.
        EngineError: claims cannot be written.
    """

    def __init__(self, work_dir: Path, noun: str = "work_dir") -> None:
        self._path = private_base() / f"{CLAIM}{Owner.current().token}-{secrets.token_hex(4)}"
        try:
            passed = folders_passed(work_dir)
            _write(self._path, passed)
            for theirs in _others(self._path.parent, self._path.name):
                _refuse_inside(work_dir, passed, theirs, noun)
                _refuse_around(work_dir, passed, theirs, noun)
        except OSError as exc:
            self.release()
            raise EngineError(f"{noun} {work_dir} cannot be claimed in {self._path.parent}: {exc.strerror}.") from exc
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release the folder."""
        self._path.unlink(missing_ok=True)


def _write(path: Path, passed: tuple[Identity, ...]) -> None:
    """Write a claim atomically."""
    unfinished = path.with_suffix(_PART)
    unfinished.write_text(json.dumps(passed))
    unfinished.rename(path)


def refuse_claimed(path: Path, noun: str = "work_dir") -> None:
    """Check that a folder is not inside one that the code of a live sandbox writes to.

    Raises:
        InvalidParams: it is.
    """
    passed = folders_passed(path)
    with contextlib.suppress(FileNotFoundError):  # there has never been a claim
        for theirs in _others(runtime_dir()):
            _refuse_inside(path, passed, theirs, noun)


def is_claimed(folder: Identity) -> bool:
    """Return whether a live sandbox has this folder, or one in it."""
    with contextlib.suppress(FileNotFoundError):
        return any(folder in theirs for theirs in _others(runtime_dir()))
    return False


def _others(base: Path, own: str = "") -> Iterator[list[Identity]]:
    """Return the folders on the path of each live sandbox's work_dir, which is the last."""
    is_gone = functools.cache(owner_is_gone)
    names = os.listdir(base)
    if len(_known) > 2 * len(names) + _FEW:
        _known.clear()
    for name in names:
        if name.startswith(CLAIM) and not name.endswith(_PART) and name != own and not is_gone(name.rpartition("-")[0]):
            with contextlib.suppress(FileNotFoundError, ValueError):  # released meanwhile; or broken, with its disk
                yield _read(f"{base}/{name}")


_known: dict[str, list[Identity]] = {}  # by path: a claim never changes, and its name is never reused
_FEW = 64


def _read(path: str) -> list[Identity]:
    if (passed := _known.get(path)) is None:
        with open(path, "rb") as file:
            passed = _known[path] = [(device, inode) for device, inode in json.loads(file.read())]
    return passed


def _refuse_inside(work_dir: Path, passed: tuple[Identity, ...], theirs: list[Identity], noun: str) -> None:
    if theirs[-1] in passed[:-1]:
        raise InvalidParams(
            f"{noun} {work_dir} lies inside a folder of a live sandbox, whose code could redirect its path. "
            "Give a folder beside that one, or close that sandbox first."
        )


def _refuse_around(work_dir: Path, passed: tuple[Identity, ...], theirs: list[Identity], noun: str) -> None:
    if passed[-1] in theirs[:-1]:
        raise InvalidParams(
            f"{noun} {work_dir} holds a folder of a live sandbox, the way to which its code could then bend. "
            "Give a folder beside that one, or close that sandbox first."
        )


# The work_dirs that this process made and no sandbox has used yet; no other process knows them.


MOST = 1_000  # folders that are remembered, the newest

_lock = threading.Lock()
_made: OrderedDict[tuple[str, Identity], None] = OrderedDict()


def note_made(folder: Path, identity: Identity) -> None:
    """Remember a folder that was just made."""
    with _lock:
        _made[str(folder), identity] = None
        while len(_made) > MOST:
            _made.popitem(last=False)


def is_made_here(folder: Path, identity: Identity) -> bool:
    """Return whether this process made this folder and still remembers it."""
    with _lock:
        return (str(folder), identity) in _made


def forget_made(folder: Path) -> None:
    """Forget a folder that a sandbox has now."""
    with _lock:
        for known in [each for each in _made if each[0] == str(folder)]:
            del _made[known]


# A temporary work_dir for a sandbox without a configured one, named after the process that owns it.
#
# <temporary folder>/agent-tools-<pid>-<start time>-<host>-<random>

_PREFIX = "agent-tools-"
_NAME = re.compile(rf"{_PREFIX}(\d+-\d+)-([0-9a-f]{{8}})-\w+")


def make_temp_work_dir() -> Path:
    """Make a fresh folder that only this user may enter.

    Raises:
        OSError: the disk is full.
    """
    owner = Owner.current()
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{owner.token}-{_mark(owner)}-"))
    note_made(folder, identity(folder))
    return folder


def remove_stale_temp_work_dirs() -> list[Path]:
    """Delete the folders of processes that are gone, normally killed ones; return their paths.

    Others may write to their parent: only folders of this user, or of this user's guests, and of this host are removed.
    """
    base, mark, removed = tempfile.gettempdir(), _mark(Owner.current()), []
    with contextlib.suppress(OSError), os.scandir(base) as entries:
        for entry in list(entries):
            name = _NAME.fullmatch(entry.name)
            if name and name[2] == mark and owner_is_gone(name[1]) and _is_ours(entry):
                remove_tree(entry.path)
                removed.append(Path(entry.path))
    return removed


def _is_ours(entry: os.DirEntry[str]) -> bool:
    """Return whether a folder belongs to this user, or root gave it to a guest."""
    with contextlib.suppress(OSError):
        uid = entry.stat(follow_symlinks=False).st_uid
        is_given = os.getuid() == 0 and uid in GUEST_UIDS
        return entry.is_dir(follow_symlinks=False) and (uid == os.getuid() or is_given)
    return False


def _mark(owner: Owner) -> str:
    """A short id of the host: hosts may share a temporary folder but cannot see each other's processes."""
    return hashlib.sha256(owner.host.encode()).hexdigest()[:8]


# The empty folder of a pre-warmed sandbox, which becomes a session's work_dir by a rename.
#
# It lies beside the work_dirs that it is for, since a rename does not leave its file system. A record in the private
# folder of this user names it, so that any process finds and removes the blanks of processes that were killed.
#
#     <folder>/.agent-tools-blank-<pid>-<start time>-<random>
#     <runtime dir>/blank-<pid>-<start time>-<random>            holds the path of the folder


_FOLDER = ".agent-tools-blank-"
_RECORD = "blank-"
_RECORD_NAME = re.compile(rf"{_RECORD}(\d+-\d+)-[0-9a-f]{{16}}")


class EmptyWorkDir:
    """An empty folder, owned by its guest.

    It becomes a work_dir or is removed; then `forget` and `remove` have no effect.

    Raises:
        InvalidParams: folders of guests may not lie in `folder`.
        EngineError: records cannot be kept.
        OSError: there is no room for it.
    """

    def __init__(self, folder: Path, guest_of: Callable[[Path], Guest]) -> None:
        name = f"{Owner.current().token}-{secrets.token_hex(8)}"
        path = Path(os.path.abspath(folder)) / f"{_FOLDER}{name}"
        self._record = private_base() / f"{_RECORD}{name}"
        self._record.write_bytes(os.fsencode(path))  # first, so that no end of this process leaves an unknown folder
        try:
            self.path = prepare_work_dir(path, guest_of(path))
        except BaseException:
            _remove(path)
            self.forget()
            raise

    def forget(self) -> None:
        """Drop the record of a folder that a session has now."""
        self._record.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder if it still exists under its name and is empty, as before a session gets it."""
        _remove(self.path)
        self.forget()


def remove_stale_empty_work_dirs() -> list[Path]:
    """Delete empty folders of processes that are gone; return their paths."""
    base, removed = runtime_dir(), []
    with contextlib.suppress(OSError), opened_own(base) as folder:
        for record in os.listdir(folder):
            name = _RECORD_NAME.fullmatch(record)
            if name and owner_is_gone(name[1]):
                path = Path(os.fsdecode((base / record).read_bytes()))
                if path.name == f"{_FOLDER}{record.removeprefix(_RECORD)}":
                    _remove(path)
                    removed.append(path)
                os.unlink(record, dir_fd=folder)
    return removed


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(path)
