"""The routes that list volumes, and the volumes that a new sandbox asks for: only the operator declares them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from agent_tools.engines.volumes import Volume, check_path, chosen
from agent_tools.errors import InvalidParams
from agent_tools.wires.e2b.state import ROUTES, E2BRequest, E2BSandbox


class VolumeMount(BaseModel):
    """A volume that a client wants, and where it wants to see it."""

    name: Annotated[str, Field(max_length=256)]
    path: Annotated[str, Field(max_length=256)]


@ROUTES.on("GET", "/volumes")
async def _list(call: E2BRequest) -> Any:
    return [_shown(each) for each in _known(call).values()]


@ROUTES.on("GET", "/volumes/{volume}")
async def _get(call: E2BRequest, volume: str) -> Any:
    known = _known(call)
    if volume not in known:
        raise _missing(volume)
    return {**_shown(known[volume]), "token": ""}  # for the files of a volume, which have no routes here


def asked_volumes(call: E2BRequest, mounts: list[VolumeMount]) -> str:
    """Return the volumes that a new sandbox asks for, in the format of a container's row.

    Raises:
        HTTPException: 404, the key has no volume of this name; 400, it cannot be there, or two are at one place.
    """
    known, found = _known(call), dict[str, str]()
    for mount in mounts:
        name = mount.name
        if name not in known:
            raise _missing(name)
        if name in found:
            raise HTTPException(400, f"volumeMounts has {name!r} twice.")
        try:
            found[name] = check_path(name, mount.path)
        except InvalidParams as exc:
            raise HTTPException(400, exc.message) from exc
    if len({each.target for each in chosen(known.values(), found.values())}) < len(found):
        raise HTTPException(400, "volumeMounts has two volumes at one path.")
    return " ".join(found.values())


def mounts_shown(call: E2BRequest, box: E2BSandbox) -> list[dict[str, str]]:
    """Return the volumes of a sandbox in the format for clients."""
    return [{"name": each.name, "path": each.target} for each in chosen(_known(call).values(), box.row.volumes.split())]


def _known(call: E2BRequest) -> dict[str, Volume]:
    return {each.name: each for each in call.wire.containers.volumes_of(call.owner)}


def _missing(name: str) -> HTTPException:
    return HTTPException(404, f"There is no volume {name!r:.80} for this key: GET /volumes lists those that there are.")


def _shown(volume: Volume) -> dict[str, str]:
    return {"volumeID": volume.name, "name": volume.name}
