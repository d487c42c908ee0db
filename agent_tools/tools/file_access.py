"""Reads files of the host below one folder, for agents that may not run code."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Protocol

from agent_tools.errors import InvalidParams, ToolServiceError
from agent_tools.limits import MIB
from agent_tools.machine.folder import opened, safe_name, snapshot
from agent_tools.results.execution import StagedFile
from agent_tools.text import fence, neutralise, one_line
from agent_tools.tools.base import BaseTool, Config, Params
from agent_tools.tools.file_preview import preview
from agent_tools.tools.registry import register_tool

MAX_BYTES = 256 * MIB  # of the largest file that is read
MAX_LISTED = 50  # files named in a listing
_MAX_LOOKED_AT = 2_000  # entries of the folder read for a listing


class TakesFiles(Protocol):
    """A tool that takes files; `CodeInterpreter` is one."""

    def stage(self, files: Sequence[str] | None) -> tuple[StagedFile, ...]:
        """Bring files in; the result names those that failed."""
        ...


@register_tool("file_access")
class FileAccess(BaseTool):
    """Reads a file below a folder of the host: describes it to the model, and copies it to a code interpreter.

    Nothing outside the folder is ever opened: no absolute path, no `..`, no symbolic link on the way or at the end;
    and only regular files, no pipe or device. The file is opened once, and given on through the same descriptor.

    Options, in `cfg`:
        root: the folder; there is no default.
        max_bytes: the largest file that is read. Default 256 MiB.
        name_for_human, args_format: as for every tool.

    Args:
        cfg: the options.
        into: the code interpreter that gets the file; without one the file is only described.

    Raises:
        InvalidParams: an option is unknown or unusable.
    """

    description = (
        "Reads a file: describes its size, columns, types and first rows, and makes it available to the code "
        "interpreter. Without a path it lists the files."
    )
    parameters = {  # noqa: RUF012
        "type": "object",
        "properties": {"path": {"description": "The file's name, relative to the folder.", "type": "string"}},
        "required": [],
    }

    def __init__(self, cfg: Config | None = None, *, into: TakesFiles | None = None) -> None:
        super().__init__(cfg)
        if unknown := set(self.cfg) - {"name", "name_for_human", "args_format", "root", "max_bytes"}:
            raise InvalidParams(f"cfg has no option {sorted(unknown)[0]!r}. Known: root, max_bytes.")
        given = self.cfg.get("root")
        if not given or not Path(given).is_dir():
            raise InvalidParams(f"root={given!r} is not a folder: give the folder whose files may be read.")
        self.root = Path(os.path.realpath(given))
        self.max_bytes = int(self.cfg.get("max_bytes", MAX_BYTES))
        self._into = into

    def call(self, params: Params, **kwargs: Any) -> str:
        """Describe a file, and copy it into the sandbox.

        Raises:
            ToolServiceError: there is no such file, or it may not be read; the message holds no path of the host.
        """
        try:
            path = self._verify_json_format_args(params or "{}").get("path") or ""
        except ValueError as exc:
            raise InvalidParams(str(exc)) from exc
        if path in ("", "."):
            return self._listing()
        with self._open(_relative(path)) as file:
            size = os.fstat(file.fileno()).st_size
            if size > self.max_bytes:
                raise _refusal(f"{one_line(path)} has {size:,} bytes, more than {self.max_bytes:,} (max_bytes).")
            told = preview(file, PurePosixPath(path).name, size)
            return f"{told}\n\n{self._give(file, PurePosixPath(path).name)}".rstrip()

    @contextlib.contextmanager
    def _open(self, path: str) -> Iterator[BinaryIO]:
        with opened(self.root, path) as file:
            if file is None:
                raise _refusal(f"There is no file {one_line(path)} that may be read. {self._listing()}")
            yield file

    def _listing(self) -> str:
        found, is_whole = snapshot(self.root, _MAX_LOOKED_AT)
        names = sorted(found)
        lines = [f"{one_line(name)} ({found[name][0]:,} bytes)" for name in names[:MAX_LISTED]]
        more = "\n\nThere are more." if len(names) > MAX_LISTED or not is_whole else ""
        return f"There are these files:\n\n{fence(chr(10).join(lines))}{more}" if names else "There are no files."

    def _give(self, file: BinaryIO, name: str) -> str:
        """Copy the open file into the sandbox: its name may mean another file by now."""
        if self._into is None:
            return ""
        file.seek(0)
        with tempfile.TemporaryDirectory(prefix="agent-tools-") as folder:
            copy = Path(folder, safe_name(name))
            with copy.open("wb") as target:
                shutil.copyfileobj(file, target, MIB)
            (staged,) = self._into.stage([str(copy)])
        if staged.name is None:
            raise _refusal(f"{one_line(name)} could not be copied to the code interpreter: {staged.error}")
        return f"To the code interpreter it is available as {staged.name!r} in its working directory."


def _relative(path: str) -> str:
    """Return a normalised path that stays below the folder.

    Raises:
        ToolServiceError: the path may lead elsewhere.
    """
    parts = PurePosixPath(path).parts
    if path.startswith(("/", "~")) or ".." in parts or "\0" in path or not parts:
        raise _refusal("Only paths relative to the folder can be read, without '..'. Without a path, files are listed.")
    return str(PurePosixPath(path))


def _refusal(message: str) -> ToolServiceError:
    return ToolServiceError(code="FileRejected", message=neutralise(message))
