"""The facts of a request and its container that the composer of its response needs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import PurePath

from agent_tools.execution import Picture
from agent_tools.gateway.responses.composer import ResponseContext
from agent_tools.gateway.responses.request import Request
from agent_tools.gateway.responses.shell.local_shell import LOCAL
from agent_tools.gateway.responses.tools import CODE, SHELL
from agent_tools.gateway.services import Services
from agent_tools.gateway.store.store import StoreError
from agent_tools.gateway.tools.hold import Hold


def context_of(
    services: Services, request: Request, names: Mapping[str, str], container_id: str, hold: Hold | None
) -> ResponseContext:
    """Return them. `names` are those of the built-in tools for the model; `hold` is the container's, if it has one."""

    def find_file(name: str) -> str | None:
        with contextlib.suppress(StoreError):  # an answer without a citation is better than none
            file = services.files.named(container_id, name) if hold and hold.has_container else None
            return file.id if file else None
        return None

    def image_url(picture: Picture) -> str:
        found = find_file(PurePath(picture.path).name) if services.config.image_urls == "content" else None
        if found:
            return f"{services.config.root_path}/v1/containers/{container_id}/files/{found}/content"
        return picture.data_url

    reference = {"type": "container_reference", "container_id": container_id}
    return ResponseContext(
        tool_name=names.get(CODE, ""),
        shell_name=names.get(SHELL, ""),
        environment=LOCAL if request.tools.has_local_shell else reference,
        clients={tool.name: tool for tool in request.tools.clients},
        container_id=container_id,
        shows_outputs=request.with_outputs,
        shows_logprobs=request.with_logprobs,
        shows_summary=request.with_summary,
        find_file=find_file,
        image_url=image_url,
    )
