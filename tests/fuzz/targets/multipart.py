"""Uploads: the first line is the request's Content-Type, the rest its body."""

from __future__ import annotations

import contextlib
from typing import Any

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException
from starlette.requests import Request

from agent_tools.machine.folder import MAX_NAME_BYTES, safe_name
from tests.fuzz import unfold
from tests.fuzz.oracle import Parts, Target


def unfold_upload(data: bytes) -> Parts:
    """The header and the body."""
    header, _, body = data.partition(b"\n")
    return [header, unfold.text(body)]


def upload(parts: Parts) -> None:
    """Read the form as the routes do, and name the file."""
    header, body = parts
    taken = _form(header, body)
    with contextlib.suppress(StopIteration):  # nothing in it waits: the body is there
        taken.send(None)
        raise AssertionError("it waits")


async def _form(header: bytes, body: bytes) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": [(b"content-type", header)]}
    async with Request(scope, receive).form(max_files=1) as form:
        for value in form.values():
            if isinstance(value, UploadFile):
                _check(safe_name(value.filename or "file"))


def _check(name: str) -> None:
    assert name not in ("", ".", "..")
    assert not set(name) & set("/\\\0\n\r")
    assert 0 < len(name.encode()) <= MAX_NAME_BYTES + 64


TARGET = Target(
    upload,
    unfold_upload,
    allowed=(MultiPartException,),
    words=(
        *(
            b"multipart/form-data; boundary=b\n",
            b"--b\r\n",
            b"\r\n--b--\r\n",
            b"\r\n\r\n",
            b"content-transfer-encoding: ",
        ),
        *(b'Content-Disposition: form-data; name="file"; filename="', b"filename*=utf-8''", b"_charset_", b"base64"),
        *(unfold.repeat(5, 12), b"%00", b"..", b"application/x-www-form-urlencoded\n", b"a=1&"),
    ),
)
