"""Claims on work_dirs: which folders live sandboxes have, so that none is given one that lies inside another's.

Code may swap whatever lies in its own folder for a link, also between our look at a path and the engine's mount of it.
So a folder is refused when the way to it leads through one that a live sandbox has, or when it holds one.

A claim is a file beside the run directories, named for its process: it counts for all processes that share these, and
no longer than its process lives. It is written before others are read, so that of two at the same time at least one
sees the other.
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
from agent_tools.machine.folder import Identity, folders_passed
from agent_tools.machine.owner import CLAIM, Owner, owner_is_gone
from agent_tools.machine.private_base import private_base
from agent_tools.settings import runtime_dir

_PART = ".part"  # of a claim that is being written


class Claim:
    """One live sandbox's work_dir, until released. Several sandboxes may have the same one.

    Raises:
        InvalidParams: the folder lies in one that a live sandbox has, or holds one.
        EngineError: claims cannot be kept.
    """

    def __init__(self, work_dir: Path) -> None:
        self._path = private_base() / f"{CLAIM}{Owner.current().token}-{secrets.token_hex(4)}"
        try:
            passed = folders_passed(work_dir)
            _write(self._path, passed)
            for theirs in _others(self._path.parent, self._path.name):
                _refuse_inside(work_dir, passed, theirs)
                _refuse_around(work_dir, passed, theirs)
        except OSError as exc:
            self.release()
            raise EngineError(f"work_dir {work_dir} cannot be claimed in {self._path.parent}: {exc.strerror}.") from exc
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Give the folder up."""
        self._path.unlink(missing_ok=True)


def _write(path: Path, passed: tuple[Identity, ...]) -> None:
    """Write a claim in one step: nobody finds half of it."""
    unfinished = path.with_suffix(_PART)
    unfinished.write_text(json.dumps(passed))
    unfinished.rename(path)


def refuse_held(path: Path) -> None:
    """Refuse to make or use a folder inside the work_dir of a live sandbox.

    Raises:
        InvalidParams: it lies in one.
    """
    passed = folders_passed(path)
    with contextlib.suppress(FileNotFoundError):  # nobody has ever claimed anything
        for theirs in _others(runtime_dir()):
            _refuse_inside(path, passed, theirs)


def is_claimed(folder: Identity) -> bool:
    """Return whether a live sandbox has this folder, or one in it."""
    with contextlib.suppress(FileNotFoundError):
        return any(folder in theirs for theirs in _others(runtime_dir()))
    return False


def _others(base: Path, own: str = "") -> Iterator[list[Identity]]:
    """The folders on the way to each live sandbox's work_dir, which is the last of them."""
    is_gone = functools.cache(owner_is_gone)
    names = os.listdir(base)
    if len(_known) > 2 * len(names) + _FEW:
        _known.clear()
    for name in names:
        if name.startswith(CLAIM) and not name.endswith(_PART) and name != own and not is_gone(name.rpartition("-")[0]):
            with contextlib.suppress(FileNotFoundError, ValueError):  # released meanwhile; or broken, with its disk
                yield _read(f"{base}/{name}")


_known: dict[str, list[Identity]] = {}  # by path: a claim never changes, and its name comes only once
_FEW = 64


def _read(path: str) -> list[Identity]:
    if (passed := _known.get(path)) is None:
        with open(path, "rb") as file:
            passed = _known[path] = [(device, inode) for device, inode in json.loads(file.read())]
    return passed


def _refuse_inside(work_dir: Path, passed: tuple[Identity, ...], theirs: list[Identity]) -> None:
    if theirs[-1] in passed[:-1]:
        raise InvalidParams(
            f"work_dir {work_dir} lies inside the work_dir of a live sandbox, whose code could bend the way to it. "
            "Give a folder beside that one, or close that sandbox first."
        )


def _refuse_around(work_dir: Path, passed: tuple[Identity, ...], theirs: list[Identity]) -> None:
    if passed[-1] in theirs[:-1]:
        raise InvalidParams(
            f"work_dir {work_dir} holds the work_dir of a live sandbox, the way to which its code could then bend. "
            "Give a folder beside that one, or close that sandbox first."
        )
