"""The worker of Claude Managed Agents' self-hosted environments: `agent-tools worker claude --environment-id ID`.

Anthropic's `EnvironmentWorker` claims sessions and runs their tools; the tools here are its six, in a sealed container
for each session. The environment's key is in this process alone. Names and inputs of the tools are the SDK's:
https://github.com/anthropics/anthropic-sdk-python, lib/tools/agent_toolset.py.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import secrets
import shlex
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import wraps
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias
from weakref import WeakSet

from agent_tools import AsyncSandbox
from agent_tools.engines.volumes import read_volumes
from agent_tools.errors import AgentToolsError, InvalidParams
from agent_tools.extras import extra
from agent_tools.integrations.memory_folders import MemoryFolder
from agent_tools.limits import KIB, MIB
from agent_tools.machine.owner import Owner
from agent_tools.machine.private_folder import private_base
from agent_tools.results.commands import Cursor
from agent_tools.runtime.engine_lookup import shared_runtime
from agent_tools.runtime.in_thread import to_its_end
from agent_tools.sandbox.async_sandbox import AsyncProcess
from agent_tools.sandbox.audit import AuditLog

with extra("claude-agents"):
    from anthropic import AsyncAnthropic
    from anthropic.lib.environments import EnvironmentWorker
    from anthropic.lib.tools import BetaAsyncFunctionTool, ToolError
    from anthropic.lib.tools.agent_toolset import AgentToolContext, beta_agent_toolset_20260401

SESSION_SECONDS = 3_600.0
COMMAND_SECONDS, MAX_COMMAND_SECONDS, SEARCH_SECONDS = 120.0, 140.0, 30.0  # the runner ends a call at 150
MAX_TEXT = 256 * KIB  # bytes of a file of text that is read or edited
MAX_PRINTED = 100 * KIB  # bytes of output
MAX_MEDIA = {"image": 3_750 * KIB, "document": 20 * MIB}  # bytes; the API has 5 MiB of base64
MAX_FOUND = 200  # files
_MEDIA = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".pdf": "application/pdf",
}
_GLOB = """
import itertools, os, pathlib, sys
root, pattern, most = sys.argv[1:]
def changed(path):
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0
found = list(itertools.islice(pathlib.Path(os.path.abspath(root)).glob(pattern), 50_000))
print("\\n".join(map(str, sorted(found, key=changed, reverse=True)[:int(most)])))
"""
_GREP = ("grep", "-rnIP", "--exclude-dir=.git", "--exclude-dir=node_modules")
Tool: TypeAlias = BetaAsyncFunctionTool[Any]
Call = Callable[..., Coroutine[Any, Any, Any]]
_log = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)  # its options may hold secrets
class ClaudeWorker:
    """Serves sessions of an environment, at most `sessions` at once, until `run` is cancelled.

    Args:
        environment_id: the id of the self-hosted environment.
        environment_key: its key, which no sandbox gets.
        sessions: how many sessions run at once, each in a container of its own.
        seconds: how long a session may use its container, from its first tool on.
        keep: a folder where each session's files stay, below the session's id; without it they are deleted.
        files: paths and URLs that are copied into each session's folder.
        options: of `Sandbox`.
        client: the client of the API; by default one with the key.
        more: further arguments of `EnvironmentWorker`, such as `max_idle`.
    """

    environment_id: str
    environment_key: str = field(repr=False)
    _: KW_ONLY
    sessions: int = 4
    seconds: float = SESSION_SECONDS
    keep: Path | None = None
    files: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    client: AsyncAnthropic | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    _boxes: WeakSet[SessionBox] = field(default_factory=WeakSet, init=False)

    async def run(self) -> None:
        """Claim sessions and serve them. Cancelling ends all sessions with their containers."""
        client = self.client or AsyncAnthropic(auth_token=self.environment_key)
        serving = [asyncio.ensure_future(self._serve(client)) for _ in range(self.sessions)]
        try:
            done, _ = await asyncio.wait(serving, return_when=asyncio.FIRST_EXCEPTION)
            for each in done:
                each.result()
        finally:
            for each in serving:
                each.cancel()
            ends = (box.close() for box in list(self._boxes))
            closed = await asyncio.gather(*ends, return_exceptions=True)  # first: a call under way ends by this
            await asyncio.gather(*serving, return_exceptions=True)
            for failure in filter(None, closed):
                _log.error("A session's container could not be removed.", exc_info=failure)

    async def _serve(self, client: AsyncAnthropic) -> None:
        """Serve one session after another, with a folder on the host for its skills, which no container sees.

        It lies where the next process of this user removes what a killed one has left.
        """
        given = {"environment_id": self.environment_id, "environment_key": self.environment_key, **self.more}
        with tempfile.TemporaryDirectory(prefix=f"{Owner.current().token}-", dir=private_base()) as folder:
            await EnvironmentWorker(client, tools=self._tools, workdir=folder, **given).run()

    def _tools(self, context: AgentToolContext) -> list[Tool]:
        id_ = context.session.id if context.session else secrets.token_hex(8)
        box = SessionBox(context, self._cfg(id_, context), self.files, self.seconds)
        self._boxes.add(box)
        return box.tools()

    def _cfg(self, id_: str, context: AgentToolContext) -> dict[str, Any]:
        cfg, name = dict(self.options), "".join(each if each.isalnum() or each in "-_" else "_" for each in id_)[:100]
        if self.keep:
            cfg["work_dir"] = str(self.keep / name)
        if audit := cfg.get("audit"):
            log = AuditLog(audit, bool(cfg.pop("audit_code", False)), bool(cfg.pop("audit_required", True)))
            cfg["audit"] = log.of(container=name, origin="claude")
        skills = Path(context.workdir) / "skills"
        if skills.is_dir():
            cfg["skills"] = [*cfg.get("skills", ()), *sorted(map(str, skills.iterdir()))]
        return cfg


class SessionBox:
    """The container of one session, and its tools. It starts with the first call."""

    def __init__(self, context: AgentToolContext, cfg: dict[str, Any], files: Sequence[str], seconds: float) -> None:
        self._context = context
        self._files = files
        self._seconds = seconds
        can_mount = False
        with suppress(AgentToolsError):  # what is wrong with the engine is the first call's error
            can_mount = bool(context.allowed_roots) and shared_runtime(cfg.get("engine")).guest().shares_files
        with ExitStack() as made:
            given = ((each, each in context.read_only_roots, can_mount) for each in context.allowed_roots)
            self._memories = [made.enter_context(closing(MemoryFolder(*each))) for each in given]
            mounted = [each.volume for each in self._memories if each.volume]
            self._sandbox = AsyncSandbox({**cfg, "volumes": [*read_volumes(cfg.get("volumes") or ()), *mounted]})
            self._forget = made.pop_all().close
        self._shell: AsyncProcess | None = None
        self._end: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
        self._starting, self._has_started = asyncio.Lock(), False
        self._is_over = False

    def tools(self) -> list[Tool]:
        """Return the SDK's six tools with the functions of this class; the first one's cleanup closes the container."""
        tools = [
            Tool(self._called(getattr(self, each.name)), name=each.name, input_schema=each.input_schema)
            for each in beta_agent_toolset_20260401(self._context)
        ]
        tools[0].close = self.close
        return tools

    async def close(self) -> None:
        """Remove the container; files stay only where the worker keeps them."""
        self._is_over = True
        if self._end:
            self._end.cancel()
        try:
            if missing := await self._pull():  # jobs, or a call that was cancelled, may have changed something
                _log.warning("%s", missing)
            await self._sandbox.close()
        finally:
            await to_its_end(self._forget)

    def _called(self, method: Call) -> Call:
        """Return a tool that starts the container if needed, keeps memories in step, and fails with words."""

        @wraps(method)
        async def call(**given: Any) -> Any:
            failure: ToolError | None = None
            try:
                try:
                    with _in_words(method.__name__, given.get("file_path", "")):
                        await self._ready()
                        result = await method(**given)
                except ToolError as exc:  # what it has changed counts, too
                    failure, result = exc, str(exc)
                if missing := await self._pull():
                    raise ToolError(f"{result}\n\n{missing}" if isinstance(result, str) else missing) from failure
            finally:
                if self._is_over:  # meanwhile, and then this call may have started the container again
                    await self._sandbox.close()
            if failure:
                raise failure
            return result

        return call

    async def _pull(self) -> str:
        """Copy what code has changed in memories; return a sentence on what could not be copied, normally ''."""
        failed = list[str]()
        for memory in self._memories if self._sandbox.is_alive else ():
            try:
                names = await memory.pull()
            except AgentToolsError as exc:
                names = str(exc)
            failed += [f"{memory.root}: {names}"] if names else []
        return f"Not all changes in the memory could be kept, {'; '.join(failed)}." if failed else ""

    async def _ready(self) -> None:
        if self._end is None:
            self._end = asyncio.get_running_loop().call_later(self._seconds, self._end_late)
        async with self._starting:
            if not (self._has_started or self._is_over):  # after a failure the next call tries again
                await self._sandbox.start()
                if self._files:
                    await self._sandbox.stage(list(self._files))
                if self._sandbox.sync.skills:
                    await self._sandbox.run_command("ln -sfn /skills skills")
                self._has_started = True
        if self._is_over:  # also if it has ended while the container started
            raise ToolError(f"The session's container has ended: a session may use it for {self._seconds:g} seconds.")
        for memory in self._memories:
            await memory.push(self._sandbox)

    def _end_late(self) -> None:
        self._closing = asyncio.ensure_future(self.close())

    def _inside(self, path: str, *, to_write: bool = False) -> str:
        """Return a path as the sandbox takes it."""
        for memory in self._memories:
            inside = memory.inside(path)
            if inside is not None and to_write and memory.is_read_only:
                raise InvalidParams(f"{path} is inside read-only directory {memory.root}")
            path = path if inside is None else inside
        return path

    async def bash(self, command: str | None = None, restart: bool | None = None, timeout_ms: int | None = None) -> str:
        """Run a command in a shell that keeps its directory, variables and jobs."""
        if restart:
            self._end_shell()
            return "bash session restarted"
        if not command or "\0" in command:
            raise ToolError("bash: command is required")
        seconds = min(timeout_ms / 1000 if timeout_ms else COMMAND_SECONDS, MAX_COMMAND_SECONDS)
        shell = self._shell
        if shell is None or shell.is_over:
            started = await self._sandbox.start_command(
                ["/bin/bash", "--noprofile", "--norc"], stdin=b"", env={"TERM": "dumb"}, max_output=MAX_PRINTED + KIB
            )
            self._shell = shell = started
        mark, place = f"__done_{secrets.token_hex(16)}_", shell.place
        lines = f"eval {shlex.quote(command)} </dev/null 2>&1\nprintf '\\n%s%d\\n' {mark} $?\n"
        try:
            await shell.write_stdin(lines.encode("utf-8", "replace"), 10)
            printed, code = await asyncio.wait_for(_to_mark(shell, place, mark), seconds)
        except (TimeoutError, BrokenPipeError) as exc:
            self._end_shell()
            why = f"timed out after {seconds:g}s" if isinstance(exc, asyncio.TimeoutError) else "ended its shell"
            raise ToolError(f"bash: the command {why}. The next one starts in a new shell.") from None
        except asyncio.CancelledError:
            self._end_shell()
            raise
        if code != 0:
            raise ToolError(printed or f"exit code {code}")
        return printed

    def _end_shell(self) -> None:
        if self._shell:
            self._shell.kill()
            self._shell = None

    async def read(self, file_path: str, view_range: list[int] | None = None) -> Any:
        """Read a file: text, whole or lines of it, an image or a PDF."""
        media = _MEDIA.get(PurePosixPath(file_path).suffix.lower())
        if view_range and (media or len(view_range) != 2):
            raise InvalidParams("view_range is [start_line, end_line], of text")
        if media:
            kind = "document" if media == "application/pdf" else "image"
            data = base64.b64encode(await self._content(file_path, MAX_MEDIA[kind])).decode()
            return [{"type": kind, "source": {"type": "base64", "media_type": media, "data": data}}]
        text = await self._text(file_path, 16 * MIB if view_range else MAX_TEXT)
        if view_range:
            first, last = view_range
            text = "\n".join(text.split("\n")[max(0, first - 1) : last if last > 0 else None])
            if len(text.encode()) > MAX_TEXT:
                raise InvalidParams(f"these lines of {file_path} exceed the {MAX_TEXT}-byte limit; read fewer")
        return text

    async def write(self, file_path: str, content: str) -> str:
        """Write a file, and the folders above it."""
        await self._sandbox.write_file(self._inside(file_path, to_write=True), content.encode("utf-8", "replace"))
        return f"wrote {len(content)} characters to {file_path}"

    async def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool | None = None) -> str:
        """Replace text in a file."""
        path, text = self._inside(file_path, to_write=True), await self._text(file_path, MAX_TEXT)
        count = text.count(old_string) if old_string else 0
        if count == 0 or (count > 1 and not replace_all):
            found = f"appears {count} times in {file_path} (must be unique)" if count else f"not found in {file_path}"
            raise InvalidParams(f"old_string {found}")
        await self._sandbox.write_file(path, text.replace(old_string, new_string).encode("utf-8", "replace"))
        return f"edited {file_path} ({count} replacement(s))"

    async def glob(self, pattern: str, path: str | None = None) -> str:
        """List files of a pattern, the newest first."""
        if pattern.startswith("/") or ".." in PurePosixPath(pattern).parts:
            raise InvalidParams("give a relative pattern without '..', and path")
        root = self._inside(path or ".")
        return await self._search(["python3", "-I", "-c", _GLOB, root, pattern, str(MAX_FOUND)])

    async def grep(self, pattern: str, path: str | None = None) -> str:
        """Search the lines of files for a regular expression."""
        return await self._search([*_GREP, "-e", pattern, "--", self._inside(path or ".")], may_fail=True)

    async def _search(self, command: list[str], *, may_fail: bool = False) -> str:
        """Return what a command finds. One that `may_fail` has the exit codes of grep, which may not read all files."""
        ran = await self._sandbox.run_command(command, timeout=SEARCH_SECONDS, max_output=MAX_PRINTED)
        text = ran.texts[0].removesuffix("\n")
        is_answer = ran.ok or (may_fail and (ran.exit_code == 1 or (ran.exit_code == 2 and text)))
        if ran.timed_out or not is_answer:
            raise InvalidParams(ran.reason or ran.texts[1].strip()[-1_000:])
        return text or "no matches"

    async def _text(self, shown: str, most: int) -> str:
        try:
            return (await self._content(shown, most)).decode()
        except UnicodeDecodeError:
            raise InvalidParams(f"{shown}: not valid UTF-8 text") from None

    async def _content(self, shown: str, most: int) -> bytes:
        path = self._inside(shown)
        info = await self._sandbox.stat(path)
        if info.kind != "file":
            raise InvalidParams(f"{shown}: not a regular file")
        if info.size > most:
            raise InvalidParams(f"{shown} is {info.size} bytes, exceeds {most}-byte limit; read lines by view_range")
        return await self._sandbox.read_file(path, max_bytes=most)


@contextmanager
def _in_words(name: str, path: object) -> Iterator[None]:
    """Raise ToolError for a failure in a tool of this name, on this path."""
    try:
        yield
    except OSError as exc:
        raise ToolError(f"{name}: {path}: {exc.strerror or exc}") from exc
    except AgentToolsError as exc:
        raise ToolError(f"{name}: {getattr(exc, 'message', '') or exc}") from exc


async def _to_mark(shell: AsyncProcess, start: Cursor, mark: str) -> tuple[str, int]:
    """Return what a shell prints before its mark, and the exit code behind it.

    Raises:
        BrokenPipeError: the shell has ended.
    """
    while True:
        is_over, new = shell.is_over, shell.sync.read(start)
        before, found, behind = new.stdout.rpartition(f"\n{mark}".encode())
        if found and b"\n" in behind:
            cut = new.omitted or len(before) > MAX_PRINTED
            text = before[-MAX_PRINTED:].decode("utf-8", "replace").removesuffix("\n")
            return ("[output truncated]\n" if cut else "") + text, int(behind.split(b"\n")[0] or 0)
        if is_over:
            raise BrokenPipeError
        await shell.changed(new.cursor)
