"""The operator's skills as resources: the extension `io.modelcontextprotocol/skills` (SEP-2640).

Clients check digests, sizes and the frontmatter, and some list no skill at all where one breaks a rule: such a skill is
left out, and the log says why. It is in the containers all the same.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    BlobResourceContents,
    PaginatedRequestParams,
    RequestParams,
    TextResourceContents,
)

from agent_tools.limits import MIB
from agent_tools.mcp.answers import mime_of
from agent_tools.mcp.files import blob_of
from agent_tools.skills.skill import MANIFEST, MAX_DESCRIPTION, Skill

EXTENSION = "io.modelcontextprotocol/skills"
MAX_BYTES = 16 * MIB  # of one skill; a host need take no more
_MAX_TEXTS = {"description": MAX_DESCRIPTION, "compatibility": 500, "license": MAX_DESCRIPTION}  # characters
_ANSWER = {"resultType": "complete", "ttlMs": 300_000, "cacheScope": "private"}
_log = logging.getLogger(__name__)


class _GetSkill(RequestParams):
    uri: str


class SkillResources:
    """Skills by the URI of their SKILL.md, and all their files by theirs."""

    def __init__(self, skills: Iterable[Skill]) -> None:
        self._files: dict[str, Path] = {}
        self._entries: dict[str, dict[str, Any]] = {}
        for skill in skills:
            base = f"skill://{skill.name}/"
            paths = sorted(path for path in skill.folder.rglob("*") if path.is_file())
            files = {base + quote(path.relative_to(skill.folder).as_posix()): path for path in paths}
            if fault := _fault(skill.frontmatter, sum(path.stat().st_size for path in paths)):
                _log.warning("the skill %s is not offered to clients of MCP: %s", skill.name, fault)
                continue
            resources = [{"uri": uri, **_digest(path.read_bytes())} for uri, path in files.items()]
            uri = base + MANIFEST
            self._entries[uri] = {"uri": uri, "frontmatter": skill.frontmatter, "resources": resources}
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


def _fault(frontmatter: Mapping[object, object], size: int) -> str:
    """Return the rule of the extension that a skill breaks, '' for none."""
    try:
        is_json = json.loads(json.dumps(frontmatter, allow_nan=False)) == frontmatter
    except (TypeError, ValueError):
        is_json = False
    if not is_json:
        return "its frontmatter has values that JSON has not, such as dates."
    for name, most in _MAX_TEXTS.items():
        text = frontmatter.get(name, "-")
        if not isinstance(text, str) or not 0 < len(text) <= most:
            return f"its {name} is no text of 1 to {most:,} characters."
    if not isinstance(frontmatter.get("metadata", {}), Mapping):
        return "its metadata is no mapping."
    return f"its files have more than {MAX_BYTES // MIB} MiB." if size > MAX_BYTES else ""
