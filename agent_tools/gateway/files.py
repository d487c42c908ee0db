"""Files by id: uploads of clients, and files in containers."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from agent_tools.containers.containers import Containers
from agent_tools.containers.contents import CHUNK_BYTES, Contents
from agent_tools.containers.failures import ContainerFileNotFound, FileTooLarge, RowsAway, UploadNotFound
from agent_tools.containers.ids import new_id
from agent_tools.containers.records import ContainerFile, ContainerRecord, Upload
from agent_tools.containers.rows import MANY, Before
from agent_tools.containers.sweep import failures
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.store.records import StoredSkill, StoredSkillVersion
from agent_tools.gateway.store.store import Store
from agent_tools.machine.folder import numbered, safe_name

SHOWN_DIR = "/mnt/data"
FOR_SKILLS = "skills"  # the purpose of uploads that belong to a skill, and are no files of /v1/files
HALF = ".half"  # the suffix of an upload that is being written
HALF_SECONDS = 3_600.0  # seconds without a new byte, after which a half-written file is abandoned


class Uploads:
    """Files that clients uploaded, by id; deleted after `retention` seconds, or when they expire."""

    def __init__(self, containers: Containers[GatewayConfig], store: Store) -> None:
        self._config = containers.config
        self._shares = containers.shares
        self._store = store
        self._dir = self._config.data_dir / "uploads"
        self._dir.mkdir(parents=True, exist_ok=True, mode=0o700)

    def add(
        self,
        owner: str,
        filename: str,
        purpose: str,
        content: BinaryIO,
        *,
        prefix: str = "file",
        lifetime: int | None = None,
        is_pending: bool = False,
    ) -> Upload:
        """Store a file, under an id with this prefix; it expires after `lifetime` seconds.

        It `is_pending` if its bytes are counted already, as those of an incomplete upload.

        Raises:
            ContainersError: it is too large, there are too many, or no storage is left.
        """
        size, most = content.seek(0, os.SEEK_END), self._config.max_upload_bytes
        if size > most:
            raise FileTooLarge(f"The file is larger than {most:,} bytes.")
        self._shares.check_disk(size)
        content.seek(0)
        id_, now = new_id(prefix), time.time()
        half = self._dir / f"{id_}{HALF}"
        try:
            with open(half, "xb") as kept:
                shutil.copyfileobj(content, kept, CHUNK_BYTES)
            upload = Upload(
                id=id_,
                owner=owner,
                created_at=now,
                filename=safe_name(filename),
                bytes=size,
                purpose=purpose[:32],
                expires_at=now + min(lifetime, self._config.retention) if lifetime else None,
            )
            with self._shares.reserving.alone(owner):
                self._shares.uploads_left(owner, 0 if is_pending else size)
                self._place(upload, half)
        except BaseException:
            half.unlink(missing_ok=True)
            raise
        return upload

    def _place(self, upload: Upload, half: Path) -> None:
        """Add the row of a file that is written, and give the file its name.

        Raises:
            UploadNotFound: it has just been deleted.
        """
        try:
            self._store.add(upload)  # first: nothing would ever delete a file without a row
            half.rename(self._dir / upload.id)
        except BaseException as exc:
            with suppress(RowsAway):  # a row without a file is deleted when it expires
                self._store.delete(Upload, id=upload.id)
            if isinstance(exc, FileNotFoundError):
                raise UploadNotFound(upload.id) from exc
            raise

    def _forget_halves(self) -> None:
        """Remove half-written files of a killed gateway, which no gateway can still be writing."""
        old = time.time() - HALF_SECONDS
        for half in self._dir.glob(f"*{HALF}"):
            with suppress(FileNotFoundError):
                if half.stat().st_mtime < old:
                    half.unlink()

    def find(self, owner: str, id_: str) -> Upload:
        """Return a file of this owner.

        Raises:
            UploadNotFound: there is no such file, or it has expired.
        """
        upload = self._store.get(Upload, id_, owner=owner)
        if upload is None or not _is_shown(upload):
            raise UploadNotFound(id_)
        return upload

    def opened(self, id_: str) -> BinaryIO:
        """Open a file's content.

        Raises:
            UploadNotFound: it has just been deleted.
        """
        try:
            return open(self._dir / id_, "rb")
        except FileNotFoundError as exc:
            raise UploadNotFound(id_) from exc

    def all_of(self, owner: str) -> list[Upload]:
        """List all files of an owner, oldest first."""
        return [each for each in self._store.find(Upload, owner=owner) if _is_shown(each)]

    def delete(self, id_: str) -> None:
        """Forget a file, which may be a version of a skill."""
        self._store.delete(StoredSkillVersion, id=id_)
        for name in (f"{id_}{HALF}", id_):  # in this order: it may just get its name
            (self._dir / name).unlink(missing_ok=True)
        self._store.delete(Upload, id=id_)

    def sweep(self) -> int:
        """Delete expired and half-written files; return how many could not be deleted."""
        halves = failures(self._forget_halves)
        now = time.time()
        ends = ({"created_at": Before(now - self._config.retention)}, {"expires_at": Before(now)})
        old = list({each.id for end in ends for each in self._store.find(Upload, **end)})
        versions = self._store.get_all(StoredSkillVersion, old)
        skills = {each.id for each in self._store.get_all(StoredSkill, [each.skill_id for each in versions])}
        in_use = {each.id for each in versions if each.skill_id in skills}
        return halves + sum(failures(partial(self.delete, each)) for each in old if each not in in_use)


def _is_shown(upload: Upload) -> bool:
    return upload.purpose != FOR_SKILLS and (upload.expires_at is None or time.time() < upload.expires_at)


@dataclass(frozen=True)
class ListedFile:
    """A file in a container, with its size in bytes."""

    file: ContainerFile
    size: int

    @property
    def id(self) -> str:
        """The file's id."""
        return self.file.id


class ContainerFiles:
    """The files in containers. A file that code wrote gets an id when it is first listed."""

    def __init__(self, containers: Containers[GatewayConfig], store: Store, uploads: Uploads) -> None:
        self._containers = containers
        self._contents = Contents(containers, store)
        self._store = store
        self._uploads = uploads

    def put(self, container_id: str, filename: str, content: BinaryIO, upload_id: str = "") -> ContainerFile:
        """Write a file, which may be a copy of an upload; one of that name is replaced.

        Raises:
            ContainersError: it is too large, no storage is left, or the file cannot be written.
        """
        name = safe_name(filename)
        self._contents.put(container_id, name, content)
        self._store.delete(ContainerFile, container_id=container_id, path=name)
        return self._named(container_id, name, "user", upload_id)

    def put_upload(self, owner: str, container_id: str, file_id: str) -> ContainerFile:
        """Copy an uploaded file in."""
        upload = self._uploads.find(owner, file_id)
        return self._put_copy(container_id, upload.filename, upload)

    def bring(self, owner: str, container_id: str, file_ids: Iterable[str]) -> dict[Upload, str]:
        """Copy missing uploads into the container; return the unique names of all of them."""
        uploads = [self._uploads.find(owner, id_) for id_ in file_ids]
        known = {file.upload_id: file.path for file in self._store.find(ContainerFile, container_id=container_id)}
        brought = {upload: known[upload.id] for upload in uploads if upload.id in known}
        there = {upload: name for upload, name in brought.items() if self.named(container_id, name)}
        for upload in uploads:
            if upload not in there:
                name = free_name(upload.filename, there.values())
                there[upload] = self._put_copy(container_id, name, upload).path
        return there

    def _put_copy(self, container_id: str, name: str, upload: Upload) -> ContainerFile:
        with self._uploads.opened(upload.id) as content:
            return self.put(container_id, name, content, upload.id)

    def listed(self, container_id: str) -> tuple[list[ListedFile], bool]:
        """List the existing files, oldest id first, and return whether the list is complete, like `Contents.listed`.

        Ids of files that are gone are forgotten: code may write ever new names.
        """
        known = {file.path: file for file in self._store.find(ContainerFile, container_id=container_id)}
        found, is_complete = self._contents.listed(container_id)
        missing = (file for name, file in known.items() if name not in found)
        gone = [file.id for file in missing if self._contents.is_gone(container_id, file.path)]
        for start in range(0, len(gone), MANY):
            self._store.delete(ContainerFile, id=gone[start : start + MANY])
        known |= self._all_named(container_id, sorted(found.keys() - known.keys()))
        return [ListedFile(file, found[name][0]) for name, file in known.items() if name in found], is_complete

    def named(self, container_id: str, name: str) -> ContainerFile | None:
        """Return the file of this name, if it exists; the name may be any text of a model."""
        with self._contents.opened(container_id, name) as file:
            if file is None:
                return None
        return self._named(container_id, name, "assistant")

    @contextmanager
    def opened(self, container_id: str, file_id: str) -> Iterator[tuple[ContainerFile, BinaryIO]]:
        """Open a file for reading.

        Raises:
            ContainerFileNotFound: there is no such file.
        """
        file = self._store.get(ContainerFile, file_id, container_id=container_id)
        if file is None:
            raise ContainerFileNotFound(file_id)
        with self._contents.opened(container_id, file.path) as content:
            if content is None:
                raise ContainerFileNotFound(file_id)
            self._containers.touch(container_id)
            yield file, content

    def delete(self, container_id: str, file_id: str) -> None:
        """Delete a file.

        Raises:
            ContainerFileNotFound: there is no such file.
        """
        with self.opened(container_id, file_id) as (file, _):
            self._contents.delete(container_id, file.path)
        self._store.delete(ContainerFile, id=file_id)

    def _all_named(self, container_id: str, names: Sequence[str]) -> dict[str, ContainerFile]:
        """Give ids to files that code wrote."""
        now = time.time()
        files = [_new_file(container_id, name, "assistant", now + n * 1e-6) for n, name in enumerate(names)]
        if not self._store.add_if_new(*files):  # another request has just named one of them
            return {name: self._named(container_id, name, "assistant") for name in names}
        self._check_ended(container_id)
        return {file.path: file for file in files}

    def _named(self, container_id: str, name: str, source: str, upload_id: str = "") -> ContainerFile:
        known = self._store.find(ContainerFile, container_id=container_id, path=name)
        if known:
            return known[0]
        file = _new_file(container_id, name, source, time.time(), upload_id)
        if not self._store.add_if_new(file):  # another request has just named it
            return self._named(container_id, name, source, upload_id)
        self._check_ended(container_id)
        return file

    def _check_ended(self, container_id: str) -> None:
        """Delete the ids that were added after the end of their container."""
        if self._store.get(ContainerRecord, container_id, status="active") is None:
            self._store.delete(ContainerFile, container_id=container_id)


def _new_file(container_id: str, name: str, source: str, now: float, upload_id: str = "") -> ContainerFile:
    return ContainerFile(
        id=new_id("cfile"), container_id=container_id, created_at=now, path=name, source=source, upload_id=upload_id
    )


def free_name(name: str, taken: Collection[str]) -> str:
    """Return a file's name if it is free, else the first free one with a number."""
    return next(each for each in numbered(name) if each not in taken)
