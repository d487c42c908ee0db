"""A tool: a name, a description, a schema, and a call. The contract is Qwen-Agent's `qwen_agent.tools.base`."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Union

from agent_tools import settings
from agent_tools.argument_schema import argument_check
from agent_tools.engines.guest import Guest
from agent_tools.errors import AgentToolsError, ToolServiceError
from agent_tools.json_reader import load_json
from agent_tools.limits import Limits
from agent_tools.runtime.files.work_dir import prepare_work_dir
from agent_tools.runtime.files.workspace import Workspace
from agent_tools.sandbox.options import Config as Config
from agent_tools.tools.registry import TOOL_REGISTRY, register_tool

__all__ = ["TOOL_REGISTRY", "BaseTool", "BaseToolWithFileAccess", "ToolServiceError", "register_tool"]

Params = Union[str, dict[str, Any]]
"""A call's arguments from a model or a caller: text, or an object by name."""
Parameters = Union[list[dict[str, Any]], dict[str, Any]]
_CHINESE = re.compile("[\u4e00-\u9fff]")


class BaseTool(ABC):
    """A tool. Subclasses set `description` and `parameters`; `register_tool` sets `name`.

    `parameters` is a JSON schema of an object, or a list of `{'name', 'type', 'description', 'required'}`.
    """

    name: str = ""
    description: str = ""
    parameters: Parameters = []  # noqa: RUF012  (replaced, never changed)

    def __init__(self, cfg: Config | None = None) -> None:
        self.cfg = dict(cfg or {})
        if not self.name:
            raise ValueError(
                f"You must set {type(self).__name__}.name, either by @register_tool(name=...) or explicitly setting "
                f"{type(self).__name__}.name"
            )
        if isinstance(self.parameters, dict) and not is_tool_schema(self.function):
            raise ValueError(
                "The parameters, when provided as a dict, must confirm to a valid openai-compatible JSON schema."
            )

    @abstractmethod
    def call(self, params: Params, **kwargs: Any) -> Any:
        """Do the tool's work on the `params` that a model wrote; return a str, dict, list or list of ContentItem.

        Raises:
            ToolServiceError: the tool could not do its work.
        """

    @property
    def function(self) -> dict[str, Any]:
        """The tool as a function definition: name, description, parameters."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}

    @property
    def definition(self) -> dict[str, Any]:
        """The function as an agent declares it to its model; its description may have more than Qwen-Agent's."""
        return self.function

    @property
    def name_for_human(self) -> str:
        """`cfg['name_for_human']`, or the name."""
        return str(self.cfg.get("name_for_human", self.name))

    @property
    def args_format(self) -> str:
        """The format of the arguments: `cfg['args_format']`, or a sentence for models in the tool's language."""
        given = self.cfg.get("args_format")
        if given is not None:
            return str(given)
        return self._default_args_format(
            is_chinese=bool(_CHINESE.search(json.dumps(self.function, ensure_ascii=False)))
        )

    @property
    def file_access(self) -> bool:
        """True if the tool takes the files of a conversation."""
        return False

    def _default_args_format(self, is_chinese: bool) -> str:
        return "此工具的输入应为JSON对象。" if is_chinese else "Format the arguments as a JSON object."

    def _verify_json_format_args(self, params: Params, strict_json: bool = False) -> dict[str, Any]:
        """Parse and check a call's arguments.

        Raises:
            ValueError: they are not JSON, miss something that is required, or do not fit the schema in what is checked
                of it: see argument_schema.py.
        """
        if isinstance(params, str):
            try:
                params = json.loads(params) if strict_json else load_json(params)
            except (ValueError, RecursionError) as exc:
                raise ValueError("Parameters must be formatted as a valid JSON!") from exc
        if not isinstance(params, dict):
            raise ValueError("Parameters must be formatted as a valid JSON!")
        if isinstance(self.parameters, list):
            for parameter in self.parameters:
                if parameter.get("required") and parameter["name"] not in params:
                    raise ValueError(f"Parameters {parameter['name']} is required!")
        else:
            try:
                argument_check(self.parameters)(params)
            except ValueError as exc:
                raise ValueError(f"Parameters do not fit the schema: {exc}") from exc
        return params


class BaseToolWithFileAccess(BaseTool):
    """A tool that works on files in a folder of its own, `work_dir`."""

    def __init__(self, cfg: Config | None = None) -> None:
        super().__init__(cfg)
        default = settings.default_workspace() / "tools" / self.name
        self.work_dir = str(self.cfg.get("work_dir") or default)

    @property
    def file_access(self) -> bool:
        """True: such a tool takes files."""
        return True

    def call(self, params: Params, files: Sequence[str] | None = None, **kwargs: Any) -> Any:
        """Copy `files` into work_dir; a subclass calls this first and then does its work.

        Raises:
            ToolServiceError: a file could not be copied.
        """
        me = Guest.own()
        workspace = Workspace(prepare_work_dir(Path(self.work_dir), me), me, Limits())
        for staged in workspace.stage(list(files or ())):
            if staged.name is None:
                raise ToolServiceError(code="FileRejected", message=f"{staged.source}: {staged.error}")
        return None


@contextmanager
def tool_errors() -> Iterator[None]:
    """Convert errors of the runtime to ToolServiceError, the only error that a tool's caller sees."""
    try:
        yield
    except ToolServiceError:
        raise
    except AgentToolsError as exc:
        raise ToolServiceError(exception=exc, code=type(exc).__name__, message=str(exc)) from exc


@contextmanager
def file_errors() -> Iterator[None]:
    """Convert errors of the sandbox's file service to ToolServiceError."""
    try:
        yield
    except OSError as exc:
        raise ToolServiceError(exception=exc, code="FileError", message=str(exc)) from exc


def is_tool_schema(function: object) -> bool:
    """Return True for a function with a name, a description, and an object schema whose required names exist."""
    if not isinstance(function, dict) or not {"name", "description", "parameters"} <= function.keys():
        return False
    schema = function["parameters"]
    if not isinstance(schema, dict) or schema.get("type") != "object" or not isinstance(schema.get("properties"), dict):
        return False
    required = schema.get("required")
    return isinstance(required, list) and all(
        isinstance(name, str) and name in schema["properties"] for name in required
    )
