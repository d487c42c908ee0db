"""The code interpreter: a model's Python, run in a sandbox of its own, answered as Markdown."""

from __future__ import annotations

import threading
import uuid
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from agent_tools import settings
from agent_tools.errors import FileRejected
from agent_tools.execution import Execution, Output, Picture, StagedFile, finished
from agent_tools.runtime.files.work_dir import prepare_work_dir
from agent_tools.runtime.files.workspace import Workspace
from agent_tools.runtime.sandbox import SessionSpec
from agent_tools.tools.base import BaseToolWithFileAccess, tool_errors
from agent_tools.tools.code_tool import CodeTool
from agent_tools.tools.options import Options
from agent_tools.tools.params import Params, code_of, files_of, timeout_of
from agent_tools.tools.registry import Config, register_tool
from agent_tools.tools.render import markdown

if TYPE_CHECKING:
    from agent_tools.code_mode.toolset import HostCallsLike
    from agent_tools.runtime.engine import Container
    from agent_tools.runtime.host_calls.host_calls import HostCalls
    from agent_tools.runtime.runtime import Runtime
    from agent_tools.runtime.session import Session


@register_tool("code_interpreter")
class CodeInterpreter(BaseToolWithFileAccess, CodeTool):
    """Runs Python in a container that has no network, no privileges and no way to the host but `work_dir`.

    Variables live from call to call until `close`, `restart`, or a time-out that the code would not obey. Nothing is
    started before the first call. Calls from several threads are served in turn.

    Options, in `cfg` (times in seconds, sizes in bytes):
        work_dir: the folder shared with the sandbox. Default: $M6_CODE_INTERPRETER_WORK_DIR, else
            `$DEFAULT_WORKSPACE/tools/code_interpreter`, else `workspace/tools/code_interpreter`.
        timeout: seconds that a call's code may run, unless the call says otherwise. Default 30.
        static_url: base URL of figures in the Markdown. Default: $M6_CODE_INTERPRETER_STATIC_URL, else file paths.
        figures_dir: the folder for figures, if it is not work_dir.
        packages: further packages for the image, e.g. `['polars==1.35.0']`; installed when it is built, never later.
        image: an image of your own to run instead; it must be derived from ours.
        transport: the way from the host to the sandbox: 'sockets' (mounted unix sockets, the fastest), 'stdio' (works
            with remote engines, in VMs and under gVisor), or 'auto', the one that works. Default 'auto'.
        allow_private_urls: let `files` name URLs on private addresses. Default False.
        hostcalls: functions of the host that the code can call (see `agent_tools.code_mode.Toolset`).
        record, replay: files to record host calls in, and to answer them from (see `agent_tools.code_mode.replay`).
        call_limits: a dict of overrides for `agent_tools.settings.CallLimits`.
        network, memory, cpus, pids, tmp, home, shm, file_size, open_files, runtime, gpus, env: see
            `agent_tools.runtime.engine.Isolation`.
        limits: a dict of overrides for `agent_tools.settings.Limits`.
        name_for_human, args_format: as for every tool.

    Raises:
        InvalidParams: an option is unknown, unusable, or would break the isolation.
    """

    description = "Python code sandbox, which can be used to execute Python code."
    parameters = {  # noqa: RUF012
        "type": "object",
        "properties": {"code": {"description": "The python code.", "type": "string"}},
        "required": ["code"],
    }

    def __init__(
        self,
        cfg: Config | None = None,
        *,
        runtime: Runtime | None = None,
        hostcalls: HostCallsLike | None = None,
    ) -> None:
        super().__init__({**(cfg or {}), **({"hostcalls": hostcalls} if hostcalls is not None else {})})
        self.options = Options.read(self.cfg)
        self.work_dir = str(self.options.work_dir)
        self.instance_id = str(uuid.uuid4())
        self._runtime = runtime
        self._workspace: Workspace | None = None
        self._finalizer: Callable[[], Any] | None = None

    def call(
        self,
        params: Params,
        files: Sequence[str] | None = None,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> str:
        """Run code and return Markdown: what it printed, returned, raised and drew.

        Args:
            params: a dict or JSON (or JSON5) text with `code`, a fenced block, or the code itself. Blank code gives ''.
            files: paths, file:// or http(s) URLs, brought into work_dir first; the answer names those that failed.
            timeout: seconds the code may run. The call returns within this and three seconds, whatever the code does;
                starting a sandbox and fetching URLs have limits of their own.
            kwargs: accepted and ignored, since agents pass more (`messages`, `lang`).

        Raises:
            ToolServiceError: the tool itself failed; `.code` names the failure, `.message` says what to do.
        """
        return self._call(params, files, timeout, threading.Event())

    def run(self, params: Params, files: Sequence[str] | None = None, timeout: float | None = None) -> Execution:
        """Like `call`, but the answer is an `Execution`: every output as a value, figures saved and listed."""
        return finished(self.stream(params, files, timeout))

    def stream(
        self,
        params: Params,
        files: Sequence[str] | None = None,
        timeout: float | None = None,
        cancelled: threading.Event | None = None,
    ) -> Generator[Output, None, Execution]:
        """Like `run`, but yields each output while the code runs, and returns the `Execution` at the end.

        Closing the iterator early interrupts the code; so does `cancel` with the event given here, from any thread.
        """
        return (yield from self._stream(self.read_code(params), files, timeout, cancelled))

    def read_code(self, params: object) -> str:
        """Return the code that a call with these `params` runs.

        Raises:
            InvalidParams: there is no code, or it is longer than `max_code_bytes`.
        """
        return code_of(params, self.options.limits)

    def cancel(self, cancelled: threading.Event) -> None:
        """End the stream that was given this event, while it waits, starts or runs. Variables stay."""
        cancelled.set()
        if session := self._find_session():
            session.cancel(cancelled)

    def markdown(self, execution: Execution) -> str:
        """Return the answer of `call` for an execution of this tool."""
        return markdown(execution, self._url)

    async def acall(
        self,
        params: Params,
        files: Sequence[str] | None = None,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> str:
        """`call` for asyncio and trio. Cancelling it interrupts the code and then waits for its end; variables stay."""
        from agent_tools.runtime.in_thread import in_thread

        cancelled = threading.Event()
        return await in_thread(partial(self._call, params, files, timeout, cancelled), partial(self.cancel, cancelled))

    def stage(self, files: Sequence[str] | None) -> tuple[StagedFile, ...]:
        """Bring files into work_dir, as `call` does with its `files`."""
        with tool_errors():
            return self._open_workspace().stage(files_of(files))

    def save_pictures(self, pictures: Sequence[Picture]) -> tuple[Picture, ...]:
        """Save pictures under fresh names and return them with their paths; '' is the path of one that was refused."""
        return tuple(replace(picture, path=self._saved(picture)) for picture in pictures)

    def start(self) -> None:
        """Start the sandbox now; otherwise the first run does.

        Raises:
            ToolServiceError: it could not be started.
        """
        with tool_errors():
            self._session().open()

    def interrupt(self) -> None:
        """Interrupt the running code as Ctrl-C would; variables stay. Does nothing when nothing runs."""
        if session := self._find_session():
            session.interrupt()

    def restart(self) -> None:
        """Replace the kernel by a fresh one: variables are gone, files stay. Does nothing before the first call."""
        with tool_errors():
            if session := self._find_session():
                session.restart()

    def close(self) -> None:
        """Remove the sandbox. The next call would start a new one. Closing twice does nothing."""
        if self._finalizer:
            self._finalizer()
            self._finalizer = None

    @property
    def sandbox(self) -> Container | None:
        """The sandbox that runs now, if there is one."""
        session = self._find_session()
        return session.sandbox if session else None

    def __enter__(self) -> CodeInterpreter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _default_args_format(self, is_chinese: bool) -> str:
        if is_chinese:
            return "此工具的输入应为Markdown代码块。"
        return "Enclose the code within triple backticks (`) at the beginning and end of the code."

    # -- a call's parts -----------------------------------------------------------------------------------------------

    def _call(
        self, params: Params, files: Sequence[str] | None, timeout: float | None, cancelled: threading.Event
    ) -> str:
        code = self.read_code(params)
        if not code.strip():
            return ""
        return self.markdown(finished(self._stream(code, files, timeout, cancelled)))

    def _stream(
        self, code: str, files: Sequence[str] | None, timeout: float | None, cancelled: threading.Event | None
    ) -> Generator[Output, None, Execution]:
        seconds = timeout_of(timeout, self.options.timeout, self.options.limits)
        with tool_errors():
            staged, before = self.stage(files), self._open_workspace().snapshot()
            with closing(self._session().stream(code, seconds, cancelled)) as outputs:
                execution = yield from outputs
            saved = self.save_pictures(execution.pictures)
            own = [Path(picture.path).name for picture in saved if picture.path]
            changes = self._open_workspace().changes(before, ignore=own)
            return replace(execution, files=staged, changes=changes, saved=saved)

    def _saved(self, picture: Picture) -> str:
        try:
            return self._open_workspace().save_picture(picture.data, picture.suffix, self.options.figures_dir)
        except FileRejected:
            return ""

    def _url(self, path: str) -> str:
        base = self.options.static_url or settings.static_url()
        return f"{base.rstrip('/')}/{Path(path).name}" if base else path

    def _session(self) -> Session:
        runtime = self._open_runtime()
        session = runtime.find(self.instance_id)
        if session:
            return session
        tag = self.options.image or runtime.ensure_image(self.options.packages)
        options = self.options
        calls, prelude = self._host_calls()
        spec = SessionSpec(
            tag, self._open_workspace().path, options.isolation, options.limits, options.transport, calls, prelude
        )
        if self._finalizer is None:
            self._finalizer = weakref.finalize(self, runtime.close, self.instance_id)
        return runtime.open(self.instance_id, spec)

    def _host_calls(self) -> tuple[HostCalls | None, str]:
        """Return the service of this tool's host functions, and the code that defines them in the sandbox."""
        if not self.options.hostcalls:
            return None, ""
        from agent_tools.code_mode.attachments import rich_value
        from agent_tools.code_mode.replay import recorded
        from agent_tools.code_mode.toolset import Toolset
        from agent_tools.runtime.host_calls.host_calls import HostCalls

        toolset = Toolset.of(self.options.hostcalls)
        functions = recorded(toolset.functions, self.options.record, self.options.replay)
        return HostCalls(functions, self.options.call_limits, rich_value), toolset.source()

    def _find_session(self) -> Session | None:
        return self._runtime.find(self.instance_id) if self._runtime else None

    def _open_runtime(self) -> Runtime:
        if self._runtime is None:
            from agent_tools.runtime.runtime import default_runtime

            self._runtime = default_runtime()
        return self._runtime

    def _open_workspace(self) -> Workspace:
        if self._workspace is None or not self._workspace.path.is_dir():
            guest = self._open_runtime().engine.guest(Path(self.work_dir))
            path = prepare_work_dir(Path(self.work_dir), guest)
            self._workspace = Workspace(path, guest, self.options.limits, self.options.allow_private_urls)
        return self._workspace
