"""The routes under `/v1/skills`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_tools.bodies.files import file_form
from agent_tools.bodies.json_body import in_thread
from agent_tools.gateway.container_routes import download
from agent_tools.gateway.http import JsonResponse, json_object, owner_of, page, services_of
from agent_tools.gateway.requests.api_errors import missing
from agent_tools.gateway.requests.container_fields import Needed
from agent_tools.gateway.requests.fields import RequestModel, read
from agent_tools.gateway.skills import UploadedSkill
from agent_tools.gateway.store.records import StoredSkill, StoredSkillVersion
from agent_tools.models.base import JsonObject
from agent_tools.skills.bundle import MAX_BYTES, MAX_FILES, MAX_ZIP, Bundle, Entry, read_entries, read_zip
from agent_tools.skills.skill import MANIFEST


class _Update(RequestModel):
    default_version: Needed


async def create_skill(request: Request) -> Response:
    """POST /v1/skills: multipart `files`, one zip or the files of a folder."""
    async with _sent(request) as (read_it, _):
        create = services_of(request).skills.create
        return JsonResponse(_skill_shown(await in_thread(MAX_ZIP, create, owner_of(request), read_it)))  # in turns


def list_skills(request: Request) -> Response:
    """GET /v1/skills."""
    return page(request, services_of(request).skills.all_of(owner_of(request)), _skill_shown)


def retrieve_skill(request: Request) -> Response:
    """GET /v1/skills/{id}."""
    return JsonResponse(_skill_shown(_skill(request)))


async def update_skill(request: Request) -> Response:
    """POST /v1/skills/{id}: another default version."""
    given = read(_Update, await json_object(request)).default_version
    update = partial(services_of(request).skills.set_default, owner_of(request), request.path_params["skill_id"], given)
    return JsonResponse(_skill_shown(await run_in_threadpool(update)))


def delete_skill(request: Request) -> Response:
    """DELETE /v1/skills/{id}."""
    skill = _skill(request)
    services_of(request).skills.delete(skill)
    return JsonResponse({"id": skill.id, "object": "skill.deleted", "deleted": True})


async def create_version(request: Request) -> Response:
    """POST /v1/skills/{id}/versions: as for a skill, and `default`."""
    skill = await run_in_threadpool(_skill, request)
    async with _sent(request) as (read_it, is_default):
        add = partial(services_of(request).skills.add_version, skill, read_it, is_default=is_default)
        return JsonResponse(_version_shown(skill, await in_thread(MAX_ZIP, add)))


def list_versions(request: Request) -> Response:
    """GET /v1/skills/{id}/versions."""
    skill = _skill(request)
    return page(request, skill.versions, partial(_version_shown, skill))


def retrieve_version(request: Request) -> Response:
    """GET /v1/skills/{id}/versions/{version}."""
    return JsonResponse(_version_shown(*_version(request)))


def delete_version(request: Request) -> Response:
    """DELETE /v1/skills/{id}/versions/{version}."""
    _, version = _version(request)
    services_of(request).skills.delete_version(version)
    gone = {"id": version.id, "object": "skill.version.deleted", "deleted": True, "version": str(version.number)}
    return JsonResponse(gone)


def content(request: Request) -> Response:
    """GET /v1/skills/{id}/content and /v1/skills/{id}/versions/{version}/content: a zip."""
    with ExitStack() as stack:
        opened = stack.enter_context(services_of(request).uploads.opened(_version(request)[1].id))
        return download(opened, stack.pop_all(), "application/zip")


@asynccontextmanager
async def _sent(request: Request) -> AsyncIterator[tuple[Callable[[], Bundle], bool]]:
    """Receive a form; yield what reads the skill in it, and whether it is to be the default version."""
    shares = services_of(request).shares
    async with file_form(request, shares, shares.uploads_left, MAX_BYTES, MAX_FILES) as form:
        parts = [each for name in ("files", "files[]") for each in form.getlist(name) if isinstance(each, UploadFile)]
        if not parts:
            raise missing("files")
        yield partial(_bundle, parts), str(form.get("default")).lower() == "true"


def _bundle(parts: Sequence[UploadFile]) -> Bundle:
    """Read a zip, which is a single file, or the files of a folder, each named by its path."""
    if len(parts) == 1 and (parts[0].filename or "").rpartition("/")[2].lower() != MANIFEST.lower():
        return read_zip(parts[0].file.read(MAX_ZIP + 1))
    return read_entries(map(_entry, parts))


def _entry(part: UploadFile) -> Entry:
    return Entry(part.filename or "", 0, lambda: part.file)


def _skill(request: Request) -> UploadedSkill:
    return services_of(request).skills.find(owner_of(request), request.path_params["skill_id"])


def _version(request: Request) -> tuple[UploadedSkill, StoredSkillVersion]:
    skill = _skill(request)
    return skill, skill.version(request.path_params.get("version", ""))


def _skill_shown(skill: UploadedSkill) -> JsonObject:
    default = skill.version()
    numbers = {"default_version": str(default.number), "latest_version": str(skill.versions[-1].number)}
    return {**_shown(skill.row, skill, default), "object": "skill", **numbers}


def _version_shown(skill: UploadedSkill, version: StoredSkillVersion) -> JsonObject:
    number = str(version.number)
    return {**_shown(version, skill, version), "object": "skill.version", "skill_id": skill.id, "version": number}


def _shown(row: StoredSkill | StoredSkillVersion, skill: UploadedSkill, version: StoredSkillVersion) -> JsonObject:
    texts = {"name": skill.row.name, "description": version.description}
    return {"id": row.id, "created_at": int(row.created_at), **texts}


_ONE, _VERSIONS = "/v1/skills/{skill_id}", "/v1/skills/{skill_id}/versions"
routes = [
    Route("/v1/skills", create_skill, methods=["POST"]),
    Route("/v1/skills", list_skills, methods=["GET"]),
    Route(_ONE, retrieve_skill, methods=["GET"]),
    Route(_ONE, update_skill, methods=["POST"]),
    Route(_ONE, delete_skill, methods=["DELETE"]),
    Route(f"{_ONE}/content", content, methods=["GET"]),
    Route(_VERSIONS, create_version, methods=["POST"]),
    Route(_VERSIONS, list_versions, methods=["GET"]),
    Route(f"{_VERSIONS}/{{version}}", retrieve_version, methods=["GET"]),
    Route(f"{_VERSIONS}/{{version}}", delete_version, methods=["DELETE"]),
    Route(f"{_VERSIONS}/{{version}}/content", content, methods=["GET"]),
]
