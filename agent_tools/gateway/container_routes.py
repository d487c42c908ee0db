"""The routes under `/v1/containers` and `/v1/files`."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Annotated, BinaryIO, Literal

from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from agent_tools.bodies.files import file_form
from agent_tools.containers.contents import CHUNK_BYTES
from agent_tools.containers.network import network_shown
from agent_tools.containers.records import ContainerFile, ContainerRecord, Upload
from agent_tools.containers.spec import ContainerSpec
from agent_tools.gateway.chunked import chunked_shown
from agent_tools.gateway.files import SHOWN_DIR, ListedFile
from agent_tools.gateway.http import JsonResponse, json_object, owner_of, page, services_of
from agent_tools.gateway.requests.api_errors import invalid, missing
from agent_tools.gateway.requests.container_fields import ContainerFields, Needed, Texts
from agent_tools.gateway.requests.fields import RequestModel, read
from agent_tools.models.base import JsonObject

MAX_IDLE_MINUTES = 1_440
_EXPIRY = "expires_after"
_NUMBER = re.compile(r"[0-9]{1,9}")
_PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")


class _Expiry(RequestModel):
    anchor: Literal["last_active_at"] = "last_active_at"
    minutes: Annotated[int, Field(ge=1, le=MAX_IDLE_MINUTES)] | None = None


class _NewContainer(ContainerFields):
    name: Needed
    expires_after: _Expiry = _Expiry()


class _FileExpiry(RequestModel):
    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=3_600, le=2_592_000)]


class _FileName(RequestModel):
    file_id: Needed


class _NewUpload(RequestModel):
    filename: Needed
    purpose: Needed
    bytes: int = Field(ge=0)
    expires_after: _FileExpiry | None = None


class _Parts(RequestModel):
    part_ids: Texts = []
    md5: str | None = None


async def create_container(request: Request) -> Response:
    """POST /v1/containers."""
    given = read(_NewContainer, await json_object(request))
    return JsonResponse(await run_in_threadpool(_create, request, given))


def _create(request: Request, given: _NewContainer) -> JsonObject:
    services, owner = services_of(request), owner_of(request)
    for id_ in given.file_ids:
        services.uploads.find(owner, id_)
    skills, minutes = services.skills.resolve(owner, given.skills, "skills"), given.expires_after.minutes
    row = services.containers.create(
        owner, ContainerSpec(given.name, given.memory_limit, minutes, given.domains, skills=skills)
    )
    try:
        services.files.bring(owner, row.id, given.file_ids)
    except BaseException:
        services.containers.discard(owner, row.id)
        raise
    return container_shown(row)


def list_containers(request: Request) -> Response:
    """GET /v1/containers."""
    rows = services_of(request).containers.all_of(owner_of(request))
    name = request.query_params.get("name")
    return page(request, [row for row in rows if name in (None, row.name)], container_shown)


def retrieve_container(request: Request) -> Response:
    """GET /v1/containers/{id}."""
    return JsonResponse(container_shown(services_of(request).containers.find(owner_of(request), _id(request))))


def delete_container(request: Request) -> Response:
    """DELETE /v1/containers/{id}."""
    services_of(request).containers.delete(owner_of(request), _id(request))
    return JsonResponse({"id": _id(request), "object": "container.deleted", "deleted": True})


async def create_container_file(request: Request) -> Response:
    """POST /v1/containers/{id}/files: a multipart `file`, or JSON with `file_id`."""
    services, owner = services_of(request), owner_of(request)
    row = await run_in_threadpool(services.containers.active, owner, _id(request))
    if request.headers.get("content-type", "").lower().startswith("multipart/"):
        limit = services.config.max_upload_bytes
        async with file_form(request, services.shares, services.shares.containers_left, limit) as form:
            upload = _uploaded(form.get("file"))
            file = await run_in_threadpool(services.files.put, row.id, upload.filename or "file", upload.file)
    else:
        file_id = read(_FileName, await json_object(request)).file_id
        file = await run_in_threadpool(services.files.put_upload, owner, row.id, file_id)
    return JsonResponse(await run_in_threadpool(_file_shown_now, request, file))


def list_container_files(request: Request) -> Response:
    """GET /v1/containers/{id}/files."""
    row = services_of(request).containers.active(owner_of(request), _id(request))
    files, is_complete = services_of(request).files.listed(row.id)
    return page(request, files, _listed_shown, {} if is_complete else {"truncated": True})


def retrieve_container_file(request: Request) -> Response:
    """GET /v1/containers/{id}/files/{file_id}."""
    row = services_of(request).containers.active(owner_of(request), _id(request))
    with services_of(request).files.opened(row.id, request.path_params["file_id"]) as (file, content):
        return JsonResponse(file_shown(file, content.seek(0, 2)))


def container_file_content(request: Request) -> Response:
    """GET /v1/containers/{id}/files/{file_id}/content."""
    row = services_of(request).containers.active(owner_of(request), _id(request))
    with ExitStack() as stack:
        opened = services_of(request).files.opened(row.id, request.path_params["file_id"])
        _, content = stack.enter_context(opened)
        return download(content, stack.pop_all())


def delete_container_file(request: Request) -> Response:
    """DELETE /v1/containers/{id}/files/{file_id}."""
    row = services_of(request).containers.active(owner_of(request), _id(request))
    file_id = request.path_params["file_id"]
    services_of(request).files.delete(row.id, file_id)
    return JsonResponse({"id": file_id, "object": "container.file.deleted", "deleted": True})


async def create_file(request: Request) -> Response:
    """POST /v1/files."""
    services = services_of(request)
    limit = services.config.max_upload_bytes
    async with file_form(request, services.shares, services.shares.uploads_left, limit) as form:
        upload, purpose = _uploaded(form.get("file")), form.get("purpose") or "user_data"
        if purpose not in _PURPOSES:
            raise invalid("Invalid value for 'purpose'.", "purpose", "invalid_value")
        add = partial(services.uploads.add, lifetime=_lifetime(form))
        row = await run_in_threadpool(add, owner_of(request), upload.filename or "file", str(purpose), upload.file)
    return JsonResponse(upload_shown(row))


async def create_upload(request: Request) -> Response:
    """POST /v1/uploads."""
    services, given = services_of(request), read(_NewUpload, await json_object(request))
    if given.purpose not in _PURPOSES:
        raise invalid("Invalid value for 'purpose'.", "purpose", "invalid_value")
    create, owner = services.chunked.create, owner_of(request)
    lifetime = given.expires_after.seconds if given.expires_after else None
    upload = await run_in_threadpool(create, owner, given.filename, given.purpose, given.bytes, lifetime)
    return JsonResponse(chunked_shown(upload))


def _lifetime(form: FormData) -> int | None:
    """Return the seconds in `expires_after[anchor]` and `expires_after[seconds]`, as the SDKs write them in forms."""
    given = {name.removeprefix(_EXPIRY).strip("[]"): value for name, value in form.items() if name.startswith(_EXPIRY)}
    if not given:
        return None
    seconds = str(given.get("seconds"))
    return read(
        _FileExpiry, {**given, "seconds": int(seconds) if _NUMBER.fullmatch(seconds) else seconds}, _EXPIRY
    ).seconds


async def create_part(request: Request) -> Response:
    """POST /v1/uploads/{id}/parts: a multipart `data`."""
    services = services_of(request)
    upload = await run_in_threadpool(services.chunked.find, owner_of(request), request.path_params["upload_id"])
    left = await run_in_threadpool(services.chunked.left, upload)
    async with file_form(request, services.shares, lambda _: left, left, share=upload.id) as form:  # reserved for it
        data = _uploaded(form.get("data"), "data").file
        id_ = await run_in_threadpool(services.chunked.add_part, upload, data)
    now = int(time.time())
    return JsonResponse({"id": id_, "object": "upload.part", "created_at": now, "upload_id": upload.id})


async def complete_upload(request: Request) -> Response:
    """POST /v1/uploads/{id}/complete."""
    services, given = services_of(request), read(_Parts, await json_object(request))
    upload = await run_in_threadpool(services.chunked.find, owner_of(request), request.path_params["upload_id"])
    done, file = await run_in_threadpool(services.chunked.complete, upload, given.part_ids, given.md5)
    return JsonResponse(chunked_shown(done, upload_shown(file)))


def cancel_upload(request: Request) -> Response:
    """POST /v1/uploads/{id}/cancel."""
    chunked = services_of(request).chunked
    upload = chunked.find(owner_of(request), request.path_params["upload_id"])
    return JsonResponse(chunked_shown(chunked.cancel(upload)))


MAX_PAGE = 10_000  # files of a page of uploads, and without a limit: as the clients' documentation has it


def list_files(request: Request) -> Response:
    """GET /v1/files."""
    purpose = request.query_params.get("purpose")
    found = services_of(request).uploads.all_of(owner_of(request))
    return page(
        request,
        [each for each in found if purpose in (None, each.purpose)],
        upload_shown,
        usual=MAX_PAGE,
        most=MAX_PAGE,
    )


def retrieve_file(request: Request) -> Response:
    """GET /v1/files/{id}."""
    return JsonResponse(upload_shown(_upload(request)))


def file_content(request: Request) -> Response:
    """GET /v1/files/{id}/content."""
    with ExitStack() as stack:
        content = stack.enter_context(services_of(request).uploads.opened(_upload(request).id))
        return download(content, stack.pop_all())


def delete_file(request: Request) -> Response:
    """DELETE /v1/files/{id}."""
    row = _upload(request)
    services_of(request).uploads.delete(row.id)
    return JsonResponse({"id": row.id, "object": "file", "deleted": True})


def container_shown(container: ContainerRecord) -> JsonObject:
    """Return a container as clients see it."""
    return {
        "id": container.id,
        "object": "container",
        "created_at": int(container.created_at),
        "name": container.name,
        "status": "running" if container.status == "active" else "expired",
        "last_active_at": int(container.last_active_at),
        "expires_after": {"anchor": "last_active_at", "minutes": max(1, round(container.idle_minutes))},
        "memory_limit": container.memory_limit,
        "network_policy": network_shown(container.network),
    }


def file_shown(file: ContainerFile, size: int) -> JsonObject:
    """Return a container's file as clients see it."""
    return {
        "id": file.id,
        "object": "container.file",
        "created_at": int(file.created_at),
        "bytes": size,
        "container_id": file.container_id,
        "path": f"{SHOWN_DIR}/{file.path}",
        "source": file.source,
    }


def upload_shown(upload: Upload) -> JsonObject:
    """Return an uploaded file as clients see it."""
    return {
        "id": upload.id,
        "object": "file",
        "bytes": upload.bytes,
        "created_at": int(upload.created_at),
        "filename": upload.filename,
        "purpose": upload.purpose,
        "status": "processed",
        **({"expires_at": int(upload.expires_at)} if upload.expires_at else {}),
    }


def _listed_shown(listed: ListedFile) -> JsonObject:
    return file_shown(listed.file, listed.size)


def _file_shown_now(request: Request, file: ContainerFile) -> JsonObject:
    with services_of(request).files.opened(file.container_id, file.id) as (_, content):
        return file_shown(file, content.seek(0, 2))


def _uploaded(value: object, param: str = "file") -> UploadFile:
    if not isinstance(value, UploadFile):
        raise missing(param)
    return value


def _upload(request: Request) -> Upload:
    return services_of(request).uploads.find(owner_of(request), request.path_params["file_id"])


def _id(request: Request) -> str:
    return str(request.path_params["container_id"])


def download(content: BinaryIO, stack: ExitStack, media_type: str = "application/octet-stream") -> Response:
    """Send bytes, piece by piece, as a download, so that no browser renders content of code on the gateway's origin.

    The length is the file's current size. If code shortens the file meanwhile, the connection is aborted.
    """
    size = content.seek(0, os.SEEK_END)
    content.seek(0)

    def chunks() -> Iterator[bytes]:
        with stack:
            left = size
            while left and (chunk := content.read(min(left, CHUNK_BYTES))):
                left -= len(chunk)
                yield chunk

    headers = {"Content-Disposition": "attachment", "X-Content-Type-Options": "nosniff", "Content-Length": str(size)}
    return StreamingResponse(chunks(), headers=headers, media_type=media_type)


_ONE, _FILES = "/v1/containers/{container_id}", "/v1/containers/{container_id}/files"
routes = [
    Route("/v1/containers", create_container, methods=["POST"]),
    Route("/v1/containers", list_containers, methods=["GET"]),
    Route(_ONE, retrieve_container, methods=["GET"]),
    Route(_ONE, delete_container, methods=["DELETE"]),
    Route(_FILES, create_container_file, methods=["POST"]),
    Route(_FILES, list_container_files, methods=["GET"]),
    Route(f"{_FILES}/{{file_id}}", retrieve_container_file, methods=["GET"]),
    Route(f"{_FILES}/{{file_id}}", delete_container_file, methods=["DELETE"]),
    Route(f"{_FILES}/{{file_id}}/content", container_file_content, methods=["GET"]),
    Route("/v1/uploads", create_upload, methods=["POST"]),
    Route("/v1/uploads/{upload_id}/parts", create_part, methods=["POST"]),
    Route("/v1/uploads/{upload_id}/complete", complete_upload, methods=["POST"]),
    Route("/v1/uploads/{upload_id}/cancel", cancel_upload, methods=["POST"]),
    Route("/v1/files", create_file, methods=["POST"]),
    Route("/v1/files", list_files, methods=["GET"]),
    Route("/v1/files/{file_id}", retrieve_file, methods=["GET"]),
    Route("/v1/files/{file_id}", delete_file, methods=["DELETE"]),
    Route("/v1/files/{file_id}/content", file_content, methods=["GET"]),
]
