"""Uploads in parts: a client creates an upload with a size, sends parts, and completes it to one file.

Each has a folder in `data_dir` with its description (`about.json`) and its parts, so that gateways that share the
folder share the uploads. An upload is removed when it is completed or cancelled, or an hour after it began.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from agent_tools.containers.ids import new_id
from agent_tools.containers.records import Upload
from agent_tools.containers.shares import Shares
from agent_tools.containers.sweep import failures
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.files import Uploads
from agent_tools.gateway.requests.api_errors import ApiError, invalid, not_found, too_large
from agent_tools.limits import MIB
from agent_tools.machine.folder import safe_name
from agent_tools.machine.removal import remove_tree

LIFETIME = 3_600.0  # seconds, as with OpenAI
MAX_PENDING = 32  # uploads of one owner that are not completed
MAX_PARTS = 1_000  # of one upload
CHUNK_BYTES = MIB  # bytes that are hashed at once
PENDING, COMPLETED, CANCELLED, EXPIRED = "pending", "completed", "cancelled", "expired"
_ID = re.compile(r"upload_[0-9a-f]{48}")
_PART_ID = re.compile(r"part_[0-9a-f]{48}")
_ABOUT, _JOINING = "about.json", "joining"


@dataclass(frozen=True)
class ChunkedUpload:
    """One upload. `bytes` is the size that its file will have; times are seconds since 1970."""

    id: str
    owner: str
    created_at: float
    filename: str
    bytes: int
    purpose: str
    status: str = PENDING
    file_id: str = ""
    lifetime: int | None = None  # seconds, of its file

    @property
    def expires_at(self) -> float:
        """The time at which an incomplete upload is removed."""
        return self.created_at + LIFETIME


class ChunkedUploads:
    """All incomplete uploads. Thread-safe."""

    def __init__(
        self, config: GatewayConfig, shares: Shares, uploads: Uploads, clock: Callable[[], float] = time.time
    ) -> None:
        self._config = config
        self._shares = shares
        self._uploads = uploads
        self._clock = clock
        self._lock = threading.Lock()
        self._dir = config.data_dir / "chunked"
        self._dir.mkdir(parents=True, exist_ok=True, mode=0o700)

    def create(self, owner: str, filename: str, purpose: str, size: int, lifetime: int | None = None) -> ChunkedUpload:
        """Begin an upload of `size` bytes, of a file that expires `lifetime` seconds after it is complete.

        Raises:
            ApiError: 413, it is too large; 400, too many are under way.
            ContainersError: no storage is left.
        """
        if size > self._config.max_upload_bytes:
            message = f"The file is larger than {self._config.max_upload_bytes:,} bytes."
            raise too_large(message, "file_too_large", "bytes")
        self._shares.check_disk(size)
        id_, now = new_id("upload"), self._clock()
        upload = ChunkedUpload(id_, owner, now, safe_name(filename), size, purpose[:32], lifetime=lifetime)
        with self._shares.reserving.alone(owner):
            if len(self._pending(owner)) >= MAX_PENDING:
                raise invalid(f"{MAX_PENDING} uploads are incomplete: complete or cancel some.", code="too_many")
            self._shares.uploads_left(owner, size)
            (self._dir / id_).mkdir(mode=0o700)
            self._record(upload)
        return upload

    def pending_bytes(self, owner: str) -> int:
        """Return the bytes that the files of an owner's incomplete uploads will have."""
        return sum(each.bytes for each in self._pending(owner))

    def left(self, upload: ChunkedUpload) -> int:
        """Return the number of bytes that further parts may have."""
        return upload.bytes - sum(size for _, size in self._parts(upload.id))

    def add_part(self, upload: ChunkedUpload, content: BinaryIO) -> str:
        """Store a part, and return its id.

        Raises:
            ApiError: 400, the parts exceed the declared size, or are too many, or the upload has ended.
        """
        part_id = new_id("part")
        half = self._dir / upload.id / f".{part_id}"
        try:
            with open(half, "xb") as kept:
                shutil.copyfileobj(content, kept, CHUNK_BYTES)
                size = kept.tell()
            with self._lock:
                self.find(upload.owner, upload.id)
                if size > self.left(upload):
                    raise invalid(f"The parts have more than the {upload.bytes:,} declared bytes of the file.", "data")
                if len(self._parts(upload.id)) >= MAX_PARTS:
                    raise invalid(f"An upload has at most {MAX_PARTS:,} parts: send larger ones.", "data")
                half.rename(half.with_name(part_id))
        except FileNotFoundError as exc:  # it was completed, cancelled or removed meanwhile
            raise not_found("upload", upload.id) from exc
        finally:
            half.unlink(missing_ok=True)
        return part_id

    def complete(self, upload: ChunkedUpload, part_ids: Sequence[str], md5: str | None) -> tuple[ChunkedUpload, Upload]:
        """Join the parts to a file.

        Raises:
            ApiError: 400, a part is not there, or the parts have another size or hash.
            ContainersError: as for `Uploads.add`.
        """
        with self._joining(upload):
            sizes = dict(self._parts(upload.id))
            unknown = next((each for each in part_ids if each not in sizes), None)
            if unknown is not None or len(set(part_ids)) < len(part_ids):
                raise invalid("'part_ids' has an unknown part, or a part twice.", "part_ids", "invalid_value")
            if (size := sum(sizes[each] for each in part_ids)) != upload.bytes:
                raise invalid(f"The parts have {size:,} bytes instead of {upload.bytes:,}.", "part_ids")
            with _Joined([self._dir / upload.id / each for each in part_ids]) as content:
                if md5 is not None and _md5(content) != md5.lower():
                    raise invalid("The MD5 of the parts differs from 'md5'.", "md5", "invalid_value")
                content.seek(0)
                joined, about = cast(BinaryIO, content), (upload.owner, upload.filename, upload.purpose)
                file = self._uploads.add(*about, joined, lifetime=upload.lifetime, is_pending=True)
            return self._end(replace(upload, status=COMPLETED, file_id=file.id)), file

    def cancel(self, upload: ChunkedUpload) -> ChunkedUpload:
        """Cancel an upload."""
        with self._joining(upload):
            return self._end(replace(upload, status=CANCELLED))

    def find(self, owner: str, id_: str) -> ChunkedUpload:
        """Return an upload of this owner.

        Raises:
            ApiError: 404, it does not exist, or has ended; 400, it has expired.
        """
        upload = self._read(id_) if _ID.fullmatch(id_) else None
        if upload is None or upload.owner != owner:
            raise not_found("upload", id_)
        if upload.status != PENDING:
            raise invalid(f"The upload is {upload.status}: begin another one.", "upload_id", "invalid_value")
        return upload

    def sweep(self) -> int:
        """Remove expired uploads; return how many could not be removed."""
        old = [each for each in self._dir.iterdir() if self._is_old(each)]
        return sum(failures(partial(shutil.rmtree, each)) for each in old)

    def _is_old(self, folder: Path) -> bool:
        upload = self._read(folder.name)
        with suppress(FileNotFoundError):
            return self._clock() > (upload.created_at if upload else folder.stat().st_mtime) + LIFETIME
        return False  # another gateway has removed it

    @contextmanager
    def _joining(self, upload: ChunkedUpload) -> Iterator[None]:
        """Lock an upload, among all gateways, while it is completed or cancelled. The lock ends with its process."""
        try:
            mark = open(self._dir / upload.id / _JOINING, "wb")  # noqa: SIM115  (closed below)
        except FileNotFoundError as exc:
            raise not_found("upload", upload.id) from exc
        with mark:
            try:
                fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                raise ApiError(409, "The upload is being completed or cancelled.", code="under_way") from exc
            self.find(upload.owner, upload.id)
            yield

    def _end(self, upload: ChunkedUpload) -> ChunkedUpload:
        folder = self._dir / upload.id
        (folder / _ABOUT).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)  # a part may just be stored: `sweep` removes what is left
        return upload

    def _pending(self, owner: str) -> list[ChunkedUpload]:
        found = filter(None, (self._read(folder.name) for folder in self._dir.iterdir()))
        return [upload for upload in found if upload.owner == owner and upload.status == PENDING]

    def _parts(self, id_: str) -> list[tuple[str, int]]:
        with suppress(FileNotFoundError), os.scandir(self._dir / id_) as found:
            return [(each.name, each.stat().st_size) for each in found if _PART_ID.fullmatch(each.name)]
        return []  # it was removed

    def _record(self, upload: ChunkedUpload) -> None:
        about = self._dir / upload.id / _ABOUT
        new = about.with_suffix(".new")
        new.write_text(json.dumps(asdict(upload)))
        new.replace(about)

    def _read(self, id_: str) -> ChunkedUpload | None:
        upload = _described(self._dir / id_)
        return replace(upload, status=EXPIRED) if upload and self._clock() > upload.expires_at else upload


def remove_uploads_of(owner: str, data_dir: Path) -> None:
    """Remove all uploads of an owner with their parts, in any state."""
    for folder in data_dir.glob("chunked/*"):
        if (upload := _described(folder)) and upload.owner == owner:
            remove_tree(folder)


def _described(folder: Path) -> ChunkedUpload | None:
    """Return the upload of a folder; None if its description is missing, cut off, or of another version."""
    with suppress(OSError, ValueError, TypeError):
        return ChunkedUpload(**json.loads((folder / _ABOUT).read_text()))
    return None


class _Joined:
    """Several files, read one after another as one."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._stack = ExitStack()
        self._next = 0
        self._file: BinaryIO | None = None

    def __enter__(self) -> _Joined:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to the beginning, or return the size."""
        if whence == os.SEEK_END:
            return sum(path.stat().st_size for path in self._paths)
        self._next, self._file = 0, None
        return offset

    def read(self, size: int) -> bytes:
        """Return at most `size` of the next bytes; b"" at the end."""
        while not (data := self._file.read(size) if self._file else b"") and self._next < len(self._paths):
            self._stack.close()
            self._file = self._stack.enter_context(self._paths[self._next].open("rb"))
            self._next += 1
        return data


def _md5(content: _Joined) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    while data := content.read(CHUNK_BYTES):
        digest.update(data)
    return digest.hexdigest()


def chunked_shown(upload: ChunkedUpload, file: Any = None) -> dict[str, Any]:
    """Return an upload as clients see it, with its file once there is one."""
    shown = {key: value for key, value in asdict(upload).items() if key not in ("owner", "file_id")}
    times = {"created_at": int(upload.created_at), "expires_at": int(upload.expires_at)}
    return {**shown, **times, "object": "upload", "file": file}
