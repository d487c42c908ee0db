"""Strands: `Agent(sandbox=AgentToolsSandbox())`, commands, code with state, and files in one sandbox, as streams.

`Sandbox` is theirs, of strands-agents (https://strandsagents.com/), which has the tools for it.
"""

from __future__ import annotations

import codecs
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from agent_tools import AsyncSandbox
from agent_tools.errors import InvalidParams
from agent_tools.extras import extra
from agent_tools.integrations.common import NAME, ending_of, sandbox_of
from agent_tools.results.commands import Cursor
from agent_tools.results.outputs import Died, Display, Error, Picture, Result, Stream, TimedOut, pictures_of

with extra("strands"):
    from strands.sandbox.base import Sandbox
    from strands.sandbox.errors import SandboxPathNotFoundError, SandboxTimeoutError
    from strands.sandbox.types import ExecutionResult, FileInfo, OutputFile, StreamChunk
    from strands.types.tools import AgentTool
    from strands.vended_tools.file_editor import make_file_editor
    from strands.vended_tools.python_repl import make_python_repl
    from strands.vended_tools.shell import make_shell

DESCRIPTION = (
    "Runs Python in a sandbox with numpy, pandas, scipy, scikit-learn and matplotlib. Variables and files stay from "
    "call to call. The answer has what the code printed and the value of its last expression; save figures as files."
)
TIMEOUT = 86_000.0  # seconds of a command, unless it says otherwise
CHECK_SECONDS = 0.25  # seconds
PYTHON = ("python", "python3", "py", "ipython")
Streamed = AsyncGenerator["StreamChunk | ExecutionResult", None]


class AgentToolsSandbox(Sandbox):
    """Our sandbox as a Strands sandbox.

    Args:
        sandbox: the sandbox to use; one with default options otherwise. It starts with its first use.
    """

    def __init__(self, sandbox: AsyncSandbox | dict[str, Any] | None = None) -> None:
        self.inner = sandbox_of(sandbox)

    async def execute_streaming(
        self,
        command: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> Streamed:
        """Run a command of the shell; leaving the stream ends it."""
        process = await self.inner.start_command(command, cwd=cwd or "", env=env, timeout=timeout or TIMEOUT)
        decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in range(2)]
        cursor = Cursor()
        try:
            while True:
                is_over = process.poll() is not None
                new = await process.read(cursor, wait=0.0 if is_over else CHECK_SECONDS)
                for name, decoder, data in zip(("stdout", "stderr"), decoders, (new.stdout, new.stderr)):
                    if text := decoder.decode(data):
                        yield StreamChunk(data=text, stream_type=name)  # type: ignore[arg-type]
                if is_over and new.cursor == cursor:
                    break
                cursor = new.cursor
            done = await process.wait()
        finally:
            process.kill()
        stdout, stderr = done.texts
        if done.timed_out:
            raise SandboxTimeoutError(timeout or done.duration, stdout, stderr)
        yield ExecutionResult(exit_code=done.exit_code, stdout=stdout, stderr=stderr + ending_of(done))

    async def execute_code_streaming(
        self,
        code: str,
        language: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> Streamed:
        """Run Python, with state; leaving the stream interrupts it, and variables stay.

        Raises:
            InvalidParams: the language is not Python, or a folder or variables are given, which the kernel manages
            itself.
        """
        if language.lower() not in PYTHON:
            raise InvalidParams(f"There is no {language!r} here: use python, or a command.")
        if cwd or env:
            raise InvalidParams("Code runs in a stateful kernel: let the code set its folder and variables itself.")
        texts: dict[str, list[str]] = {"stdout": [], "stderr": []}
        pictures: list[Picture] = []
        exit_code = 0
        async with aclosing(self.inner.stream(code, timeout)) as outputs:
            async for output in outputs:
                name, text = "stdout", ""
                match output:
                    case Stream():
                        name, text = output.name, output.text
                    case Result() | Display():
                        text = f"{output.text}\n"
                        pictures += pictures_of(output)
                    case TimedOut():
                        raise SandboxTimeoutError(output.timeout, "".join(texts["stdout"]), output.text)
                    case Error() | Died():
                        name, text, exit_code = "stderr", output.text, 1
                if text:
                    texts[name].append(text)
                    yield StreamChunk(data=text, stream_type=name)  # type: ignore[arg-type]
        stdout, stderr = ("".join(parts) for parts in texts.values())
        yield ExecutionResult(exit_code, stdout, stderr, _files(pictures))

    async def read_file(self, path: str, **kwargs: Any) -> bytes:
        """Return the bytes of a file."""
        return await self.inner.read_file(path)

    async def write_file(self, path: str, content: bytes, **kwargs: Any) -> None:
        """Write a file; folders above it are made."""
        await self.inner.write_file(path, content)

    async def remove_file(self, path: str, **kwargs: Any) -> None:
        """Remove a file."""
        await self.inner.remove(path)

    async def list_files(self, path: str, **kwargs: Any) -> list[FileInfo]:
        """Return the entries of a folder."""
        try:
            entries = await self.inner.list_files(path)
        except (FileNotFoundError, NotADirectoryError) as exc:
            raise SandboxPathNotFoundError(path) from exc
        return [FileInfo(name=each.name, is_dir=each.is_dir, size=each.size) for each in entries]

    def get_tools(self) -> list[AgentTool]:
        """Return the tools that an agent gets with this sandbox."""
        return [
            make_python_repl(sandbox=self, name=NAME, description=DESCRIPTION),
            make_shell(sandbox=self, name="sandbox_shell"),
            make_file_editor(sandbox=self, name="sandbox_file_editor"),
        ]

    async def close(self) -> None:
        """Remove the sandbox."""
        await self.inner.close()


def _files(pictures: list[Picture]) -> list[OutputFile]:
    different = dict.fromkeys(pictures)
    return [OutputFile(f"figure_{at}{each.suffix}", each.data, each.mime) for at, each in enumerate(different, 1)]
