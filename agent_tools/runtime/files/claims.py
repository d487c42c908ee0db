"""Claims on work_dirs record the folders of live sandboxes, so that no sandbox gets a folder inside another's.

User code may replace an entry of its own folder by a link at any time, even after a path was checked and before the
engine mounts it. So a folder is rejected if it lies inside a live sandbox's folder, or contains one.

A claim is a file beside the run directories, which other processes read. Its name contains the process that wrote it,
and it is valid while that process lives. A process writes its own claim before it reads the others: if two processes
claim at the same time, at least one sees the other's claim.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from agent_tools.errors import EngineError, InvalidParams
from agent_tools.machine.owner import CLAIM, Owner, owner_is_gone
from agent_tools.machine.path_walk import Identity, folders_passed
from agent_tools.machine.private_folder import private_base
from agent_tools.settings import runtime_dir

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
