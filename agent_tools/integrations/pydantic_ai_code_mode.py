"""Pydantic AI's code mode on a full CPython: the agent's tools become functions that the model's code calls.

A capability that wraps the agent's toolset (https://ai.pydantic.dev/toolsets/#wrapping-a-toolset): the model sees
`run_code` alone, with the tools as typed stubs, and calls many of them in one round.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio

from agent_tools import AsyncSandbox
from agent_tools.extras import extra
from agent_tools.integrations.common import CODE, DESCRIPTION
from agent_tools.integrations.pydantic_ai import tool_return
from agent_tools.runtime.host_calls.function import ArgumentError, CallRefused, Keywords, Policy

with extra("pydantic-ai"):
    from typing import Annotated

    from pydantic import Field, TypeAdapter
    from pydantic_ai import RunContext, ToolDenied, ToolReturn
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, UserError
    from pydantic_ai.messages import ToolCallPart
    from pydantic_ai.tool_manager import ToolManager
    from pydantic_ai.tools import ToolDefinition
    from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset
    from typing_extensions import TypedDict

    from agent_tools.code_mode.functions import SchemaFunction
    from agent_tools.code_mode.toolset import Toolset

NAME = "run_code"
DENIED = "HostCallDenied"  # the kind of error that the code sees
RETRIES = 3  # rounds in which the model may mend the arguments of run_code


class _Arguments(TypedDict):
    code: Annotated[str, Field(description=CODE)]


_ARGUMENTS = TypeAdapter(_Arguments)
_callers: ContextVar[tuple[CodeMode, ...]] = ContextVar("callers", default=())
"""Those whose code waits for a tool that runs in this context."""


@dataclass(kw_only=True)
class CodeMode(AbstractCapability[Any]):
    """`Agent(model, tools=[...], capabilities=[CodeMode()])`: the code of the model calls the agent's tools.

    Attributes:
        cfg: the options of `agent_tools.CodeInterpreter`.
        keeps: whether a tool stays one that the model calls itself; by default those that do not run here.
    """

    cfg: dict[str, Any] = field(default_factory=dict)
    keeps: Callable[[ToolDefinition], bool] = lambda tool: tool.kind != "function" or bool(tool.unless_native)

    def __post_init__(self) -> None:
        self.sandbox = AsyncSandbox(self.cfg)
        self.functions: dict[str, SchemaFunction] = {}
        self.lock = anyio.Lock()
        self.manager: ToolManager[Any] | None = None
        """The way to the tools of the run whose code runs now; one at a time does."""

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
        """Return the agent's tools, wrapped."""
        return CodeModeToolset(toolset, self)

    def function(self, tool: ToolDefinition) -> SchemaFunction:
        """Return one of the agent's tools as a host function. Errors say if it asks for a retry, or was denied."""
        returns, policy = getattr(tool, "return_schema", None) or {}, Policy(timeout=tool.timeout)
        call = partial(self.call, tool.name)
        return SchemaFunction(
            tool.name, tool.description or "", tool.parameters_json_schema, call, returns, policy=policy
        )

    async def call(self, name: str, arguments: Keywords) -> Any:
        """Call a tool for the code that runs, with its checks, hooks and approvals."""
        assert self.manager is not None
        _callers.set((*_callers.get(), self))
        try:
            result = await self.manager.handle_call(ToolCallPart(name, arguments), wrap_validation_errors=False)
        except ModelRetry as exc:
            raise ArgumentError(exc.message) from exc
        except (ApprovalRequired, CallDeferred) as exc:
            raise CallRefused(
                DENIED, f"{name} needs an answer from outside, so code cannot call it: call it as a tool.", "denied"
            ) from exc
        if isinstance(result, ToolDenied):
            raise CallRefused(DENIED, f"{name} was denied: {result.message}", "denied")
        return result.return_value if isinstance(result, ToolReturn) else result


@dataclass
class CodeModeToolset(WrapperToolset[Any]):
    """The tools for the model: `run_code`, and the tools that stay tools."""

    mode: CodeMode

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """Return `run_code`, whose description has the stubs of the tools that its code can call."""
        tools = await self.wrapped.get_tools(ctx)
        inside = {name: tool for name, tool in tools.items() if not self.mode.keeps(tool.tool_def)}
        functions = [self.mode.function(tool.tool_def) for tool in inside.values()]
        stubs = Toolset(functions).description() if functions else ""
        definition = ToolDefinition(
            name=NAME, description=f"{DESCRIPTION}\n\n{stubs}".strip(), parameters_json_schema=_ARGUMENTS.json_schema()
        )
        run_code = _RunCode(
            toolset=self,
            tool_def=definition,
            max_retries=RETRIES,
            args_validator=_ARGUMENTS.validator,  # type: ignore[arg-type]
            tools=inside,
            functions=functions,
        )
        return {**{name: tool for name, tool in tools.items() if name not in inside}, NAME: run_code}

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """Run the code, or call a tool that stayed a tool."""
        if not isinstance(tool, _RunCode):
            return await self.wrapped.call_tool(name, tool_args, ctx, tool)
        if any(each is self.mode for each in _callers.get()):
            raise UserError(
                f"A tool that code calls cannot run an agent with the CodeMode of this code: {NAME} would wait for "
                "itself. Give that agent a CodeMode of its own."
            )
        async with self.mode.lock:
            new = [function for function in tool.functions if function.name not in self.mode.functions]
            if new:
                await self.mode.sandbox.add_functions(Toolset(new))
                self.mode.functions.update({function.name: function for function in new})
            parent = ctx.tool_manager
            hooks = parent.root_capability if parent else None
            self.mode.manager = ToolManager(toolset=self.wrapped, root_capability=hooks, ctx=ctx, tools=tool.tools)
            return tool_return(await self.mode.sandbox.run_code(tool_args["code"]))


@dataclass(kw_only=True)
class _RunCode(ToolsetTool[Any]):
    tools: dict[str, ToolsetTool[Any]]
    functions: list[SchemaFunction]
