"""LiteLLM: OpenAI's `code_interpreter` tool for any model, run here, in a sandbox for each request.

`BaseSandboxConfig` is theirs (litellm.llms.base_llm.sandbox): it has no files and no state over requests.
"""

from __future__ import annotations

import base64
from typing import Any

from agent_tools import AsyncSandbox, Execution
from agent_tools.extras import extra
from agent_tools.results.outputs import Error

with extra("litellm"):
    from litellm.llms.base_llm.sandbox.transformation import BaseSandboxConfig, CodeExecutionResult, ContainerHandle

PROVIDER = "agent_tools"


class AgentToolsSandboxConfig(BaseSandboxConfig):
    """The `sandbox_config` of LiteLLM's `CodeInterpreterInterceptionLogger`, for its SDK and its proxy.

    Args:
        cfg: the options of `agent_tools.CodeInterpreter`.
    """

    def __init__(self, cfg: dict[str, Any] | None = None) -> None:
        self.cfg = cfg
        self.sandboxes: dict[str, AsyncSandbox] = {}

    def validate_environment(self, api_key: str | None = None, **_: Any) -> str:
        """Require no key."""
        return ""

    async def acreate_sandbox(self, **_: Any) -> ContainerHandle:
        """Start a sandbox."""
        sandbox = AsyncSandbox(self.cfg)
        self.sandboxes[sandbox.id] = sandbox
        try:
            await sandbox.start()
        except BaseException:
            await self.adelete_sandbox(container=sandbox.id)
            raise
        return ContainerHandle(id=sandbox.id, provider=PROVIDER)

    async def arun_code(self, *, container: ContainerHandle | str, code: str, **_: Any) -> CodeExecutionResult:
        """Run code; being cancelled interrupts it."""
        return _result(await self.sandboxes[_id(container)].run_code(code))

    async def adelete_sandbox(self, *, container: ContainerHandle | str, **_: Any) -> bool:
        """Remove a sandbox; return whether there was one."""
        sandbox = self.sandboxes.pop(_id(container), None)
        if sandbox:
            await sandbox.close()
        return sandbox is not None


def _id(container: ContainerHandle | str) -> str:
    return container if isinstance(container, str) else container.id


def _result(execution: Execution) -> CodeExecutionResult:
    results: list[dict[str, Any]] = [
        {each.suffix.lstrip(".").replace("jpg", "jpeg"): base64.b64encode(each.data).decode()}
        for each in execution.pictures
    ]
    if execution.shown:
        results.append({"text": execution.shown, "is_main_result": execution.result is not None})
    return CodeExecutionResult(
        stdout=execution.stdout,
        stderr="\n".join((*execution.notes, execution.stderr)),
        results=results,
        error=_error(execution) if execution.error else None,
    )


def _error(execution: Execution) -> dict[str, str]:
    error = execution.error
    if isinstance(error, Error):
        return {"name": error.name, "value": error.value, "traceback": error.text}
    text = error.text if error else ""
    return {"name": type(error).__name__, "value": text, "traceback": text}
