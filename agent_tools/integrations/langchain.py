"""LangChain and LangGraph: the code interpreter as one of their tools, and their tools as functions of its code.

`BaseTool` and its content blocks are langchain_core's (https://docs.langchain.com/oss/python/langchain/tools).
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any, Literal

from agent_tools import AsyncSandbox, Execution
from agent_tools.extras import extra
from agent_tools.integrations.common import CODE, DESCRIPTION, NAME, answer, text_of
from agent_tools.results.outputs import Picture, Text

with extra("langchain"):
    from langchain_core.tools import BaseTool
    from langchain_core.utils.function_calling import convert_to_openai_tool
    from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

    from agent_tools.code_mode.functions import SchemaFunction
    from agent_tools.code_mode.toolset import Toolset

Block = dict[str, str]


class CodeInput(BaseModel):
    """The arguments of the tool."""

    code: str = Field(description=CODE)


class CodeInterpreterTool(BaseTool):
    """Runs Python in its own sandbox; use one tool for each conversation.

    The model gets text and pictures as content blocks, the program the `Execution` as artifact. A tool call that is
    cancelled interrupts its code; variables stay.

    Attributes:
        cfg: the options of `agent_tools.CodeInterpreter`.
        functions: LangChain tools that the code calls by name, outside the sandbox. The description tells the model.
        pictures: False leaves pictures out, for models that cannot see.
    """

    model_config = ConfigDict(extra="forbid")  # a misspelt option is an error

    name: str = NAME
    description: str = DESCRIPTION
    args_schema: type[BaseModel] = CodeInput
    response_format: Literal["content", "content_and_artifact"] = "content_and_artifact"
    cfg: dict[str, Any] = Field(default_factory=dict)
    functions: list[BaseTool] = Field(default_factory=list)
    pictures: bool = True
    _sandbox: AsyncSandbox = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Make the sandbox, which starts with the first call."""
        super().model_post_init(context)
        self._sandbox = AsyncSandbox(self.cfg)
        if self.functions:
            toolset = Toolset(host_functions(self.functions))
            self._sandbox = AsyncSandbox(self.cfg, hostcalls=toolset)
            self.description = f"{self.description}\n\n{toolset.description()}"

    @property
    def sandbox(self) -> AsyncSandbox:
        """The sandbox, for files and commands beside the code."""
        return self._sandbox

    def close(self) -> None:
        """Remove the sandbox. The next call would start a new one."""
        self._sandbox.sync.close()

    def _run(self, code: str) -> tuple[str | list[Block], Execution]:
        return self._answer(self._sandbox.sync.run_code(code))

    async def _arun(self, code: str) -> tuple[str | list[Block], Execution]:
        return self._answer(await self._sandbox.run_code(code))

    def _answer(self, execution: Execution) -> tuple[str | list[Block], Execution]:
        shown = answer(execution)
        if self.pictures and any(isinstance(each, Picture) for each in shown):
            return [_block(each) for each in shown], execution
        return text_of(execution), execution


def host_functions(tools: Iterable[BaseTool]) -> list[SchemaFunction]:
    """Return LangChain tools as functions that code can call; for `Sandbox(hostcalls=...)` and `Toolset`.

    Raises:
        TypeError: the name of a tool is not a Python name.
    """
    definitions = [(convert_to_openai_tool(tool)["function"], tool) for tool in tools]
    return [
        SchemaFunction(each["name"], each["description"], each["parameters"], tool.ainvoke)  # its content is the result
        for each, tool in definitions
    ]


def _block(shown: Text | Picture) -> Block:
    if isinstance(shown, Text):
        return {"type": "text", "text": shown.text}
    return {"type": "image", "base64": base64.b64encode(shown.data).decode(), "mime_type": shown.mime}
