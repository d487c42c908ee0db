"""A bundle of a kernel's modules in one file, made with the image, so that PID 1 need not search and open others.

A boot takes 200 ms with it and 226 ms without (row "new instance to first result" of `benchmarks/latency.py`).

It holds marshalled code after an index. A module is loaded from it only while its source has the size and time of the
bundled one: an image may have been derived from ours and have another version. Later imports use the path.

    magic number of Python's code, u32 length of the index, the index (marshalled: name -> Entry), the codes
"""

import marshal
import os
import struct
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import MAGIC_NUMBER
from mmap import ACCESS_READ, mmap
from types import CodeType, ModuleType
from typing import NamedTuple

PATH = "/opt/guest/kernel.bundle"
HEAD = struct.Struct("<4sI")


class ModuleEntry(NamedTuple):
    """One module: its source's path, size and time (s), whether it is a package, and where its code is (bytes)."""

    source: str
    size: int
    time: int
    is_package: bool
    start: int
    end: int

    def is_current(self) -> bool:
        """Return whether the source is still the one that was bundled."""
        try:
            found = os.stat(self.source)
        except OSError:
            return False
        return (found.st_size, int(found.st_mtime)) == (self.size, self.time)


class BundledLoader(SourceFileLoader):
    """Loads a module's code from the bundle, everything else about it (source, resources) from its file."""

    def __init__(self, name: str, source: str, code: memoryview) -> None:
        super().__init__(name, source)
        self._code: memoryview | None = code

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code: the first time from the bundle, without keeping a copy."""
        packed, self._code = self._code, None
        if packed is None:
            return super().get_code(fullname)
        code: CodeType = marshal.loads(packed)
        return code


class Finder:
    """Finds modules in a bundle, as one of `sys.meta_path`."""

    def __init__(self, index: Mapping[str, tuple[str, int, int, bool, int, int]], codes: memoryview) -> None:
        self.index = index
        self.codes = codes

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's spec; None if it is not bundled, or has changed on disk."""
        if fullname not in self.index:
            return None
        entry = ModuleEntry(*self.index[fullname])
        if not entry.is_current():
            return None
        loader = BundledLoader(fullname, entry.source, self.codes[entry.start : entry.end])
        spec = ModuleSpec(fullname, loader, origin=entry.source, is_package=entry.is_package)
        spec.has_location = True
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(os.path.dirname(entry.source))
        return spec


def install(path: str = PATH) -> None:
    """Find modules in the bundle first; without a bundle for this Python, only on the path."""
    try:
        with open(path, "rb") as file:
            content = memoryview(mmap(file.fileno(), 0, access=ACCESS_READ))
    except (OSError, ValueError):
        return
    magic, length = HEAD.unpack_from(content)
    if magic == MAGIC_NUMBER:
        codes = HEAD.size + length
        sys.meta_path.insert(0, Finder(marshal.loads(content[HEAD.size : codes]), content[codes:]))


def uninstall() -> None:
    """Find modules on the path only."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Finder)]


def write(path: str, modules: Sequence[ModuleType]) -> None:
    """Write a bundle of imported modules that have a source file."""
    index, codes = {}, bytearray()
    for module in modules:
        spec: ModuleSpec | None = getattr(module, "__spec__", None)
        if spec and spec.origin and isinstance(spec.loader, SourceFileLoader):
            found, start = os.stat(spec.origin), len(codes)
            codes += marshal.dumps(spec.loader.get_code(spec.name))
            is_package = spec.submodule_search_locations is not None
            index[spec.name] = (spec.origin, found.st_size, int(found.st_mtime), is_package, start, len(codes))
    packed = marshal.dumps(index)
    with open(path, "wb") as file:
        file.write(HEAD.pack(MAGIC_NUMBER, len(packed)) + packed + codes)
