"""Save and load a folder and the kernel's variables as a tar, which only these functions read.

    {"op": "save", ..., "variables": false}    {}, content, then {"left_out", "more"}
    {"op": "save", ..., "variables": seconds}  {"address"}, then content, then {"left_out", "more", "report"}
    {"op": "load", ..., "variables": false}    takes content, then {}
    {"op": "load", ..., "variables": seconds}  {"address"}, then takes content, then {"report"}

Without a path there are no files. With variables, the tar begins with an empty member named MARK. Members whose names
begin with it and a number are the variables: pieces of the records of pickling.py, which pass through here unread. They
come last, so that modules in the folder are there before what refers to them, and never get into the folder. The kernel
connects to the abstract socket of the name `address`, within the seconds. A report is null where the kernel broke off.

Code may change the folder while it is saved. A file that has vanished by the time it is read is left out; one that has
become shorter ends in zeros. A file that cannot be read is left out, and stands in `left_out`: [[name, reason], ...];
`more` counts those for which there was no room.

A tar that is loaded may be compressed (gzip, bzip2, xz). It is decompressed here, in bounded pieces: tarfile itself
decompresses all of a piece at once, and copies what is left of it at every read, which is quadratic.
"""

import bz2
import contextlib
import errno
import gzip
import json
import lzma
import os
import secrets
import socket
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterator
from io import BufferedReader, BytesIO
from typing import Any

from ..wire.framing import FrameError
from .content import CHUNK_BYTES, Content

MARK = ".agent_tools.variables"
MEMBER_BYTES = 1024 * 1024  # bytes in one member
MAX_REPORT = 16 * 1024 * 1024  # bytes
MAX_LEFT_OUT = 20  # names
COMPRESSED: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b\x08": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ": lzma.LZMAFile,
    b"\x5d\x00\x00\x80": lzma.LZMAFile,  # the format before xz
}
"""How to decompress a file, by its first bytes."""


def save(request: dict[str, Any], content: Content) -> None:
    """Send a folder, and the variables if they are asked for."""
    if request["path"]:
        os.listdir(request["path"])
    if not request["variables"]:
        content.answer({})
        with _tar(content) as tar:
            left_out = _add(tar, request["path"])
        content.end()
        content.answer(_listed(left_out))
        return
    with KernelLink(request["variables"]) as kernel:
        content.answer({"address": kernel.address})
        content.push()
        with _tar(content) as tar:
            tar.addfile(_member(""))
            left_out = _add(tar, request["path"]) if request["path"] else []
            for number, piece in enumerate(kernel.pieces()):
                tar.addfile(_member(f".{number:06}", len(piece)), BytesIO(piece))
        content.end()
        content.answer({**_listed(left_out), "report": kernel.report()})


def _tar(content: Content) -> tarfile.TarFile:
    return tarfile.open(fileobj=content, mode="w|", bufsize=CHUNK_BYTES, format=tarfile.PAX_FORMAT)


def _member(suffix: str, size: int = 0) -> tarfile.TarInfo:
    member = tarfile.TarInfo(MARK + suffix)
    member.size = size
    return member


def _add(tar: tarfile.TarFile, path: str) -> list[tuple[str, str]]:
    """Add a folder; return the names of what could not be read, each with the reason."""
    root, waiting = os.path.realpath(path), ["."]
    left_out: list[tuple[str, str]] = []
    while waiting:
        name = waiting.pop()
        with contextlib.ExitStack() as stack:
            try:
                member, file, below = _entry(tar, root, name, stack)
            except FileNotFoundError:
                continue
            except OSError as exc:
                left_out.append((name, os.strerror(exc.errno or errno.EIO)))
                continue
            waiting += below
            plain = member and _plain(member, root)
            if plain and (file or not plain.isreg()):  # by now it may be a file, which was not opened
                tar.addfile(plain, file)
    return left_out


def _listed(left_out: list[tuple[str, str]]) -> dict[str, Any]:
    return {"left_out": left_out[:MAX_LEFT_OUT], "more": max(0, len(left_out) - MAX_LEFT_OUT)}


def _entry(
    tar: tarfile.TarFile, root: str, name: str, stack: contextlib.ExitStack
) -> "tuple[tarfile.TarInfo | None, Any, list[str]]":
    """Return an entry as a member, its content if it is a file, and the names of those below it, the last first.

    Raises:
        OSError: it cannot be read.
    """
    place = os.path.join(root, name)
    mode = os.lstat(place).st_mode
    if stat.S_ISREG(mode):
        file = open(place, "rb", opener=_open_at_once)  # noqa: SIM115  (the caller's stack closes it)
        stack.callback(file.close)
        return tar.gettarinfo(arcname=name, fileobj=file), _Padded(file), []
    names = sorted(os.listdir(place), reverse=True) if stat.S_ISDIR(mode) else []
    below = [os.path.join(name, each) for each in names if name != "." or not each.startswith(MARK)]
    return tar.gettarinfo(place, name), None, below


def _open_at_once(path: str, flags: int) -> int:
    """Open what may be a link or a pipe by now."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


class _Padded:
    """A file whose content ends in zeros where it has become shorter than it was."""

    def __init__(self, file: BufferedReader) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        """Return exactly this many bytes."""
        return self._file.read(size).ljust(size, b"\0")


def _plain(member: tarfile.TarInfo, root: str) -> "tarfile.TarInfo | None":
    """Leave out owners, and entries that an archive cannot restore.

    That is sockets, pipes, devices, and links that lead out of the folder. Those that lead into it become relative.
    """
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    if member.issym() and not _stays(member, root):
        return None
    is_plain = member.isfile() or member.isdir() or member.issym() or member.islnk()
    return member if is_plain else None


def _stays(member: tarfile.TarInfo, root: str) -> bool:
    """Return whether a link leads into the folder, and make it relative then."""
    place = os.path.normpath(os.path.join(root, os.path.dirname(member.name)))
    target = os.path.normpath(os.path.join(place, member.linkname))
    if os.path.isabs(member.linkname):
        member.linkname = os.path.relpath(target, place)
    return os.path.commonpath((root, target)) == root


def load(request: dict[str, Any], content: Content) -> None:
    """Unpack a tar into a folder, and pass on its variables if they are asked for."""
    if not request["variables"]:
        _unpack(request["path"], content, lambda piece: None)
        content.answer({})
        return
    with KernelLink(request["variables"]) as kernel:
        content.answer({"address": kernel.address})
        content.push()
        _unpack(request["path"], content, kernel.give)
        content.answer({"report": kernel.report_after_all()})


def _unpack(path: str, content: Content, take: Callable[[bytes], object]) -> None:
    with _decompressed(content) as file, tarfile.open(fileobj=file, mode="r|") as tar:
        tar.extractall(path, members=_files(tar, take), filter=_harmless)
    content.skip()


@contextlib.contextmanager
def _decompressed(content: Content) -> Iterator[Any]:
    """Open the sent archive as a plain tar.

    Raises:
        ValueError: it is compressed, and cannot be decompressed.
    """
    file = BufferedReader(content, CHUNK_BYTES)
    start = file.peek()
    try:
        yield next((read(file) for magic, read in COMPRESSED.items() if start.startswith(magic)), file)
    except (EOFError, zlib.error, lzma.LZMAError) as exc:
        raise ValueError("the archive is damaged") from exc
    finally:
        file.detach()  # or it would close what it reads


def _harmless(member: tarfile.TarInfo, path: str) -> "tarfile.TarInfo | None":
    """Leave out links that lead out of the folder, which are not saved either; a link makes way for what has its name.

    Raises:
        FilterError: a member lies out of it.
    """
    root, place = os.path.realpath(path), os.path.join(path, member.name)
    if os.path.islink(place) and os.path.commonpath((root, os.path.realpath(os.path.dirname(place)))) == root:
        os.unlink(place)
    try:
        return tarfile.data_filter(member, path)
    except (tarfile.AbsoluteLinkError, tarfile.LinkOutsideDestinationError):
        return None


def _files(tar: tarfile.TarFile, take: Callable[[bytes], object]) -> Iterator[tarfile.TarInfo]:
    """Yield the members that are files of the folder; store the content of the others."""
    for member in tar:
        if not member.name.removeprefix("./").startswith(MARK):
            yield member
        elif member.isreg() and (file := tar.extractfile(member)):
            while piece := file.read(MEMBER_BYTES):
                take(piece)


class KernelLink:
    """The kernel's connection, once it comes: content in pieces, and a report."""

    def __init__(self, seconds: float) -> None:
        self.address = f"agent_tools-{secrets.token_hex(16)}"
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(f"\0{self.address}")
        self._listening.listen(1)
        self._listening.settimeout(seconds)
        self._content: Content | None = None
        self._is_lost = False

    def __enter__(self) -> "KernelLink":
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()
        if self._content:
            self._content.hang_up()

    def pieces(self) -> Iterator[bytes]:
        """Yield the kernel's content in pieces of MEMBER_BYTES bytes, except the last one.

        Raises:
            OSError: it did not come, or broke off.
        """
        file = BufferedReader(self._connected(), MEMBER_BYTES)
        while piece := _read(file, MEMBER_BYTES):
            yield piece
        file.detach()

    def give(self, piece: bytes) -> None:
        """Send bytes to the kernel; drop bytes that it does not read."""
        if not self._is_lost:
            try:
                self._connected().write(piece)
            except OSError:
                self._is_lost = True

    def report(self) -> Any:
        """Return the kernel's report at its end; None if it is malformed."""
        content = self._connected()
        content.begin_again()
        file = BufferedReader(content, MEMBER_BYTES)
        try:
            return json.loads(_read(file, MAX_REPORT))
        except ValueError:
            return None
        finally:
            file.detach()

    def report_after_all(self) -> Any:
        """Tell the kernel that everything was sent, and return its report; None if it broke off."""
        try:
            self._connected().end()
            self._connected().push()
            return self.report()
        except OSError:
            return None

    def _connected(self) -> Content:
        if self._content is None:
            connected, _ = self._listening.accept()
            connected.settimeout(None)
            with connected:
                stream: Any = connected.makefile("rwb")
            self._content = Content(stream)
        return self._content


def _read(content: "BufferedReader[Content]", size: int) -> bytes:
    try:
        return content.read(size)
    except (EOFError, FrameError) as exc:
        raise OSError(errno.EIO, "the kernel broke off") from exc
