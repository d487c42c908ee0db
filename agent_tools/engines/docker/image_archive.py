"""The names of the images in an archive for an engine, read before the engine gets it: it would take any.

An engine may unpack the archive, where a later member replaces an earlier one of the same path. So each path has to be
in its plain form, no member may lie below a link, and nothing may follow the end. An engine may still read names that
tarfile does not (of several headers for one member, say): image_file.py compares those that it reports.

Docker's archives name images in `manifest.json` (docker save), in `repositories` (older ones) and in annotations of
`index.json` (https://github.com/opencontainers/image-spec/blob/main/annotations.md). An engine may read either.
"""

from __future__ import annotations

import json
import posixpath
import tarfile
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from agent_tools.errors import EngineError
from agent_tools.json_parts import has_more_parts
from agent_tools.limits import MIB

MAX_INDEX, MAX_PARTS = MIB, 10_000
MAX_PATH = 255  # characters: engines write names of two digests at most
_NO_INDEX = (RecursionError, TypeError, AttributeError)  # JSON of another shape
_INDEXES = ("manifest.json", "repositories", "index.json")
_KEYS = {key.casefold(): key for key in ("RepoTags", "manifests", "annotations")}  # to Go's readers, in any case
_WHOLE, _TAG = "io.containerd.image.name", "org.opencontainers.image.ref.name"
_PREFIXES = ("docker.io/library/", "localhost/")


def names_in(archive: BinaryIO) -> set[str]:
    """Return the names of the images in an archive, without the registry that an engine adds to its own.

    Raises:
        EngineError: it is not an archive of images.
    """
    found, links = set[str](), set[str]()
    try:
        with tarfile.open(fileobj=archive, mode="r|*") as tar:
            for member in tar:
                if _plain_path(member, links) in _INDEXES:
                    found.update(_names(_parsed(tar, member)))
            while rest := tar.fileobj.read(MIB):
                if rest.strip(b"\0"):
                    raise ValueError("there is more behind its end")
    except (tarfile.TarError, EOFError, zlib.error, OSError, ValueError, *_NO_INDEX) as exc:
        raise EngineError("It is not an archive of images: write it with `agent-tools image save`.") from exc
    return {plain_name(name) for name in found}


def _plain_path(member: tarfile.TarInfo, links: set[str]) -> str:
    """Return a member's path from the top of the archive, and note a link.

    Raises:
        ValueError: it is not in plain form, or leads through a link.
    """
    path = member.name.removeprefix("./")
    if len(path) > MAX_PATH or posixpath.normpath(path) != path or path.startswith(("/", "..")):
        raise ValueError("a path that is not in plain form")
    if any("/".join(path.split("/")[:depth]) in links for depth in range(1, path.count("/") + 1)):
        raise ValueError("a path that leads through a link")
    if not (member.isreg() or member.isdir()):
        links.add(path)
    return path


def _parsed(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Any:
    file = tar.extractfile(member) if member.isreg() else None
    data = file.read(MAX_INDEX + 1) if file else b""
    if len(data) > MAX_INDEX or has_more_parts(data, MAX_PARTS):
        raise ValueError(f"{member.name} is too large")
    return json.loads(data, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key.casefold() for key, _ in pairs}) < len(pairs):
        raise ValueError("two keys that an engine may take for one")
    return {_KEYS.get(key.casefold(), key): value for key, value in pairs}


def _names(index: Any) -> Iterator[str]:
    if isinstance(index, list):  # manifest.json
        for image in index:
            yield from map(str, image.get("RepoTags") or ())
    elif isinstance(index.get("manifests"), list):  # index.json
        for image in index["manifests"]:
            notes = image.get("annotations") or {}
            yield from (str(notes[key]) for key in (_WHOLE, _TAG) if ":" in str(notes.get(key, "")))
    else:  # repositories
        for name, tags in index.items():
            if isinstance(tags, dict):
                yield from (f"{name}:{tag}" for tag in tags)


def plain_name(name: str) -> str:
    """Return an image's name without the registry that an engine adds to its own."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name
