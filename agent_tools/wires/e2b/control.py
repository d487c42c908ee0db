"""The routes that create, list, find, time, pause, resume and kill sandboxes."""

from __future__ import annotations

import re
import secrets
import time
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, unquote

from pydantic import AwareDatetime, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from agent_tools.bodies.json_body import at_most
from agent_tools.containers.config import MEMORY_TIERS
from agent_tools.containers.records import ContainerRecord, WireValue
from agent_tools.containers.spec import ContainerSpec
from agent_tools.engines.volumes import MAX_VOLUMES
from agent_tools.limits import KIB, MIB
from agent_tools.wires.e2b.state import ORIGIN, ROUTES, E2BRequest, E2BSandbox, E2BState
from agent_tools.wires.e2b.volumes import VolumeMount, asked_volumes, mounts_shown
from agent_tools.wires.routing import Json, aside, digest

VERSION = "0.5.7"  # of envd, as the SDKs know it: files as plain bodies, without metadata
TEMPLATES = ("base", "code-interpreter-v1")
MAX_SECONDS = 86_400
METRICS_EVERY = 5  # seconds that a client may take to ask for what is now
MAX_STATE = 64 * 1024  # characters of metadata and variables
ABSENT = {
    "templates": "Templates are not available here: every sandbox has the image of this server.",
    "volumes": "Only the operator of this server declares volumes: list them, and name them in volumeMounts.",
    "volumecontent": "The files of a volume can only be reached from a sandbox that has it.",
    "fork": "Sandboxes cannot be forked here: create another one.",
    "snapshots": "Snapshots are not available here: pause a sandbox to keep it.",
    "network": "The network of a sandbox cannot be changed here: create another one.",
    "logs": "Logs of sandboxes are not available here.",
    "resume": "This way to resume a sandbox is not available here: connect to it.",
    "refreshes": "This way to extend a sandbox's time is not available here: set its timeout.",
}
"""Parts of E2B's API that are not supported, by a name in their paths."""
USED_SECONDS = 0.2  # over which the use of the CPU is measured
_USAGE = f"""cd /sys/fs/cgroup
cpu() {{ if [ -r cpu.stat ]; then read -r _ n < cpu.stat; echo ${{n}}000; else cat cpuacct/cpuacct.usage; fi; }}
cat memory.current memory/memory.usage_in_bytes 2> /dev/null
grep -hsE '^(file|cache) ' memory.stat memory/memory.stat
cpu; sleep {USED_SECONDS}; cpu"""
"""Prints memory and cached memory (bytes), and twice the CPU time (nanoseconds), for cgroups of both versions."""
Seconds = Annotated[int, Field(ge=0, le=MAX_SECONDS)]
Texts = Annotated[dict[str, str], at_most(1_000)]


@ROUTES.on("POST", "/v2/sandboxes")
async def _create(
    call: E2BRequest,
    templateID: Annotated[str, Field(max_length=256)] = "base",  # noqa: N803
    timeout: Seconds = 300,
    metadata: Texts | None = None,
    envVars: Texts | None = None,  # noqa: N803
    autoPause: bool = False,  # noqa: N803
    autoPauseMemory: bool | None = None,  # noqa: N803
    autoResume: Any = None,  # noqa: N803
    allow_internet_access: bool | None = None,
    network: dict[str, Any] | None = None,
    mcp: Any = None,
    iam: Any = None,
    volumeMounts: Annotated[list[VolumeMount], at_most(MAX_VOLUMES)] | None = None,  # noqa: N803
) -> Any:
    if templateID not in TEMPLATES:
        raise HTTPException(501, f"Template {templateID!r:.80} is not available here: use {' or '.join(TEMPLATES)}.")
    rules = {name for name, value in (network or {}).items() if value} - {"allowPublicTraffic"}  # there is none
    for name, value in {"network": rules, "mcp": mcp, "iam": iam}.items():
        if value:
            raise HTTPException(501, f"{name} is not available here: create the sandbox without it.")
    _check_memory(autoPauseMemory)
    state = E2BState(
        template=templateID,
        metadata=metadata or {},
        envs=envVars or {},
        ends=time.time() + timeout,
        auto_pause=autoPause,
        auto_resume=bool(autoResume.get("enabled") if isinstance(autoResume, dict) else autoResume),
    )
    if len(state.model_dump_json()) > MAX_STATE:
        raise HTTPException(400, f"metadata and envVars have more than {MAX_STATE:,} characters.")
    volumes = asked_volumes(call, volumeMounts or [])
    box, is_new = await aside(_made, call, state, allow_internet_access is not False, volumes)
    if not is_new:  # the client asks again
        await call.resume(box, timeout)
        return Json(_described(call, box), 201)
    try:
        await call.use(lambda _: None, box)
    except BaseException:
        await call.wire.end(*box.place)
        raise
    call.wire.time(box)
    return Json(_described(call, box), 201)


ROUTES.on("POST", "/sandboxes")(_create)


def _made(call: E2BRequest, state: E2BState, has_internet: bool, volumes: str) -> tuple[E2BSandbox, bool]:
    """Return a sandbox and True, or the one of an earlier request with the same key and False."""
    call.wire.all_of(call.owner)  # which forgets those that are gone
    containers, key = call.wire.containers, call.request.headers.get("idempotency-key")
    id_ = f"i{digest(call.owner, key)[:24] if key else secrets.token_hex(12)}"
    if key and (known := call.wire.find(call.owner, id_)):
        return known, False
    domains = tuple(containers.config.allowed_domains) if has_internet else ()
    idle = call.wire.idle_minutes(state)
    spec = ContainerSpec(id_, idle_minutes=idle, domains=domains, origin=ORIGIN, volumes=volumes)
    row: ContainerRecord = containers.create(call.owner, spec, id_)
    value = state.model_dump_json()
    call.wire.rows.add(WireValue(id=f"e2b-{id_}", owner=call.owner, created_at=row.created_at, value=value))
    return E2BSandbox(row, state), True


@ROUTES.on("GET", "/v2/sandboxes")
async def _list(
    call: E2BRequest,
    state: str = "running,paused",
    metadata: str = "",
    order: Literal["asc", "desc"] = "desc",
    startedAfter: AwareDatetime | None = None,  # noqa: N803
    template: str = "",
    limit: Annotated[int, Field(ge=1, le=100)] = 100,
    nextToken: Annotated[int, Field(ge=0)] = 0,  # noqa: N803
) -> Any:
    wanted = {unquote(key): unquote(value) for key, value in parse_qsl(metadata[:MAX_STATE])}  # quoted twice
    found = [
        each
        for each in (_info(call, box) for box in await aside(call.wire.all_of, call.owner))
        if each["state"] in state.split(",")
        and wanted.items() <= each["metadata"].items()
        and template in ("", each["templateID"])
        and (startedAfter is None or datetime.fromisoformat(each["startedAt"][:-1] + "+00:00") >= startedAfter)
    ]
    end = nextToken + limit
    page = Json((found if order == "desc" else found[::-1])[nextToken:end])
    if end < len(found):
        page.headers["X-Next-Token"] = str(end)
    return page


@ROUTES.on("GET", "/sandboxes/{sandbox}")
async def _get(call: E2BRequest, sandbox: str) -> Any:
    box = await call.box(sandbox)
    return {**_described(call, box), **_info(call, box)}


@ROUTES.on("DELETE", "/sandboxes/{sandbox}")
async def _kill(call: E2BRequest, sandbox: str) -> Any:
    await call.wire.end(*(await call.box(sandbox)).place)
    return Response(status_code=204)


@ROUTES.on("GET", "/sandboxes/{sandbox}/metrics")
async def _metrics(call: E2BRequest, sandbox: str, start: int = 0, end: int = 2**53) -> Any:
    """Answer the current use of the sandbox; an empty list for other times, and for a paused sandbox."""
    box, now = await call.box(sandbox), time.time()
    if box.state.is_paused or not start <= now < end + METRICS_EVERY:
        return []
    ran = await call.use(lambda each: each.run_command(_USAGE, timeout=10, max_output=KIB), box)
    used = [int(each) for each in re.findall(r"\d{1,18}", ran.texts[0])]
    if len(used) != 4:  # code in the sandbox is in the way
        return []
    containers = call.wire.containers
    return [
        {
            "timestamp": _at(now),
            "timestampUnix": int(now),
            "cpuCount": 1,
            "cpuUsedPct": round(100 * (used[3] - used[2]) / 1e9 / USED_SECONDS, 1),
            "memUsed": used[0],
            "memTotal": MEMORY_TIERS[box.row.memory_limit],
            "memCache": used[1],
            "diskUsed": await aside(containers.measure, box.id),
            "diskTotal": containers.config.max_container_bytes,
        }
    ]


@ROUTES.on("POST", "/sandboxes/{sandbox}/timeout")
async def _set_timeout(call: E2BRequest, sandbox: str, timeout: Seconds) -> Any:
    box = await call.box(sandbox)
    box.state.ends = time.time() + timeout
    await aside(call.wire.put, box)
    call.wire.time(box)
    return Response(status_code=204)


@ROUTES.on("POST", "/sandboxes/{sandbox}/pause")
async def _pause(call: E2BRequest, sandbox: str, memory: bool | None = None) -> Any:
    _check_memory(memory)
    box = await call.box(sandbox)
    if box.state.is_paused:
        raise HTTPException(409, "The sandbox is paused already.")
    await call.wire.pause(box)
    return Response(status_code=204)


@ROUTES.on("POST", "/v2/sandboxes/{sandbox}/connect")
async def _connect(call: E2BRequest, sandbox: str, timeout: Seconds = 300, memory: bool | None = None) -> Any:
    _check_memory(memory)
    box = await call.box(sandbox)
    was_paused = box.state.is_paused
    await call.resume(box, timeout)
    return Json(_described(call, box), 201 if was_paused else 200)


ROUTES.on("POST", "/sandboxes/{sandbox}/connect")(_connect)


async def absent(request: Request) -> Response:
    """Answer a request to a part of E2B's API that is not supported, or to none.

    Raises:
        HTTPException: 501, with a sentence; 404.
    """
    for part in request.path_params["path"].split("/"):
        if part in ABSENT:
            raise HTTPException(501, ABSENT[part])
    raise HTTPException(404, "Not Found")


def _check_memory(memory: bool | None) -> None:
    if memory is False:
        raise HTTPException(501, "A paused sandbox always keeps its variables here: restart the context to lose them.")


def _described(call: E2BRequest, box: E2BSandbox) -> dict[str, Any]:
    """Return the fields that a client needs to use a sandbox. Its token is the key of the request."""
    key, host = call.request.headers.get("x-api-key"), call.request.headers.get("host", "")
    return {
        **_ids(box),
        "domain": host.removeprefix("api.") if host.startswith("api.") else None,
        **({"envdAccessToken": key, "trafficAccessToken": key} if key else {}),
    }


def _ids(box: E2BSandbox) -> dict[str, str]:
    return {"templateID": box.state.template, "sandboxID": box.id, "clientID": "agent-tools", "envdVersion": VERSION}


def _info(call: E2BRequest, box: E2BSandbox) -> dict[str, Any]:
    return {
        **_ids(box),
        "startedAt": _at(box.row.created_at),
        "endAt": _at(box.state.ends),
        "state": "paused" if box.state.is_paused else "running",
        "metadata": box.state.metadata,
        "cpuCount": 1,
        "memoryMB": MEMORY_TIERS[box.row.memory_limit] // MIB,
        "diskSizeMB": call.wire.containers.config.max_container_bytes // MIB,
        "volumeMounts": mounts_shown(call, box),
    }


def _at(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
