"""Code: run in the first kernel of a sandbox or in a further one, a context; its outputs are lines of JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any

from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse

from agent_tools.bodies.json_body import at_most
from agent_tools.errors import AgentToolsError
from agent_tools.limits import MAX_TIMEOUT
from agent_tools.results.execution import Display, Error, Notice, Omitted, Output, Restarted, Result, Stream
from agent_tools.results.outputs import Died, TimedOut
from agent_tools.runtime.in_thread import iterate_in_thread
from agent_tools.wires.e2b.contexts import DEFAULT, check_language, context_of, run_hidden
from agent_tools.wires.e2b.state import ROUTES, Context, E2BRequest, E2BSandbox
from agent_tools.wires.open_resources import SLOT_TIMEOUT, CodeRun
from agent_tools.wires.routing import bundle, failure_of, while_connected

_FORMS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "application/vnd.e2b.data+json": "data",
    "application/vnd.e2b.chart+json": "chart",
}
_FORMS_ADDED = (Path(__file__).parent / "guest" / "forms.py").read_text()
_SET = "import os\nos._before = {{k: os.environ.get(k) for k in {own!r}}}\nos.environ.update({every!r})"
_RESET = (
    "import os\nfor k, v in os.__dict__.pop('_before', {}).items():\n"
    "    os.environ.pop(k, None) if v is None else os.environ.update({k: v})"
)
Variables = Annotated[dict[str, str], at_most(1_000)]


@ROUTES.on("POST", "/execute")
async def _execute(
    call: E2BRequest,
    code: str,
    context_id: str | None = None,
    language: str | None = None,
    env_vars: Variables | None = None,
) -> Any:
    check_language(language)
    box, stop = await call.here(), CodeRun()
    call.wire.runs[stop] = box.place
    call.wire.ensure_timed(box)
    context = None if context_id in (None, "", DEFAULT) else context_of(call, box, str(context_id)).it
    lines = iterate_in_thread(_lines(call, box, context, code, env_vars or {}, stop), stop.cancel)
    await while_connected(call.request, anext(lines, ""))  # wait for the sandbox, or for its failure

    async def sent() -> Any:
        try:
            async with aclosing(lines):
                async for line in lines:
                    yield line
        except (AgentToolsError, OSError) as exc:  # the sandbox was killed, or its host fails
            why, _ = failure_of(exc)
            yield _line({"type": "error", "name": type(exc).__name__, "value": why, "traceback": why})

    return StreamingResponse(sent(), media_type="application/x-ndjson")


def _lines(
    call: E2BRequest, box: E2BSandbox, context: Context | None, code: str, envs: dict[str, str], stop: CodeRun
) -> Generator[str, None, None]:
    """Yield '' once the sandbox runs, then the lines of the answer."""
    counts = call.wire.counts
    with call.wire.containers.acquire(box.id, SLOT_TIMEOUT) as (sandbox, woken):
        note = woken.result()
        kernel = stop.of(context.sandbox if context else sandbox)
        is_new = kernel not in counts
        lacks_forms = is_new and run_hidden(kernel, _FORMS_ADDED, stop.event).error is not None
        for every in filter(None, (box.state.envs if is_new else {}, envs)):
            if error := run_hidden(kernel, _SET.format(own=list(envs), every=every), stop.event).error:
                raise HTTPException(400, f"The environment variables are not usable: {error.text[-500:]}")
        yield ""
        if note:
            yield _line({"type": "stderr", "text": f"[{note}]\n", "timestamp": time.time_ns()})
        counts[kernel] = count = counts.get(kernel, 0) + 1
        try:
            for output in kernel.stream(code, MAX_TIMEOUT, stop.event):
                if isinstance(output, Died | Restarted):
                    counts.pop(kernel, None)  # its forms, unless a checkpoint has them, and then they are added again
                if shown := line_of(output):
                    yield _line(shown)
        finally:
            if lacks_forms:
                counts.pop(kernel, None)  # so that the next call adds them
            if envs:
                run_hidden(kernel, _RESET)
        yield _line({"type": "number_of_executions", "execution_count": count})


def _line(shown: dict[str, Any]) -> str:
    return json.dumps(shown, separators=(",", ":")) + "\n"


def line_of(output: Output) -> dict[str, Any] | None:
    """Return an output as a line of the answer; None for an output that E2B does not have."""
    match output:
        case Stream():
            return {"type": output.name, "text": output.text, "timestamp": time.time_ns()}
        case Result() | Display():
            forms, extra = dict[str, Any](), dict[str, Any]()
            for mime, value in bundle(output.data).items():
                name = _FORMS.get(mime)
                if name:
                    forms[name] = value
                else:
                    extra[mime] = value
            text = str(forms.get("text", ""))
            if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
                forms["text"] = text[1:-1]  # a string is shown without its quotes, as there
            return {"type": "result", "is_main_result": isinstance(output, Result), **forms, "extra": extra}
        case Error():
            return {"type": "error", "name": output.name, "value": output.value, "traceback": output.traceback}
        case TimedOut() | Died():
            return {"type": "error", "name": type(output).__name__, "value": output.text, "traceback": output.text}
        case Notice() | Omitted() | Restarted():
            return {"type": "stderr", "text": f"[{output.text}]\n", "timestamp": time.time_ns()}
    return None
