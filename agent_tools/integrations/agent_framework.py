"""Microsoft Agent Framework: CodeAct in a sandbox, in a context provider; the code calls the agent's tools.

`ContextProvider` and `FunctionTool` are theirs (https://learn.microsoft.com/agent-framework/). It has the form of
their own providers for CodeAct: the model sees `execute_code` alone, with the tools as typed stubs in its description.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from agent_tools import AsyncSandbox
from agent_tools.extras import extra
from agent_tools.integrations.common import CODE, DESCRIPTION, answer
from agent_tools.integrations.sessions import SessionSandboxes
from agent_tools.results.outputs import Text
from agent_tools.runtime.host_calls.function import Keywords

with extra("agent-framework"):
    from agent_framework import AgentSession, Content, ContextProvider, FunctionTool, SessionContext, normalize_tools

    from agent_tools.code_mode.functions import SchemaFunction
    from agent_tools.code_mode.toolset import Toolset

NAME = "execute_code"
SCHEMA = {"type": "object", "properties": {"code": {"type": "string", "description": CODE}}, "required": ["code"]}


class CodeActProvider(ContextProvider):
    """`Agent(client, context_providers=[CodeActProvider(tools=[...])])`: code with state, which calls the tools.

    Each session has a sandbox of its own, without a network; the tools run on the host. If one of them asks for
    approval at each call, `execute_code` does, since its code could call it.

    Args:
        tools: functions, or Agent Framework's tools, that the code calls with `await NAME(argument=...)`.
        cfg: the options of `agent_tools.CodeInterpreter`. A sandbox is stopped after `idle_stop` seconds without use.
        max_sandboxes: sessions that keep their sandbox; beyond, the one that was used longest ago is removed.
        needs_approval: True asks for approval of each `execute_code`, whatever the tools say.
        source_id: the provider's name among the agent's.

    Raises:
        InvalidParams: an option is unknown or unusable.
        TypeError: a tool is no function of this process, or its name is no Python name.
    """

    def __init__(
        self,
        tools: Callable[..., Any] | FunctionTool | Sequence[Callable[..., Any] | FunctionTool] = (),
        *,
        cfg: dict[str, Any] | None = None,
        max_sandboxes: int = 64,
        needs_approval: bool = False,
        source_id: str = "agent_tools",
    ) -> None:
        super().__init__(source_id)
        normalized = normalize_tools(tools)
        toolset = Toolset([_function(tool) for tool in normalized]) if normalized else None
        self._asks = needs_approval or any(
            getattr(tool, "approval_mode", "") == "always_require" for tool in normalized
        )
        self._description = f"{DESCRIPTION}\n\n{toolset.description()}" if toolset else DESCRIPTION
        self._sandboxes = SessionSandboxes(cfg or {}, max_sandboxes, toolset)

    def sandbox(self, session: AgentSession) -> AsyncSandbox:
        """Return the sandbox of a session, for its files and commands."""
        return self._sandboxes.of(session.session_id)

    def close(self) -> None:
        """Remove all sandboxes."""
        self._sandboxes.close()

    async def before_run(
        self, *, agent: Any, session: AgentSession, context: SessionContext, state: dict[str, Any]
    ) -> None:
        """Give the run its `execute_code`. A run that is cancelled interrupts its code; variables stay."""
        sandbox = self.sandbox(session)

        async def execute_code(code: str) -> list[Content]:
            return [
                Content.from_text(each.text) if isinstance(each, Text) else Content.from_data(each.data, each.mime)
                for each in answer(await sandbox.run_code(code))
            ]

        tool = FunctionTool(
            name=NAME,
            description=self._description,
            approval_mode="always_require" if self._asks else "never_require",
            func=execute_code,
            input_model=SCHEMA,
        )
        context.extend_tools(self.source_id, [tool])


def _function(tool: Any) -> SchemaFunction:
    if not isinstance(tool, FunctionTool) or tool.declaration_only:
        raise TypeError(f"{tool!r:.80} does not run in this process: give it to the agent as a tool.")

    async def call(given: Keywords) -> Any:
        return await tool.invoke(arguments=given, skip_parsing=True)

    return SchemaFunction(tool.name, tool.description or "", tool.parameters(), call)
