"""The names that clients send: handles of containers, paths of files, and the URIs made of both. Pure."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from agent_tools.errors import InvalidParams

SCHEME = "sandbox://"
TEMPLATE = "sandbox://{container}/{+path}"
MAX_PATH_BYTES = 1_024
MAX_LEVELS = 16  # of folders; what is deeper is not listed either
_HANDLE = re.compile(r"cntr_[0-9a-f]{8,48}")
_WORK_DIRS = ("/workspace/", "/mnt/data/")  # the names that work_dir has in the sandbox
_UNUSABLE = re.compile("[\0-\x1f\x7f\ud800-\udfff]")


def read_handle(text: str) -> str:
    """Return the handle of a container.

    Raises:
        InvalidParams: it has not the form of one.
    """
    if not _HANDLE.fullmatch(text):
        raise InvalidParams(
            f"container={text[:60]!r} is not a handle. Give the handle of an earlier answer, such as 'cntr_...'; "
            "or leave `container` out."
        )
    return text


def read_path(text: str) -> str:
    """Return the path of a file, relative to the working directory and inside it.

    Raises:
        InvalidParams: it leads out of the working directory, or no file can have this name.
    """
    if len(text) > MAX_PATH_BYTES or _UNUSABLE.search(text):
        raise InvalidParams(f"The path has a control character, or more than {MAX_PATH_BYTES:,} characters.")
    inside = next((text[len(each) :] for each in _WORK_DIRS if text.startswith(each)), text)
    parts = [part for part in inside.split("/") if part not in ("", ".")]
    if inside.startswith("/") or ".." in parts or not parts or len(parts) > MAX_LEVELS:
        raise InvalidParams(
            f"path={text[:80]!r} is not in the working directory: give a path such as 'data/a.csv'. Use run_python or "
            "run_command for files elsewhere."
        )
    return "/".join(parts)


def uri_of(container: str, path: str) -> str:
    """Return the URI of a file."""
    return f"{SCHEME}{container}/{quote(path, safe='/', errors='replace')}"


def read_uri(uri: str) -> tuple[str, str]:
    """Return the handle and the path in a URI.

    Raises:
        InvalidParams: it is no URI of a file in a container.
    """
    handle, slash, path = uri.removeprefix(SCHEME).partition("/")
    if not uri.startswith(SCHEME) or not slash or len(uri) > 4 * MAX_PATH_BYTES:
        raise InvalidParams(f"{uri[:80]!r} is not a file here: resources are {TEMPLATE}.")
    return read_handle(handle), read_path(unquote(path, errors="replace"))
