"""Contexts: further kernels of a sandbox, each with its folder."""

from __future__ import annotations

from threading import Event
from typing import Any

from starlette.exceptions import HTTPException

from agent_tools.results.execution import Execution
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.wires.e2b.state import HOME, ROUTES, Context, E2BRequest, E2BSandbox, in_sandbox, path_of
from agent_tools.wires.open_resources import OpenResource

DEFAULT = "default"
"""The id of the first kernel, as a context."""
LANGUAGES = (None, "", "python", "python3")


@ROUTES.on("GET", "/contexts")
async def _contexts(call: E2BRequest) -> Any:
    box = await call.here()
    others = [_shown(each.id, each.it.cwd) for each in call.wire.contexts.of(box.place)]
    return [_shown(DEFAULT, HOME), *others]


@ROUTES.on("POST", "/contexts")
async def _open_context(call: E2BRequest, language: str | None = None, cwd: str | None = None) -> Any:
    check_language(language)
    box, folder = await call.here(), path_of(cwd or HOME)

    def begin(sandbox: Sandbox) -> Context:
        kernel = sandbox.fresh_kernel()
        try:
            _enter(kernel, folder)
        except BaseException:
            kernel.close()
            raise
        return Context(kernel, folder)

    opened = await call.wire.contexts.open(box.place, lambda: box.id, begin)
    return _shown(opened.id, folder)


@ROUTES.on("DELETE", "/contexts/{context}")
async def _close_context(call: E2BRequest, context: str) -> Any:
    box = await call.here()
    if context == DEFAULT:
        raise HTTPException(400, "The default context stays as long as its sandbox.")
    await call.wire.contexts.end(context_of(call, box, context))
    return {}


@ROUTES.on("POST", "/contexts/{context}/restart")
async def _restart_context(call: E2BRequest, context: str) -> Any:
    box = await call.here()
    found = None if context == DEFAULT else context_of(call, box, context)

    def restart(sandbox: Sandbox) -> None:
        kernel = found.it.sandbox if found else sandbox
        kernel.restart()
        call.wire.counts.pop(kernel, None)
        if found:
            _enter(kernel, found.it.cwd)

    await call.use(restart, box)
    return {}


def _enter(kernel: Sandbox, folder: str) -> None:
    if folder != HOME and (error := run_hidden(kernel, f"import os\nos.chdir({in_sandbox(folder)!r})").error):
        raise HTTPException(400, f"cwd is not usable: {error.text[-500:]}")


def context_of(call: E2BRequest, box: E2BSandbox, id_: str) -> OpenResource[Context]:
    """Return a further kernel of this sandbox; raise HTTPException (404) if it has none of this id."""
    return call.wire.contexts.find(box.place, id_, f"Context {id_[:64]} not found")


def _shown(id_: str, cwd: str) -> dict[str, str]:
    return {"id": id_, "language": "python", "cwd": cwd}


def check_language(language: str | None) -> None:
    """Raise HTTPException (501) for a language without a kernel."""
    if language not in LANGUAGES:
        raise HTTPException(501, f"{language!r:.40} has no kernel here: use python, or a command for bash.")


def run_hidden(kernel: Sandbox, code: str, cancelled: Event | None = None) -> Execution:
    """Run code that leaves no names, and no result."""
    return kernel.run_code(f"exec({code!r}, {{}})", cancelled=cancelled)
