"""verl: a tool for its agent loop, with a sandbox for each trajectory; named in the YAML of its tools.

    tools:
      - class_name: agent_tools.integrations.verl.CodeInterpreterTool
        config: {type: native, timeout: 10, cfg: {memory: 1073741824}}

`BaseTool` and the loop that calls it are verl's (https://verl.readthedocs.io). The loop creates and releases a tool
around every call, so the trajectory itself has the sandbox, which ends with it.
"""

from __future__ import annotations

import io
import weakref
from collections.abc import Mapping
from typing import Any

from agent_tools import AsyncSandbox, Execution
from agent_tools.errors import InvalidParams
from agent_tools.extras import extra
from agent_tools.integrations.common import CODE, DESCRIPTION, NAME, text_of

with extra("verl"):
    from PIL import Image
    from verl.tools.base_tool import BaseTool
    from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

SCHEMA = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": DESCRIPTION,
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": CODE}},
            "required": ["code"],
        },
    },
}
OPTIONS = {"type", "cfg", "timeout", "pictures"}


class CodeInterpreterTool(BaseTool):  # type: ignore[misc]
    """Runs a trajectory's Python in its own sandbox: variables and files stay from call to call.

    Args:
        config: `cfg`, the options of `agent_tools.CodeInterpreter`; `timeout`, seconds of a call; `pictures`, True to
            hand figures to a model that sees. `type` is verl's.
        tool_schema: the tool's schema for the model; by default one argument, `code`.

    Raises:
        InvalidParams: the config has an unknown name.
    """

    def __init__(self, config: Mapping[str, Any], tool_schema: OpenAIFunctionToolSchema | None = None) -> None:
        if unknown := sorted(config.keys() - OPTIONS):
            raise InvalidParams(f"{', '.join(unknown)}: unknown here; put options of the sandbox into `cfg`.")
        self._sandboxes: weakref.WeakKeyDictionary[object, AsyncSandbox] = weakref.WeakKeyDictionary()
        super().__init__(dict(config), tool_schema)

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        """Return the schema if the YAML has none."""
        return OpenAIFunctionToolSchema.model_validate(SCHEMA)

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Run the `code` in the sandbox of the trajectory, `agent_data`; return the answer, no reward, and metrics.

        A failing cell is an answer. Metrics: `ok`, and `duration`, the seconds that the code ran.
        """
        code = parameters.get("code")
        if not isinstance(code, str):
            return ToolResponse(text="Give the Python code as text, in `code`."), 0.0, {"ok": False, "duration": 0.0}
        sandbox = self._sandbox_of(kwargs.get("agent_data"))
        execution = await sandbox.run_code(code, timeout=self.config.get("timeout"))
        shown = {"image": _pictures(execution)} if self.config.get("pictures") and execution.pictures else {}
        metrics = {"ok": execution.ok, "duration": execution.duration}
        return ToolResponse(text=text_of(execution), **shown), 0.0, metrics

    def _sandbox_of(self, trajectory: object) -> AsyncSandbox:
        """The sandbox of a trajectory; it ends when the trajectory is garbage-collected."""
        if trajectory is None:
            raise InvalidParams("There is no agent_data: this tool is for verl's ToolAgentLoop, which passes it.")
        if trajectory not in self._sandboxes:
            self._sandboxes[trajectory] = AsyncSandbox(self.config.get("cfg"))
        return self._sandboxes[trajectory]


def _pictures(execution: Execution) -> list[Any]:
    return [Image.open(io.BytesIO(picture.data)).convert("RGB") for picture in execution.pictures]
