"""The operator's skills as resources: the extension `io.modelcontextprotocol/skills` (SEP-2640).

Clients check digests, sizes and the frontmatter, and some list no skill at all where one breaks a rule: such a skill is
left out, and the log says why. It is in the containers all the same.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, BlobResourceContents, PaginatedRequestParams, RequestParams, TextResourceContents
from pydantic import BaseModel, Field, JsonValue, ValidationError

from agent_tools.limits import MIB
from agent_tools.mcp.answers import mime_of
from agent_tools.mcp.files import blob_of
from agent_tools.skills.skill import MANIFEST, MAX_DESCRIPTION, Skill

EXTENSION = "io.modelcontextprotocol/skills"
_ANSWER = {"resultType": "complete", "ttlMs": 300_000, "cacheScope": "private"}
_log = logging.getLogger(__name__)


class _GetSkill(RequestParams):
    uri: str


class _Frontmatter(BaseModel, extra="allow", strict=True, allow_inf_nan=False):
    """Frontmatter as the extension allows it: texts of limited length, and values of JSON, so no dates."""

    __pydantic_extra__: dict[str, JsonValue]
    description: Annotated[str, Field(min_length=1, max_length=MAX_DESCRIPTION)]
    compatibility: Annotated[str, Field(min_length=1, max_length=500)] = "-"
    license: Annotated[str, Field(min_length=1, max_length=MAX_DESCRIPTION)] = "-"
    metadata: dict[str, JsonValue] = {}


class _Rules(BaseModel):
    """The limits of a skill for MCP clients."""

    frontmatter: _Frontmatter
    bytes: Annotated[int, Field(le=16 * MIB)]  # a host need take no more


class SkillResources:
    """Skills by the URI of their SKILL.md, and all their files by theirs."""

    def __init__(self, skills: Iterable[Skill]) -> None:
        self._files: dict[str, Path] = {}
        self._entries: dict[str, dict[str, Any]] = {}
        for skill in skills:
            base = f"skill://{skill.name}/"
            files = {base + quote(path): skill.folder / path for path in skill.files()}
            resources = [{"uri": uri, **_digest(path.read_bytes())} for uri, path in files.items()]
            entry = {"uri": base + MANIFEST, "frontmatter": skill.frontmatter, "resources": resources}
            try:
                _Rules.model_validate({**entry, "bytes": sum(each["size"] for each in resources)})
            except ValidationError as exc:
                fault = exc.errors()[0]
                place = ".".join(map(str, fault["loc"]))
                _log.warning("the skill %s is not offered to clients of MCP: %s: %s", skill.name, place, fault["msg"])
                continue
            self._entries[base + MANIFEST] = entry
            self._files |= files

    def add_to(self, server: Server[Any]) -> None:
        """Have a server answer `skills/list` and `skills/get`, if there are skills."""
        if self._entries:
            server.extensions[EXTENSION] = {}
            server.add_request_handler("skills/list", PaginatedRequestParams, self._list)
            server.add_request_handler("skills/get", _GetSkill, self._get)

    def resource(self, uri: str) -> TextResourceContents | BlobResourceContents | None:
        """Return a file of a skill, byte for byte; None for any other URI."""
        if uri not in self._files:
            return None
        data, mime = self._files[uri].read_bytes(), mime_of(uri)
        try:
            return TextResourceContents(uri=uri, mime_type=mime, text=data.decode())
        except UnicodeDecodeError:
            return blob_of(uri, mime, data)

    async def _list(self, _: object, __: object) -> dict[str, Any]:
        return {**_ANSWER, "skills": list(self._entries.values())}

    async def _get(self, _: object, params: _GetSkill) -> dict[str, Any]:
        if params.uri not in self._entries:
            raise MCPError(INVALID_PARAMS, f"There is no skill at {params.uri[:200]!r}: skills/list has them all.")
        return {**_ANSWER, "skill": self._entries[params.uri]}


def _digest(data: bytes) -> dict[str, Any]:
    return {"digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}
