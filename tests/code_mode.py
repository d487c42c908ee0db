"""Scripts on the process double, for the tests of code mode."""

from __future__ import annotations

from typing import Any

from agent_tools.code_mode.template import SandboxContext, Template
from agent_tools.code_mode.toolset import HostCallsLike, Toolset
from agent_tools.limits import CallLimits, Limits
from agent_tools.runtime.runtime import Runtime
from tests.doubles import ProcessEngine


def process_runtime() -> Runtime:
    """A runtime whose sandboxes are processes."""
    return Runtime(ProcessEngine(), lambda packages: "none")


def template(
    hostcalls: HostCallsLike = (),
    *,
    prelude: str = "",
    timeout: float = 20.0,
    kill_grace: float = Limits.kill_grace,
    cancel_grace: float = Limits.cancel_grace,
    **limits: Any,
) -> Template:
    """A template on the process double; `limits` are those of host calls."""
    return Template(
        prelude=prelude,
        hostcalls=Toolset.of(hostcalls),
        limits=Limits(timeout=timeout, kill_grace=kill_grace, cancel_grace=cancel_grace),
        call_limits=CallLimits(**limits),
        runtime=process_runtime(),
    )


def sandbox(hostcalls: HostCallsLike = (), **options: Any) -> SandboxContext:
    """A sandbox with these functions, to be entered."""
    return template(hostcalls, **options).create()
