"""The routes about the server itself: its features, prompt and skills."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from agent_tools.containers.sentences import contents
from agent_tools.skills.skill import MANIFEST, MAX_DESCRIPTION, Skill, with_catalogue
from agent_tools.wires.routing import Json, aside
from agent_tools.wires.terminal.state import HOME, ROUTES, TerminalRequest

MAX_SKILL_FILES = 50  # that are named with a skill
SEALED = "This terminal is sealed: a server in it cannot be reached from outside."
_PROMPT = (
    "You have a sealed Linux container of this chat's own, without a network and without root. {contents} "
    f"Its working directory is {HOME}: only files there are kept, and the user sees them. Use run_python for Python: "
    "variables, imports and open objects stay from call to call, and figures are shown to you. Use run_command for "
    "everything else. When the container makes room for others, its variables are saved, its programs end; files in "
    f"{HOME} are deleted once the chat was not used for {{days:g}} days. Nothing can be installed or downloaded. Call "
    "display_file to show the user a file."
)


async def features(_: Request) -> Json:
    """Answer GET /api/config: browsers ask without a key, admins with one to check it."""
    return Json({"features": {"terminal": True, "notebooks": True, "system": True}})


@ROUTES.on("GET", "/system")
async def _system(call: TerminalRequest) -> Any:  # requested at every message, so it is answered from memory
    config = call.wire.containers.config
    prompt = _PROMPT.format(contents=contents(config), days=config.user_container_idle / 86_400)
    return {"prompt": with_catalogue(prompt, config.known_skills)}


@ROUTES.on("GET", "/ports")
async def _ports(_: TerminalRequest) -> Any:
    return {"ports": []}


@ROUTES.on("GET", "/skills")
async def _skills(call: TerminalRequest) -> Any:
    return [_skill_shown(each) for each in call.wire.containers.config.known_skills]


@ROUTES.on("GET", "/skills/read")
async def _skill(call: TerminalRequest, name: str) -> Any:
    for skill in call.wire.containers.config.known_skills:
        if skill.name == name:
            return await aside(_skill_read, skill)
    raise HTTPException(404, "Skill not found")


def _skill_shown(skill: Skill) -> dict[str, Any]:
    about = {"description": skill.description[:MAX_DESCRIPTION], "location": f"{skill.path}/{MANIFEST}"}
    return {"id": f"terminal:{skill.name}", "name": skill.name, **about, "scope": "global", "source": "terminal"}


def _skill_read(skill: Skill) -> dict[str, Any]:
    """Return a skill with the text below its frontmatter, and the paths of its first files."""
    text = (skill.folder / MANIFEST).read_text("utf-8", "replace").partition("\n---")[2].partition("\n")[2]
    resources = [path for path in skill.files() if path != MANIFEST][:MAX_SKILL_FILES]
    return {**_skill_shown(skill), "content": text.strip(), "resources": resources}


async def _proxy(_: TerminalRequest) -> Any:
    raise HTTPException(501, SEALED)


for _method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
    ROUTES.on(_method, "/proxy/{rest:path}")(_proxy)
