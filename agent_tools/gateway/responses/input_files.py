"""Files in an input: copied into the container, or passed on to the model if no code can run; and pictures."""

from __future__ import annotations

import base64
import binascii
import io
import mimetypes
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, BinaryIO

from agent_tools.containers.failures import ContainersError, UploadNotFound
from agent_tools.containers.records import Upload
from agent_tools.gateway.files import SHOWN_DIR, ContainerFiles, Uploads, free_name
from agent_tools.gateway.requests.api_errors import ApiError, invalid
from agent_tools.gateway.responses.input_pictures import picture_part
from agent_tools.gateway.tools.lease import ContainerLease
from agent_tools.machine.folder import safe_name
from agent_tools.models.base import JsonObject

MAX_FILES = 100  # in one request's input
GONE = "[A file was here, which has been deleted since.]"
_PICTURES = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"RIFF": "image/webp"}
"""How files of pictures begin."""


@dataclass(frozen=True)
class InputFile:
    """A file in an input, of `size` bytes; `open` gives its content, piece by piece; `id` is an upload's."""

    name: str
    size: int
    open: Callable[[], BinaryIO]
    id: str = ""


class InputFiles:
    """The files of one request. `lease` is the container, if anything can run in one.

    `most` bounds the bytes of all files that go to the model instead. `brought` are the names of uploads in the
    container, which no other file of the request may have.
    """

    def __init__(
        self,
        files: ContainerFiles,
        find_upload: Callable[[str], InputFile],
        lease: ContainerLease | None,
        most: int,
        brought: Mapping[Upload, str] = MappingProxyType({}),
    ) -> None:
        self._files = files
        self._find_upload = find_upload
        self._lease = lease
        self._most = self._room = most
        self._left = MAX_FILES
        there = {name: upload.id for upload, name in brought.items()}
        self._contents = {True: there, False: dict(there)}  # by names: of files that are new, and of earlier ones

    def part(self, part: Mapping[str, Any], param: str, is_new: bool) -> JsonObject:
        """Return the part that names a file for the model. An earlier file stays as the code left it, or is deleted.

        An `input_image` is shown to the model, and is not put into the container.

        Raises:
            ApiError: it cannot be read, or there are too many.
            ContainersError: it cannot be kept.
        """
        self._left -= 1
        if self._left < 0:
            raise invalid(f"An input holds at most {MAX_FILES} files.", param)
        try:
            file = self._read(part, param)
        except UploadNotFound:
            if is_new:
                raise
            return {"type": "text", "text": GONE}
        if part.get("type") == "input_image":
            return picture_part(self._data_url(file, _picture_kind(file, param)), part, param)
        if self._lease is None:
            kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
            return {"type": "file", "file": {"filename": file.name, "file_data": self._data_url(file, kind)}}
        self._lease.ensure()
        container_id, name = self._lease.container_id, self._name_for(file, part, is_new)
        if is_new or self._files.named(container_id, name) is None:
            with file.open() as content:
                self._files.put(container_id, name, content, file.id)
        return {"type": "text", "text": f"[The file is at {SHOWN_DIR}/{name}]"}

    def restore(self, parts: Iterable[Mapping[str, Any]], container_id: str) -> None:
        """Put the files of an earlier input into a new container, except deleted ones and those whose name is taken.

        Raises nothing: the response can do without them.
        """
        for part in parts:
            self._left -= 1
            with suppress(ApiError, ContainersError):
                file = self._read(part, "input")
                name = self._name_for(file, part, is_new=False)
                if self._left >= 0 and self._files.named(container_id, name) is None:
                    with file.open() as content:
                        self._files.put(container_id, name, content, file.id)

    def _name_for(self, file: InputFile, part: Mapping[str, Any], is_new: bool) -> str:
        """Return the name of a file in the container: its own, unless another file of the request has it."""
        contents = self._contents[is_new]
        content = file.id or str(part.get("file_data"))
        name = free_name(file.name, {name for name, each in contents.items() if each != content})
        contents[name] = content
        return name

    def _read(self, part: Mapping[str, Any], param: str) -> InputFile:
        if isinstance(part.get("file_id"), str):
            return self._find_upload(part["file_id"])
        if isinstance(part.get("file_data"), str):
            return _decoded(part["file_data"], part.get("filename"), f"{param}.file_data")
        if part.get("file_url"):
            message = "Nothing is fetched here: send the file as 'file_data', or upload it and give its 'file_id'."
            raise invalid(message, f"{param}.file_url", "unsupported_value")
        raise invalid(f"Missing required parameter: '{param}.file_data'.", param, "missing_required_parameter")

    def _data_url(self, file: InputFile, kind: str) -> str:
        self._room -= file.size
        if self._room < 0:
            message = f"The files for the model are larger than {self._most:,} bytes."
            raise ApiError(413, message, param="file_id", code="file_too_large")
        with file.open() as content:
            return f"data:{kind};base64,{base64.b64encode(content.read()).decode()}"


def upload_finder(uploads: Uploads, owner: str) -> Callable[[str], InputFile]:
    """Return a function that finds an owner's uploaded files."""

    def find(id_: str) -> InputFile:
        upload = uploads.find(owner, id_)
        return InputFile(upload.filename, upload.bytes, lambda: uploads.opened(id_), id_)

    return find


def _picture_kind(file: InputFile, param: str) -> str:
    """Return the media type of a picture, by how it begins."""
    with file.open() as content:
        head = content.read(12)
    for start, kind in _PICTURES.items():
        if head.startswith(start) and (start != b"RIFF" or head[8:] == b"WEBP"):
            return kind
    raise invalid("The file is no picture: PNG, JPEG, GIF or WebP.", f"{param}.file_id", "invalid_value")


def _decoded(data: str, filename: object, param: str) -> InputFile:
    head, comma, rest = data.partition(",")
    is_url = head.startswith("data:") and bool(comma)
    if is_url and not head.endswith(";base64"):
        raise invalid(f"'{param}' is a data URL without base64.", param, "invalid_value")
    try:
        content = base64.b64decode("".join((rest if is_url else data).split()), validate=True)
    except (binascii.Error, ValueError) as exc:
        raise invalid(f"'{param}' is not base64.", param, "invalid_value") from exc
    suffix = mimetypes.guess_extension(head[5:].partition(";")[0]) or "" if is_url else ""
    name = safe_name(filename if isinstance(filename, str) else f"file{suffix}")
    return InputFile(name, len(content), lambda: io.BytesIO(content))
