"""The code interpreter: runs a model's Python in its own sandbox, and answers in Markdown."""

from __future__ import annotations

import copy
import threading
import warnings
import weakref
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from agent_tools import settings
from agent_tools.code_reader import Reading, read_params
from agent_tools.engines.image_versions import contents_told
from agent_tools.engines.volumes import with_volumes
from agent_tools.errors import FileRejected, InvalidParams
from agent_tools.results.execution import Execution, Output, Picture, StagedFile, finished
from agent_tools.results.variables import RestorePoint, SavedState, VariablesReport
from agent_tools.runtime.files.workspace import what_is_there
from agent_tools.runtime.in_thread import in_thread, iterate_in_thread, to_its_end
from agent_tools.sandbox.options import FRESH, Keywords, config_of, timeout_of
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.skills.skill import with_catalogue, without_catalogue
from agent_tools.tools.base import BaseToolWithFileAccess, Config, Params, file_errors, tool_errors
from agent_tools.tools.code_tool import CodeTool
from agent_tools.tools.registry import register_tool
from agent_tools.tools.tool_sandbox import ToolSandbox

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from agent_tools.code_mode.toolset import HostCallsLike
    from agent_tools.engines.engine import EngineContainer
    from agent_tools.runtime.runtime import Runtime


@register_tool("code_interpreter")
class CodeInterpreter(BaseToolWithFileAccess, CodeTool):
    """Runs Python in a container without network and privileges; `work_dir` is the only folder shared with the host.

    Variables persist from call to call until `close`, `restart`, or a time-out that the code ignored. Nothing is
    started before the first call. Calls from several threads run in turn.

    Options, in `cfg` or as keywords (times in seconds, sizes in bytes or as text: '512m', '4g'):

    * work_dir: the folder shared with the sandbox. Default: $M6_CODE_INTERPRETER_WORK_DIR, else
      `$DEFAULT_WORKSPACE/tools/code_interpreter`, else `workspace/tools/code_interpreter`: one folder for all
      instances, whose files each of them sees, as in Qwen-Agent. Give each user's or conversation's instance its own,
      or 'fresh': a temporary folder that is deleted with the instance.
    * timeout: seconds that a call's code may run, unless the call has its own limit. Default 30.
    * static_url: base URL of figures in the Markdown. Default: $M6_CODE_INTERPRETER_STATIC_URL, else file paths.
    * figures_dir: the folder for figures, if it is not work_dir.
    * flavour: the packages in the image: 'lean', the data stack; 'full', the packages of hosted interpreters; 'agent',
      the tools of a programmer; 'office', for documents; 'newest', the data stack's newest versions. Default 'lean'.
    * packages, debian_packages: more for the image, e.g. `['polars==1.35.0']`; installed when it is built, not later.
    * image: an image of your own to run instead; it must be derived from ours.
    * describe: 'versions' adds the versions of Python and the main libraries to the tool's `description`, for other
      frameworks; our agents always add them (`definition`), except for your own `image`. Default: the description of
      Qwen-Agent's tool.
    * transport: the way from the host to the sandbox: 'sockets' (mounted unix sockets, the fastest), 'stdio' (works
      with remote engines, in VMs and under gVisor), or 'auto', the one that works. Default 'auto'.
    * allow_private_urls: let `files` name URLs on private addresses. Default False.
    * hostcalls: functions of the host that the code can call (see `agent_tools.code_mode.Toolset`).
    * skills: folders of Agent Skills, or folders of such, which are mounted read-only below /skills and named in the
      tool's description (see docs/skills.md). Default: none.
    * volumes: folders of this machine, or volumes of the engine, that the code sees at /volumes/NAME, e.g.
      `{'datasets': '/srv/data', 'shared': '/srv/shared:rw:20g'}` (see docs/volumes.md). Default: none.
    * history: the number of runs to keep for `as_sandbox.notebook()`. Default 0.
    * audit, audit_code, audit_required: an audit log with two lines for each run: see docs/audit.md. Default: none.
    * network: 'none', a list of names such as `['pypi']`, a dict with more (see `agent_tools.engines.network`), or an
      engine network.
    * memory, cpus, pids, tmp, home, shm, installed, file_size, open_files, runtime, gpus, env: see
      `agent_tools.engines.isolation.Isolation`.
    * limits, call_limits: dicts of overrides for `Limits` and `CallLimits` of `agent_tools.limits`.
    * checkpoint: whether a copy replaces a killed kernel: docs/checkpoints.md. Default True.
    * pool: the number of sandboxes to keep ready for instances with the same options, whose work_dirs lie in the same
      folder: such an instance answers in milliseconds (see docs/pool.md). Default 0.
    * preload: modules that those sandboxes have imported before they are used, e.g. `['numpy', 'pandas']`.
    * idle_stop: seconds without use, after which the sandbox is stopped until its next use. Default 0: never.
    * engine: what runs the sandboxes: 'docker', or another one that is installed (docs/engines.md). Default:
      $AGENT_TOOLS_ENGINE, else 'docker'.
    * name_for_human, args_format: as for every tool.

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
        runtime: Runtime | str | None = None,
        hostcalls: HostCallsLike | None = None,
        **options: Unpack[Keywords],
    ) -> None:
        given, owner = config_of(cfg, options, hostcalls, runtime)
        super().__init__(given)
        self.work_dir = str(self.cfg.get("work_dir") or settings.code_interpreter_work_dir())
        self._shares_default = not self.cfg.get("work_dir") and not settings.is_work_dir_named()
        self._sandbox = ToolSandbox({**self.cfg, "work_dir": self._work_dir}, runtime=owner)
        self.options = self._sandbox.options
        self.instance_id = self._sandbox.id
        if self.options.describe:
            self.description = self._description_with_contents()
        self.description = with_volumes(self.description, self.options.volumes)
        self.description = with_catalogue(self.description, self.options.skills)

    @property
    def work_dir(self) -> str:
        """The folder shared with the sandbox; a 'fresh' one is created when it is first needed."""
        return self._work_dir if self._work_dir != FRESH else str(self._sandbox.workspace.path)

    @work_dir.setter
    def work_dir(self, folder: str) -> None:
        self._work_dir = folder

    def call(
        self,
        params: Params,
        files: Sequence[str] | None = None,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> str:
        """Run code and return Markdown: its printed text, value, error and figures.

        Args:
            params: a dict or JSON (or JSON5) text with `code`, a fenced block, or the code itself. Blank code gives ''.
                The answer notes repairs and omitted parts; see docs/python.md.
            files: paths, file:// or http(s) URLs, copied into work_dir first; the answer names files that failed.
            timeout: seconds the code may run. The call returns within this and three seconds, whatever the code does;
                starting a sandbox and fetching URLs have separate limits.
            kwargs: accepted and ignored, since agents pass more (`messages`, `lang`).

        Raises:
            ToolServiceError: the tool itself failed; `.code` names the failure, `.message` says what to do.
        """
        return self._call(params, files, timeout, threading.Event())

    def run(self, params: Params, files: Sequence[str] | None = None, timeout: float | None = None) -> Execution:
        """Like `call`, but the answer is an `Execution`: every output as a value, figures saved and listed.

        Raises:
            ToolServiceError: a file does not exist or cannot be read; no code was run.
        """
        return self._run(self._read(params), files, timeout, threading.Event())

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
        return (yield from self._stream(self._read(params), files, timeout, cancelled))

    def read_code(self, params: object) -> str:
        """Return the code that a call with these `params` runs; see `CodeTool.read_code`."""
        return self._read(params).code

    @property
    def definition(self) -> dict[str, Any]:
        """`function`; its description has the versions of Python and the main libraries, except for an `image`."""
        return {**self.function, "description": self._description_with_contents()}

    def cancel(self, cancelled: threading.Event) -> None:
        """End the stream that was given this event, while it waits, starts or runs. Variables stay."""
        self._sandbox.cancel(cancelled)

    def markdown(self, execution: Execution) -> str:
        """Return the answer of `call` for an execution of this tool."""
        return self._sandbox.markdown(execution)

    async def arun(self, params: Params, files: Sequence[str] | None = None, timeout: float | None = None) -> Execution:
        """`run` for asyncio and trio. Cancelling it interrupts the code and then waits for its end; variables stay."""
        cancelled = threading.Event()
        work = partial(self._run, self._read(params), files, timeout, cancelled)
        return await in_thread(work, partial(self.cancel, cancelled))

    def astream(
        self, params: Params, files: Sequence[str] | None = None, timeout: float | None = None
    ) -> AsyncGenerator[Output, None]:
        """`stream` for asyncio and trio. Closing it, or cancelling its reader, interrupts the code."""
        cancelled = threading.Event()
        outputs = self._stream(self._read(params), files, timeout, cancelled)
        return iterate_in_thread(outputs, partial(self.cancel, cancelled))

    async def acall(
        self,
        params: Params,
        files: Sequence[str] | None = None,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> str:
        """`call` for asyncio and trio. Cancelling it interrupts the code and then waits for its end; variables stay."""
        cancelled = threading.Event()
        return await in_thread(partial(self._call, params, files, timeout, cancelled), partial(self.cancel, cancelled))

    def stage(self, files: Sequence[str] | None) -> tuple[StagedFile, ...]:
        """Copy files into work_dir, as `call` does with its `files`."""
        with tool_errors():
            return self._sandbox.stage(files_of(files))

    def save_pictures(self, pictures: Sequence[Picture]) -> tuple[Picture, ...]:
        """Save pictures under new names and return them with their paths; a refused picture has the path ''."""
        return self._sandbox.save_pictures(pictures)

    def start(self) -> None:
        """Start the sandbox now; otherwise the first run does.

        Raises:
            ToolServiceError: it could not be started.
        """
        with tool_errors():
            self._sandbox.start()

    def interrupt(self) -> None:
        """Interrupt the running code as Ctrl-C would; variables stay. Does nothing when nothing runs."""
        self._sandbox.interrupt()

    def fork(self) -> CodeInterpreter:
        """Return another interpreter in the same sandbox that starts with a copy of the current variables.

        It is closed on its own, or with this one. Errors and limits as for `Sandbox.fork`.
        """
        with tool_errors():
            sandbox = self._sandbox.fork()
        forked = copy.copy(self)
        forked._sandbox, forked.instance_id = sandbox, sandbox.id
        return forked

    def undo(self) -> None:
        """Restore the variables from before the last call; files stay. Errors as for `Sandbox.undo`."""
        with tool_errors():
            self._sandbox.undo()

    def checkpoint(self) -> RestorePoint:
        """Store the current variables for `rollback`. Errors as for `Sandbox.checkpoint`."""
        with tool_errors():
            return self._sandbox.checkpoint()

    def rollback(self, mark: RestorePoint) -> None:
        """Restore the variables of a checkpoint; files stay. Errors as for `Sandbox.rollback`."""
        with tool_errors():
            self._sandbox.rollback(mark)

    def save(self) -> SavedState:
        """Return files and variables, for `load`, and what could not be saved. Raises ToolServiceError."""
        with tool_errors(), file_errors():
            return self._sandbox.save(variables=True)

    def load(self, state: SavedState | bytes | BinaryIO) -> VariablesReport:
        """Restore the result of `save`; return which variables were restored. Raises ToolServiceError."""
        with tool_errors(), file_errors():
            return self._sandbox.load(state)

    def restart(self) -> None:
        """Replace the kernel by a fresh one: variables are gone, files stay. Does nothing before the first call."""
        with tool_errors():
            self._sandbox.restart()

    def close(self) -> None:
        """Remove the sandbox. The next call would start a new one. Closing twice does nothing."""
        _in_default_folder.discard(self)
        self._sandbox.close()

    @property
    def sandbox(self) -> EngineContainer | None:
        """The container that runs now, if there is one."""
        return self._sandbox.container

    @property
    def as_sandbox(self) -> Sandbox:
        """The sandbox of the code, with commands and all files, for programs; it closes with this tool."""
        return self._sandbox

    def __enter__(self) -> CodeInterpreter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> CodeInterpreter:
        return self

    async def __aexit__(self, *_: object) -> None:
        await to_its_end(self.close)

    def _description_with_contents(self) -> str:
        contents = "" if self.options.image else contents_told(self.options.recipe)
        if contents in self.description:
            return self.description
        skills = self.options.skills
        return with_catalogue(f"{without_catalogue(self.description, skills)} {contents}", skills)

    def _default_args_format(self, is_chinese: bool) -> str:
        if is_chinese:
            return "此工具的输入应为Markdown代码块。"
        return "Enclose the code within triple backticks (`) at the beginning and end of the code."

    # -- a call's parts -----------------------------------------------------------------------------------------------

    def _call(
        self, params: Params, files: Sequence[str] | None, timeout: float | None, cancelled: threading.Event
    ) -> str:
        reading = self._read(params)
        if not reading.code.strip():
            return ""
        return self.markdown(finished(self._stream(reading, files, timeout, cancelled)))

    def _read(self, params: object) -> Reading:
        return read_params(params, self.options.limits)

    def _run(
        self, reading: Reading, files: Sequence[str] | None, timeout: float | None, cancelled: threading.Event
    ) -> Execution:
        return finished(self._stream(reading, files, timeout, cancelled, needs_files=True))

    def _stream(
        self,
        reading: Reading,
        files: Sequence[str] | None,
        timeout: float | None,
        cancelled: threading.Event | None,
        *,
        needs_files: bool = False,
    ) -> Generator[Output, None, Execution]:
        timeout_of(timeout, self.options.timeout)  # before a file is touched
        if self._shares_default:
            _warn_of_others(self)
        with tool_errors():
            staged = () if files is None else self.stage(files)
            for file in staged if needs_files else ():
                if file.name is None:
                    raise FileRejected(f"{file.source!r} cannot be had: {file.error}.{what_is_there(file.source)}")
            with closing(self._sandbox.stream_saved(reading, timeout, cancelled)) as outputs:
                execution = yield from outputs
            return replace(execution, files=staged) if staged else execution


def _warn_of_others(tool: CodeInterpreter) -> None:
    """Warn if two live instances share the default folder without naming it."""
    tool._shares_default = False
    _in_default_folder.add(tool)
    if len(_in_default_folder) > 1:
        warnings.warn(
            f"Two CodeInterpreter instances share the folder {tool.work_dir} and see each other's files. Give each "
            "a work_dir of its own: CodeInterpreter(work_dir='fresh'), or a path.",
            stacklevel=1,  # of this line: Python shows it once
        )


_in_default_folder: weakref.WeakSet[CodeInterpreter] = weakref.WeakSet()


def files_of(files: object) -> list[str]:
    """Return the paths and URLs of a call; for None, an empty list.

    Raises:
        InvalidParams: it is not a list of paths or URLs.
    """
    if files is None:
        return []
    if isinstance(files, (str, bytes)) or not isinstance(files, Sequence):
        raise InvalidParams(f"files={files!r:.80} is not usable: give a list of paths or URLs.")
    for file in files:
        if not isinstance(file, (str, Path)):
            raise InvalidParams(f"files has {file!r:.80}, which is not a path or a URL.")
    return [str(file) for file in files]
