"""Google's ADK: `LlmAgent(code_executor=AgentToolsCodeExecutor())`, a sandbox for each session, files both ways.

`BaseCodeExecutor` is theirs (https://google.github.io/adk-docs/). What the code draws and writes becomes artifacts.
"""

from __future__ import annotations

import base64
import binascii
import mimetypes
from typing import Any

from agent_tools import Execution, Sandbox
from agent_tools.extras import extra
from agent_tools.integrations.sessions import SessionSandboxes
from agent_tools.text import one_line

with extra("adk"):
    from google.adk.agents.invocation_context import InvocationContext
    from google.adk.code_executors.base_code_executor import BaseCodeExecutor
    from google.adk.code_executors.code_execution_utils import CodeExecutionInput, CodeExecutionResult, File
    from pydantic import ConfigDict, Field, PrivateAttr

MAX_FILES = 20  # files of one run that become artifacts


class AgentToolsCodeExecutor(BaseCodeExecutor):
    """Runs the code blocks of an agent; variables and files stay within a session.

    Attributes:
        cfg: the options of `agent_tools.CodeInterpreter`. A sandbox is stopped after `idle_stop` seconds without use.
        max_sandboxes: sessions that keep their sandbox; beyond, the one that was used longest ago is removed.
        max_file_bytes: bytes of a file that becomes an artifact; a larger one stays in the sandbox, with a note.
    """

    model_config = ConfigDict(extra="forbid")  # a misspelt option is an error

    stateful: bool = True
    optimize_data_file: bool = True
    cfg: dict[str, Any] = Field(default_factory=dict)
    max_sandboxes: int = Field(default=64, ge=1)
    max_file_bytes: int = Field(default=20 * 2**20, ge=1)
    _sandboxes: SessionSandboxes = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Check the options, before there is a session."""
        super().model_post_init(context)
        self._sandboxes = SessionSandboxes(self.cfg, self.max_sandboxes)

    def execute_code(
        self, invocation_context: InvocationContext, code_execution_input: CodeExecutionInput
    ) -> CodeExecutionResult:
        """Run code in the sandbox of the session."""
        sandbox = self.sandbox(code_execution_input.execution_id or invocation_context.session.id)
        for file in code_execution_input.input_files:
            sandbox.write_file(file.name, _decoded(file.content))
        return self._result(sandbox, sandbox.run_code(code_execution_input.code, timeout=self.timeout_seconds))

    def sandbox(self, session_id: str) -> Sandbox:
        """Return the sandbox of a session; it is created if needed, and starts at its first use."""
        return self._sandboxes.of(session_id).sync

    def close(self) -> None:
        """Remove all sandboxes."""
        self._sandboxes.close()

    def _result(self, sandbox: Sandbox, execution: Execution) -> CodeExecutionResult:
        written = [change for change in execution.changes if change.size <= self.max_file_bytes][:MAX_FILES]
        left = [one_line(change.name) for change in execution.changes if change not in written]
        notes = (
            [f"[{len(left):,} files stay in the sandbox, too large or too many: {', '.join(left)[:500]}]"]
            if left
            else []
        )
        notes += filter(None, [execution.changed.note])
        shown = [execution.stdout, execution.shown, *execution.notes, *notes]
        files = [
            File(f"figure_{at}{each.suffix}", each.data, each.mime) for at, each in enumerate(execution.pictures, 1)
        ]
        for change in written:
            data = sandbox.read_file(change.name, max_bytes=self.max_file_bytes)
            name = change.name.replace(":", "_")  # `user:` would make it an artifact of other sessions as well
            files.append(File(name, data, mimetypes.guess_type(name)[0] or "application/octet-stream"))
        stderr = execution.error.text if execution.error else execution.stderr
        exit_code = 0 if execution.ok else 1
        return CodeExecutionResult("\n".join(filter(None, shown)), stderr if exit_code else "", files, exit_code)


def _decoded(content: str | bytes) -> bytes:
    """Return the bytes of a file, which ADK hands over as they are or as base64."""
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        return content if isinstance(content, bytes) else content.encode()
