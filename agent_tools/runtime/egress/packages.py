"""Python's package index out of a cache on the host, which only the host fills.

With a cache pip asks in plain HTTP, and the host answers in the index's stead:

    http://pypi.org/simple/NAME/               the index's page (PEP 691), fetched each time, with links to here
    http://files.pythonhosted.org/PATH         a file of the cache, by the SHA-256 that a page of the index named

A file is fetched once, over verified TLS, and kept only if it has that hash. The code can neither write to the cache
nor name a file that no page named, and pip checks every hash again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import h11

from agent_tools.runtime.egress.dialling import Dialler
from agent_tools.runtime.egress.exchange import Exchange
from agent_tools.runtime.egress.forwarding import Origin, asked
from agent_tools.runtime.egress.meter import Meter
from agent_tools.runtime.egress.refusal import NotReached, Refused
from agent_tools.runtime.network import PACKAGE_HOSTS, TLS_PORT, NetworkPolicy, Target

CHUNK = 256 * 1024
MAX_PAGE = 32 * 1024 * 1024
MAX_KNOWN = 500_000  # files of pages that one sandbox asked for
PAGE_TYPE = "application/vnd.pypi.simple.v1+json"
DRAFT = ".new-"  # begins the names of files that are being fetched
DRAFT_SECONDS = 3600.0  # after which one is not, whose process has ended
_INDEX, _FILES = PACKAGE_HOSTS
_PAGE = re.compile(r"/simple/[A-Za-z0-9][A-Za-z0-9._-]{0,127}/")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_KEPT = ("filename", "requires-python", "yanked", "size", "upload-time")


class Draft:
    """A file that is being fetched. It goes away unless it is kept. `take_room` is asked for room for more bytes."""

    def __init__(self, folder: Path, take_room: Callable[[int], None]) -> None:
        self._take_room = take_room
        self._size = 0
        self.file = tempfile.NamedTemporaryFile(dir=folder, prefix=DRAFT, delete=False)  # noqa: SIM115
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> None:
        """Add to it.

        Raises:
            NotReached: there is no room for it.
        """
        self._take_room(len(data))
        self._size += len(data)
        self.file.write(data)
        self.digest.update(data)

    def close(self) -> None:
        """Let go of it."""
        self._take_room(-self._size)
        self._size = 0
        self.file.close()
        with contextlib.suppress(OSError):
            os.unlink(self.file.name)


class PackageCache:
    """The files of one folder, by hash, and those that come. The least lately used make room for new ones."""

    def __init__(self, folder: Path, most: int) -> None:
        self._folder = folder
        self._most = most
        self._coming = 0  # bytes of drafts
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def find(self, sha256: str) -> Path | None:
        """Return the file of this hash, if it is there."""
        path = self._folder / sha256
        with contextlib.suppress(OSError):
            os.utime(path)
            return path
        return None

    def begin(self) -> Draft:
        """Begin a file."""
        return Draft(self._folder, self._take_room)

    def _take_room(self, size: int) -> None:
        if self._coming + size > self._most:
            why = f"more than {self._most:,} bytes (max_packages_cache)"
            raise NotReached(why, f"The files that are being fetched are together {why}.")
        self._coming += size

    def keep(self, draft: Draft, sha256: str) -> Path:
        """Keep a file that has this hash.

        Raises:
            NotReached: it has another one.
        """
        path = self._folder / sha256
        if draft.digest.hexdigest() != sha256:
            raise NotReached("a file of another hash", "The file is not the one that the index names.")
        draft.file.flush()
        os.replace(draft.file.name, path)
        self._make_room(path)
        return path

    def _make_room(self, newest: Path) -> None:
        found = []
        for path in (path for path in self._folder.iterdir() if path != newest):
            with contextlib.suppress(OSError):
                facts = path.stat()
                if path.name.startswith(DRAFT) and facts.st_mtime > time.time() - DRAFT_SECONDS:
                    continue  # it still comes
                found.append((facts.st_mtime, facts.st_size, path))
        total = newest.stat().st_size + sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self._most:
                return
            with contextlib.suppress(OSError):
                path.unlink()
                total -= size


class Packages:
    """Answers the requests of one sandbox. In the loop only."""

    def __init__(self, folder: Path, policy: NetworkPolicy) -> None:
        self._cache = PackageCache(folder, int(policy.limits.max_packages_cache))
        self._policy = policy
        self._known: dict[str, str] = {}  # the hash of a file, by its path
        self._turns = WeakValueDictionary[str, asyncio.Lock]()  # of those that want the same file at once

    async def carry(self, exchange: Exchange, meter: Meter, dialler: Dialler, origin: Origin) -> None:
        """Answer one request.

        Raises:
            Refused: it asks for nothing of the index, or the index does not answer.
        """
        if origin.target.host == _INDEX and _PAGE.fullmatch(origin.path):
            await self._show_page(exchange, meter, dialler, origin)
        elif origin.target.host == _FILES and (sha256 := self._known.get(origin.path)):
            async with self._turns.setdefault(sha256, asyncio.Lock()):
                path = self._cache.find(sha256) or await self._fetched(meter, dialler, origin, sha256)
            await _show_file(exchange, path)
        else:
            raise Refused(404, "not of the index", "This is no page of the index, and no file that a page named.")

    async def _show_page(self, exchange: Exchange, meter: Meter, dialler: Dialler, origin: Origin) -> None:
        content = bytearray()
        async with contextlib.aclosing(_content(dialler, meter, origin, PAGE_TYPE)) as pieces:
            async for data in pieces:
                content += data
                if len(content) > MAX_PAGE:
                    raise NotReached("a page too large", "The index's page is too large.")
        page = self._read(bytes(content))
        fields = [("Content-Type", PAGE_TYPE), ("Content-Length", str(len(page)))]
        await exchange.answer(h11.Response(status_code=200, headers=fields))
        await exchange.answer(h11.Data(data=page))
        await exchange.answer(h11.EndOfMessage())

    def _read(self, content: bytes) -> bytes:
        """Note the hashes of a page's files, and return the page with links to this host's answers."""
        try:
            page = json.loads(content)
            files = [shown for each in page["files"] if (shown := self._shown(each))]
            return json.dumps({"meta": {"api-version": "1.0"}, "name": str(page["name"]), "files": files}).encode()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
            raise NotReached("a page that cannot be read", "The index's page cannot be read.") from exc

    def _shown(self, file: dict[str, Any]) -> dict[str, Any] | None:
        """Return what is shown of a file; None for one without a hash, or that lies elsewhere."""
        parts, sha256 = urlsplit(file["url"]), file["hashes"].get("sha256")
        if (parts.scheme, parts.netloc) != ("https", _FILES) or not self._note(parts.path, sha256):
            return None
        shown = {name: file[name] for name in _KEPT if name in file}
        metadata = file.get("core-metadata")
        if isinstance(metadata, dict) and self._note(f"{parts.path}.metadata", metadata.get("sha256")):
            shown["core-metadata"] = {"sha256": metadata["sha256"]}
        return {**shown, "url": f"http://{_FILES}{parts.path}", "hashes": {"sha256": sha256}}

    def _note(self, path: str, sha256: object) -> bool:
        if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256) or len(self._known) >= MAX_KNOWN:
            return False
        self._known[path] = sha256
        return True

    async def _fetched(self, meter: Meter, dialler: Dialler, origin: Origin, sha256: str) -> Path:
        with contextlib.closing(self._cache.begin()) as draft:
            async with contextlib.aclosing(_content(dialler, meter, origin, "*/*")) as pieces:
                async for data in pieces:
                    draft.write(data)
            return self._cache.keep(draft, sha256)


async def _content(dialler: Dialler, meter: Meter, origin: Origin, accept: str) -> AsyncGenerator[bytes, None]:
    """Yield what the index answers to the host."""
    host = origin.target.host
    tls = Origin(Target(host, TLS_PORT), origin.path, is_tls=True)
    fields = [("Host", host), ("Accept", accept), ("Accept-Encoding", "identity"), ("Connection", "close")]
    request = h11.Request(method="GET", target=origin.path, headers=[*fields, ("User-Agent", "agent-tools")])
    async with contextlib.aclosing(asked(dialler, meter, tls, request)) as events:
        async for event in events:
            if isinstance(event, h11.Response) and event.status_code != 200:
                status = 404 if event.status_code == 404 else 502
                why = f"status {event.status_code}"
                raise Refused(status, why, f"{host} answered with {why}.")
            if isinstance(event, h11.Data):
                yield bytes(event.data)


async def _show_file(exchange: Exchange, path: Path) -> None:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        fields = [("Content-Type", "application/octet-stream"), ("Content-Length", str(size))]
        await exchange.answer(h11.Response(status_code=200, headers=fields))
        while data := file.read(CHUNK):
            await exchange.answer(h11.Data(data=data))
        await exchange.answer(h11.EndOfMessage())
