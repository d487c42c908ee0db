"""Other people's code, cut into cells: repositories at fixed commits, taken out of git folders that lie ready."""

from __future__ import annotations

import fnmatch
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST = Path(__file__).with_name("corpus.json")


@dataclass(frozen=True)
class Repository:
    """A repository at one commit. `cells` are patterns of its notebooks and scripts."""

    name: str
    commit: str
    year: int = 0
    licence: str = ""
    cells: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """Its name as the name of a folder."""
        return self.name.replace("/", "+")


@dataclass(frozen=True)
class Cell:
    """A piece of code that is run in one call. `is_meant_to_fail`: it failed when its author ran it, too."""

    code: str
    is_meant_to_fail: bool = False


@dataclass(frozen=True)
class Notebook:
    """Cells that share a kernel. `path` is relative to its repository."""

    repository: Repository
    path: str
    cells: tuple[Cell, ...]


def repositories() -> list[Repository]:
    """Return the corpus's repositories, as the manifest has them."""
    entries = json.loads(MANIFEST.read_text())["repositories"]
    return [Repository(**{**entry, "cells": tuple(entry["cells"])}) for entry in entries]


def data_folder() -> tuple[Repository, str]:
    """Return the repository of data sets that seaborn would download, and the folder in which they are put."""
    entry = json.loads(MANIFEST.read_text())["data"]
    return Repository(entry["name"], entry["commit"]), entry["folder"]


def extract(git_folders: Path, repository: Repository, target: Path) -> None:
    """Write a repository's files below `target`, for any user to change. Its git folder is `<owner>+<name>[/repo]`.

    A file that a clone lists and does not have (some keep large ones elsewhere) is left out.
    """
    git = ("git", "-C", str(git_folder(git_folders / repository.folder)))
    listing = subprocess.run([*git, "ls-tree", "-rz", repository.commit], capture_output=True, text=True, check=True)
    entries = [line.split("\t", 1) for line in listing.stdout.split("\0") if line]
    blobs = {path: head.split()[2] for head, path in entries if head.startswith("100")}
    asked = "\n".join(blobs.values()).encode() + b"\n"
    answer = subprocess.run([*git, "cat-file", "--batch"], input=asked, stdout=subprocess.PIPE, check=True).stdout
    for path, content in zip(blobs, _contents(answer)):
        if content is not None:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).write_bytes(content)
    for folder, _, files in os.walk(target):
        os.chmod(folder, 0o777)
        for name in files:
            os.chmod(os.path.join(folder, name), 0o666)


def _contents(answer: bytes) -> Iterator[bytes | None]:
    """Read what `git cat-file --batch` answers, object by object; None for one that is missing."""
    place = 0
    while place < len(answer):
        end = answer.index(b"\n", place)
        head = answer[place:end].split()
        place = end + 1
        if head[-1] == b"missing":
            yield None
            continue
        size = int(head[2])
        yield answer[place : place + size]
        place += size + 1


def git_folder(top: Path) -> Path:
    """Return the git folder of a clone, however it was laid: with a work tree, bare, or one folder further down."""
    for candidate in (top / "repo" / ".git", top / "repo", top / ".git", top):
        if (candidate / "HEAD").exists():
            return candidate
    raise SystemExit(f"{top}: no git folder there; clone the repository first")


def notebooks_of(repository: Repository, folder: Path) -> Iterator[Notebook]:
    """Yield the notebooks and scripts of an extracted repository that have code."""
    paths = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    for path in (path for path in paths if _is_wanted(path, repository.cells)):
        text = (folder / path).read_text(encoding="utf-8", errors="replace")
        cells = tuple(cells_of(json.loads(text))) if path.endswith(".ipynb") else (Cell(text),)
        if cells:
            yield Notebook(repository, path, cells)


def _is_wanted(path: str, patterns: tuple[str, ...]) -> bool:
    """Return True if a pattern fits; a star stands for one name, not for folders."""
    parts = path.split("/")
    split = (pattern.split("/") for pattern in patterns)
    return any(len(each) == len(parts) and all(map(fnmatch.fnmatchcase, parts, each)) for each in split)


def cells_of(notebook: dict[str, Any]) -> Iterator[Cell]:
    """Yield a notebook's cells of Python that are not blank (nbformat 3 and 4)."""
    for sheet in notebook.get("worksheets") or (notebook,):
        for cell in sheet["cells"]:
            code = "".join(cell.get("source", cell.get("input", "")))
            if cell["cell_type"] == "code" and code.strip() and cell.get("language", "python") == "python":
                failed = any(output.get("output_type") in ("error", "pyerr") for output in cell.get("outputs", ()))
                yield Cell(code, failed)
