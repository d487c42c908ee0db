"""A cache of the package index on the host, which only the host fills.

With a cache pip asks in plain HTTP, and the host answers in place of the index:

    http://pypi.org/simple/NAME/               the index's page (PEP 691), at most a minute old, with links to here
    http://files.pythonhosted.org/PATH         a file of the cache, by the SHA-256 that a page of the index named

A file is fetched once, over verified TLS, and kept only if it has that hash. The code can neither write to the cache
nor name a file that no page named, and pip checks every hash again.

Pages are large, and the code chooses which are fetched, so their cost is bounded: each sandbox has one page at a time,
whose parts are counted before it is parsed, in a thread that lets the loop of all sandboxes go on after each object.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import h11

from agent_tools.engines.network import PACKAGE_HOSTS, TLS_PORT, NetworkPolicy, Target
from agent_tools.json_parts import has_more_parts
from agent_tools.machine.event_loop import EventLoop
from agent_tools.runtime.egress.dialling import Dialler
from agent_tools.runtime.egress.forwarding import RequestTarget, asked
from agent_tools.runtime.egress.http_exchange import HttpExchange
from agent_tools.runtime.egress.meter import Meter
from agent_tools.runtime.egress.refusals import EgressRefused, NotReached

CHUNK_BYTES = 256 * 1024
MAX_PAGE = 32 * 1024 * 1024
MAX_PARTS = 1_000_000  # parts of a page: one of 32 MiB has 900,000
MAX_KNOWN = 64 * 1024 * 1024  # bytes of pages kept in memory for one sandbox
PAGE_MEMORY, HASH_MEMORY = 2_000, 200  # bytes of Python's objects for each page, and for each file beside its path
DIGEST, METADATA = 32, ".metadata"
PAGE_SECONDS = 60.0  # seconds for which a page is answered from memory
PAGE_TYPE = "application/vnd.pypi.simple.v1+json"
DRAFT = ".new-"  # prefix of the names of files that are being fetched
DRAFT_SECONDS = 3600.0  # after which one is not, whose process has ended
_INDEX, _FILES = PACKAGE_HOSTS
_PAGE = re.compile(r"/simple/[A-Za-z0-9][A-Za-z0-9._-]{0,127}/")
_FILE_URL = re.compile(rf"https://{re.escape(_FILES)}(/[^?#\s]{{1,1000}})")
_SHA256 = re.compile(r"[0-9a-f]{64}")
T = TypeVar("T")
_KEPT = ("filename", "requires-python", "yanked", "size", "upload-time")


class Draft:
    """A file that is being fetched, deleted unless it is kept. `take_room` reserves room for more bytes."""

    def __init__(self, folder: Path, take_room: Callable[[int], None]) -> None:
        self._take_room = take_room
        self._size = 0
        self.file = tempfile.NamedTemporaryFile(dir=folder, prefix=DRAFT, delete=False)  # noqa: SIM115
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> None:
        """Append bytes.

        Raises:
            NotReached: there is no room for them.
        """
        self._take_room(len(data))
        self._size += len(data)
        self.file.write(data)
        self.digest.update(data)

    def close(self) -> None:
        """Close and delete the file."""
        self._take_room(-self._size)
        self._size = 0
        self.file.close()
        with contextlib.suppress(OSError):
            os.unlink(self.file.name)


class PackageCache:
    """The files of one folder, by hash, and files being fetched. The least recently used make room for new ones."""

    def __init__(self, folder: Path, most: int) -> None:
        self._folder = folder
        self._most = most
        self._coming = 0  # bytes of drafts
        self._lock = threading.Lock()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def find(self, sha256: str) -> Path | None:
        """Return the file of this hash, or None."""
        path = self._folder / sha256
        with contextlib.suppress(OSError):
            os.utime(path)
            return path
        return None

    def begin(self) -> Draft:
        """Begin a file."""
        return Draft(self._folder, self._take_room)

    def _take_room(self, size: int) -> None:
        with self._lock:
            if self._coming + size > self._most:
                why = f"more than {self._most:,} bytes (max_packages_cache)"
                raise NotReached(why, f"The files that are being fetched are together {why}.")
            self._coming += size

    def keep(self, draft: Draft, sha256: str) -> Path:
        """Add a fetched file to the cache if it has this hash.

        Raises:
            NotReached: it has another hash.
        """
        path = self._folder / sha256
        if draft.digest.hexdigest() != sha256:
            raise NotReached("a file of another hash", "The file is not the one that the index names.")
        draft.file.flush()
        os.fsync(draft.file.fileno())  # after a power cut, no file of this name has other bytes
        os.replace(draft.file.name, path)
        self._make_room(path)
        return path

    def _make_room(self, newest: Path) -> None:
        found = []
        for path in (path for path in self._folder.iterdir() if path != newest):
            with contextlib.suppress(OSError):
                facts = path.stat()
                if path.name.startswith(DRAFT) and facts.st_mtime > time.time() - DRAFT_SECONDS:
                    continue  # it is still being fetched
                found.append((facts.st_mtime, facts.st_size, path))
        total = newest.stat().st_size + sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self._most:
                return
            with contextlib.suppress(OSError):
                path.unlink()
                total -= size


_caches = WeakValueDictionary[tuple[int, Path, int], PackageCache]()


def cache_of(folder: Path, most: int) -> PackageCache:
    """Return the cache in a folder, the same for all sandboxes of this process, which share its limit."""
    key = os.getpid(), folder, most
    return _caches.get(key) or _caches.setdefault(key, PackageCache(folder, most))


@dataclass
class Page:
    """A page's text (None once it is old), and a map from each file's path to its hash and its metadata's hash."""

    text: bytes | None
    hashes: dict[str, bytes]
    read_at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._hash_bytes = PAGE_MEMORY + HASH_MEMORY * len(self.hashes) + sum(map(sys.getsizeof, self.hashes))

    @property
    def size(self) -> int:
        """Bytes of memory, about."""
        return self._hash_bytes + len(self.text or b"")

    def hash_of(self, path: str) -> str:
        """Return the SHA-256 of a file, or of a file's metadata; '' if the page does not name it."""
        if digests := self.hashes.get(path):
            return digests[:DIGEST].hex()
        return self.hashes.get(path.removesuffix(METADATA), b"")[DIGEST:].hex()


class Pages:
    """The newest pages that one sandbox asked for, at most `most` bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._pages: dict[str, Page] = {}  # by path, the newest last

    def text(self, path: str) -> bytes | None:
        """Return the text of a page, if it was read recently."""
        for page in self._pages.values():
            if page.read_at < time.monotonic() - PAGE_SECONDS:
                page.text = None
        return self._pages[path].text if path in self._pages else None

    def hash_of(self, path: str) -> str:
        """Return the SHA-256 of a file that one of the pages names, else ''."""
        return next(filter(None, (page.hash_of(path) for page in reversed(self._pages.values()))), "")

    def add(self, path: str, page: Page) -> None:
        """Store a page. Texts of older pages are dropped for it, then the oldest pages."""
        self._pages.pop(path, None)
        older = list(self._pages.items())
        self._pages[path] = page
        size = page.size + sum(each.size for _, each in older)
        for _, old in older:
            if size > self._most:
                size -= len(old.text or b"")
                old.text = None
        for name, old in older:
            if size > self._most:
                size -= old.size
                del self._pages[name]


class Packages:
    """Answers the requests of one sandbox. Call it only in the loop."""

    def __init__(self, folder: Path, policy: NetworkPolicy, loop: EventLoop) -> None:
        self._cache = cache_of(folder, int(policy.limits.max_packages_cache))
        self._loop = loop
        self._pages = Pages(MAX_KNOWN)
        self._page_turn = asyncio.Lock()
        self._turns = WeakValueDictionary[str, asyncio.Lock]()  # locks requests for the same file

    async def carry(self, exchange: HttpExchange, meter: Meter, dialler: Dialler, origin: RequestTarget) -> None:
        """Answer one request.

        Raises:
            EgressRefused: it is not a request for the index, or the index does not answer.
        """
        if origin.target.host == _INDEX and _PAGE.fullmatch(origin.path):
            async with self._page_turn:
                await _show_page(exchange, await self._page(meter, dialler, origin))
        elif origin.target.host == _FILES and (sha256 := self._pages.hash_of(origin.path)):
            async with self._turns.setdefault(sha256, asyncio.Lock()):
                path = await self._on_disk(self._cache.find, sha256)
                path = path or await self._fetched(meter, dialler, origin, sha256)
            await self._show_file(exchange, path)
        else:
            raise EgressRefused(404, "not of the index", "This is neither a page of the index nor a file of a page.")

    async def _page(self, meter: Meter, dialler: Dialler, origin: RequestTarget) -> bytes:
        """Return the text of a page, from memory or from the index."""
        if known := self._pages.text(origin.path):
            return known
        content = bytearray()
        async with contextlib.aclosing(_content(dialler, meter, origin, PAGE_TYPE)) as pieces:
            async for data in pieces:
                content += data
                if len(content) > MAX_PAGE:
                    raise NotReached("a page too large", "The index's page is too large.")
        page = await self._loop.beside("agent-tools-pages", 1, partial(read_page, content))
        text = page.text or b""
        self._pages.add(origin.path, page)
        return text

    async def _fetched(self, meter: Meter, dialler: Dialler, origin: RequestTarget, sha256: str) -> Path:
        with contextlib.closing(await self._on_disk(self._cache.begin)) as draft:
            async with contextlib.aclosing(_content(dialler, meter, origin, "*/*")) as pieces:
                async for data in pieces:
                    await self._on_disk(draft.write, data)
            return await self._on_disk(self._cache.keep, draft, sha256)

    async def _show_file(self, exchange: HttpExchange, path: Path) -> None:
        with await self._on_disk(lambda: path.open("rb")) as file:
            size = os.fstat(file.fileno()).st_size
            fields = [("Content-Type", "application/octet-stream"), ("Content-Length", str(size))]
            await exchange.answer(h11.Response(status_code=200, headers=fields))
            while data := await self._on_disk(file.read, CHUNK_BYTES):
                await exchange.answer(h11.Data(data=data))
            await exchange.answer(h11.EndOfMessage())

    async def _on_disk(self, work: Callable[..., T], *args: Any) -> T:
        """Do work on files in the one thread for it: a slow disk stops packages, and no sandbox's other traffic."""
        return await self._loop.beside("agent-tools-packages", 1, partial(work, *args))


def read_page(content: bytes | bytearray) -> Page:
    """Read a page of the index.

    Raises:
        NotReached: it cannot be read, or has too many parts.
    """
    if has_more_parts(content, MAX_PARTS):
        raise NotReached("a page of too many parts", "The index's page has too many parts.")
    try:
        # The hook frees each file's own objects at once, and lets other threads run: the parser alone would not.
        page = json.loads(content, object_hook=_read_object)
        files = [file for file in page["files"] if not isinstance(file, _SkippedFile)]
        name, shown = json.dumps(str(page["name"])), ",".join(file.shown for file in files)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise NotReached("a page that cannot be read", "The index's page cannot be read.") from exc
    text = f'{{"meta":{{"api-version":"1.0"}},"name":{name},"files":[{shown}]}}'
    return Page(text.encode(), {file.path: file.digests for file in files})


class _SkippedFile:
    """Stands for a file without a hash, or on another host."""


@dataclass
class _File:
    """A file of a page: its JSON for the sandbox, its path, its hash and its metadata's hash."""

    shown: str
    path: str
    digests: bytes


def _read_object(read: dict[str, Any]) -> dict[str, Any] | _File | _SkippedFile:
    """Convert an object of a page: a file to the form for the sandbox; return any other object unchanged."""
    if "url" not in read:
        return read
    url, digest = _FILE_URL.fullmatch(read["url"]), _digest(read["hashes"])
    if not url or not digest:
        return _SkippedFile()
    shown = {name: read[name] for name in _KEPT if name in read}
    metadata = read.get("core-metadata")
    metadata_digest = _digest(metadata) if isinstance(metadata, dict) else b""
    if metadata_digest:
        shown["core-metadata"] = {"sha256": metadata_digest.hex()}
    shown |= {"url": f"http://{_FILES}{url[1]}", "hashes": {"sha256": digest.hex()}}
    return _File(json.dumps(shown), url[1], digest + metadata_digest)


def _digest(hashes: dict[str, Any]) -> bytes:
    sha256 = hashes.get("sha256")
    return bytes.fromhex(sha256) if isinstance(sha256, str) and _SHA256.fullmatch(sha256) else b""


async def _content(dialler: Dialler, meter: Meter, origin: RequestTarget, accept: str) -> AsyncGenerator[bytes, None]:
    """Yield the index's answer to the host."""
    host = origin.target.host
    tls = RequestTarget(Target(host, TLS_PORT), origin.path, is_tls=True)
    fields = [("Host", host), ("Accept", accept), ("Accept-Encoding", "identity"), ("Connection", "close")]
    request = h11.Request(method="GET", target=origin.path, headers=[*fields, ("User-Agent", "agent-tools")])
    async with contextlib.aclosing(asked(dialler, meter, tls, request)) as events:
        async for event in events:
            if isinstance(event, h11.Response) and event.status_code != 200:
                status = 404 if event.status_code == 404 else 502
                why = f"status {event.status_code}"
                raise EgressRefused(status, why, f"{host} answered with {why}.")
            if isinstance(event, h11.Data):
                yield bytes(event.data)


async def _show_page(exchange: HttpExchange, text: bytes) -> None:
    fields = [("Content-Type", PAGE_TYPE), ("Content-Length", str(len(text)))]
    await exchange.answer(h11.Response(status_code=200, headers=fields))
    await exchange.answer(h11.Data(data=text))
    await exchange.answer(h11.EndOfMessage())
