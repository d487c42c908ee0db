"""Scripts in sandboxes: load a script, call its functions, get their results. The names are Isola's.

template = await build_template("python", prelude=..., hostcalls=...)
async with template.create() as sandbox:           # or: with template.create() as sandbox:
await sandbox.load_script(code)
report = await sandbox.run("main")
"""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from agent_tools.code_mode.async_script import AsyncScript
from agent_tools.code_mode.attachments import rich_value
from agent_tools.code_mode.script import Script
from agent_tools.code_mode.toolset import HostCallsLike, Toolset
from agent_tools.engines.isolation import Isolation
from agent_tools.errors import InvalidParams
from agent_tools.limits import CallLimits, Limits
from agent_tools.machine.removal import remove_tree
from agent_tools.runtime.engine_lookup import shared_runtime
from agent_tools.runtime.files.temp_work_dir import make_temp_work_dir
from agent_tools.runtime.files.work_dir import prepare_work_dir
from agent_tools.runtime.host_calls.host_calls import HostCalls
from agent_tools.runtime.in_thread import in_thread
from agent_tools.runtime.sandbox.session_spec import SessionSpec

if TYPE_CHECKING:
    from agent_tools.runtime.runtime import Runtime


@dataclass(frozen=True)
class Template:
    """The settings of sandboxes and their functions. A sandbox starts when the result of `create` is entered.

    Attributes:
        runtime_name: 'python'.
        prelude: code that every fresh kernel runs first.
        hostcalls: functions that every sandbox of this template can call, unless `create` has others.
        limits: see `Limits`; `timeout` is the time limit of one `run`.
        call_limits: see `CallLimits`.
        isolation: see `Isolation`.
        packages: additional packages of the image.
        runtime: the owner of the sessions; the shared one by default.
    """

    runtime_name: str = "python"
    prelude: str = ""
    hostcalls: Toolset = field(default_factory=Toolset)
    limits: Limits = field(default_factory=Limits)
    call_limits: CallLimits = field(default_factory=CallLimits)
    isolation: Isolation = field(default_factory=Isolation)
    packages: tuple[str, ...] = ()
    runtime: Runtime | None = None

    def __post_init__(self) -> None:
        if self.runtime_name != "python":
            raise InvalidParams(f"There is no runtime {self.runtime_name!r}; there is 'python'.")

    def create(
        self,
        *,
        hostcalls: HostCallsLike | None = None,
        work_dir: str | Path | None = None,
        max_memory: int | None = None,
        env: dict[str, str] | None = None,
    ) -> SandboxContext:
        """Return the context of a sandbox, for `async with` or `with`.

        Args:
            hostcalls: functions for this sandbox instead of the template's: typed ones or `{name: handler(payload)}`.
            work_dir: a folder to share with the sandbox. Default: a temporary folder that is removed with it.
            max_memory: bytes, instead of the template's limit.
            env: environment variables for the code.
        """
        usual = self.isolation
        memory = usual.memory if max_memory is None else max_memory
        isolation = replace(usual, memory=memory, env=usual.env if env is None else env)
        toolset = Toolset.of(hostcalls) if hostcalls is not None else self.hostcalls
        return SandboxContext(self, toolset, isolation, Path(work_dir) if work_dir else None)


async def build_template(
    runtime: str = "python",
    *,
    prelude: str = "",
    hostcalls: HostCallsLike = (),
    limits: Limits | None = None,
    call_limits: CallLimits | None = None,
    max_memory: int | None = None,
    env: dict[str, str] | None = None,
    packages: tuple[str, ...] = (),
) -> Template:
    """Return a template, after building its image if it is missing.

    Raises:
        ImageBuildError: the image could not be built.
        EngineUnavailable: no container engine answers.
    """
    usual = Isolation()
    isolation = replace(usual, memory=max_memory or usual.memory, env=env or {})
    template = Template(
        runtime,
        prelude,
        Toolset.of(hostcalls),
        limits or Limits(),
        call_limits or CallLimits(),
        isolation,
        tuple(packages),
    )
    await in_thread(partial(_runtime_of(template).ensure_image, template.packages), lambda: None)
    return template


class SandboxContext:
    """The context of a sandbox: entering it starts one, leaving it removes it."""

    def __init__(
        self,
        template: Template,
        toolset: Toolset,
        isolation: Isolation,
        work_dir: Path | None,
    ) -> None:
        self._template = template
        self._toolset = toolset
        self._isolation = isolation
        self._work_dir = work_dir
        self._temporary: Path | None = None
        self._key = str(uuid.uuid4())
        self._script: Script | None = None

    def __enter__(self) -> Script:
        try:
            self._script = self._started()
        except BaseException:
            self._close()
            raise
        return self._script

    def _started(self) -> Script:
        template, runtime = self._template, _runtime_of(self._template)
        folder = self._work_dir
        if folder is None:
            folder = self._temporary = make_temp_work_dir()
        work_dir = prepare_work_dir(folder, runtime.guest(folder))
        calls = HostCalls(self._toolset.functions, template.call_limits, rich_value)
        prelude = "\n".join(filter(None, (self._toolset.source(), template.prelude)))
        spec = SessionSpec(
            runtime.ensure_image(template.packages),
            work_dir,
            self._isolation,
            template.limits,
            host_calls=calls,
            prelude=prelude,
        )
        session = runtime.open(self._key, spec)
        session.open()
        return Script(session, calls, template.limits)

    def __exit__(self, *_: object) -> None:
        self._close()

    async def __aenter__(self) -> AsyncScript:
        try:
            return AsyncScript(await in_thread(self.__enter__, threading.Event().set))
        except BaseException:  # among others, cancelled while it started
            await self.__aexit__()
            raise

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            await in_thread(self._close, lambda: None)

    def _close(self) -> None:
        _runtime_of(self._template).close(self._key)
        if self._temporary:
            remove_tree(self._temporary)


def _runtime_of(template: Template) -> Runtime:
    if template.runtime is not None:
        return template.runtime
    return shared_runtime()
