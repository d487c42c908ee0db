"""A tool: a name, a description, a schema, and a call. The contract is Qwen-Agent's `qwen_agent.tools.base`."""

from __future__ import annotations

import inspect
import json
import re
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, Union

import fastjsonschema

from agent_tools import settings
from agent_tools.code_reader import load_json, read_params
from agent_tools.engines.engine import Guest
from agent_tools.errors import AgentToolsError, InvalidParams, ToolServiceError
from agent_tools.extras import pip_install
from agent_tools.limits import Limits
from agent_tools.messages import ContentItem
from agent_tools.results.execution import Execution, Output
from agent_tools.runtime.files.work_dir import prepare_work_dir
from agent_tools.runtime.files.workspace import Workspace
from agent_tools.sandbox.options import Config as Config

# The tools by name, as agents look them up.


TOOL_REGISTRY: dict[str, type[Any]] = {}
"""Tool name -> tool class."""

ToolClass = TypeVar("ToolClass", bound=type[Any])


def register_tool(name: str, allow_overwrite: bool = False) -> Callable[[ToolClass], ToolClass]:
    """Register a tool class under a name, as a decorator; sets the class's `name`.

    Raises:
        ValueError: the name is taken (unless `allow_overwrite`), or the class already has another name.
    """

    def register(cls: ToolClass) -> ToolClass:
        if name in TOOL_REGISTRY:
            if not allow_overwrite:
                raise ValueError(f"Tool `{name}` already exists! Please ensure that the tool name is unique.")
            warnings.warn(f"Tool `{name}` already exists! Overwriting with class {cls}.", stacklevel=2)
        own = getattr(cls, "name", "")
        if own and own != name:
            raise ValueError(f'{cls.__name__}.name="{own}" conflicts with @register_tool(name="{name}").')
        cls.name = name
        TOOL_REGISTRY[name] = cls
        return cls

    return register


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
            ValueError: they are not JSON, miss something that is required, or do not fit the schema.
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
            _validate(params, self.parameters)
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


def _validate(params: dict[str, Any], schema: dict[str, Any]) -> None:
    try:
        fastjsonschema.validate(schema, params, use_default=False)
    except fastjsonschema.JsonSchemaException as exc:
        raise ValueError(f"Parameters do not fit the schema: {exc}") from exc


# The contract of a tool that runs code and shows its outputs while it runs.


class CodeTool(BaseTool):
    """A tool that runs code; `CodeInterpreter` is one.

    An agent shows the outputs of subclasses while the code runs; the methods of other tools are not looked at.
    """

    @abstractmethod
    def stream(
        self,
        params: str | dict[str, Any],
        files: Sequence[str] | None = None,
        timeout: float | None = None,
        cancelled: threading.Event | None = None,
    ) -> Generator[Output, None, Execution]:
        """Run code, yield its outputs, and return the whole execution."""

    def read_code(self, params: object) -> str:
        """Return the code that a call with these `params` runs.

        Raises:
            InvalidParams: there is no code, or it is longer than `max_code_bytes`.
        """
        return read_params(params, Limits()).code

    @abstractmethod
    def markdown(self, execution: Execution) -> str:
        """Return the execution as text for the model."""

    @abstractmethod
    def cancel(self, cancelled: threading.Event) -> None:
        """End the stream that was given this event. For any thread."""


# A typed Python function as a tool: its schema comes from the signature and the docstring.
#
# pydantic makes schemas and checks arguments, so every type that pydantic knows may be used:
# Literal, Optional, list, dict, TypedDict, dataclasses, enums, models, `Annotated[int, Field(ge=1)]`.


class FunctionTool(BaseTool):
    """A tool that calls a function with the arguments the model wrote, checked and converted to the declared types.

        def convert(amount: float, unit: Literal["km", "mi"] = "km") -> float:
            '''Convert a distance to metres.'''

        Assistant(function_list=[convert], llm=...)

    A description in `Annotated[float, "how much"]` wins over the docstring's. An `async def` is run in an event loop of
    its own. The model gets what the function returns: text as it is, all else as JSON.

    Args:
        function: every argument must be passable by keyword; one without a type may be anything.
        name: the tool's name; the function's by default.
        description: the tool's description for the model; the docstring's summary by default.

    Raises:
        TypeError: the signature cannot be made a schema.
    """

    def __init__(self, function: Callable[..., Any], name: str = "", description: str = "") -> None:
        try:
            from agent_tools.tools import arguments  # they need pydantic
        except ImportError as exc:
            raise ImportError(f"Functions as tools need more: {pip_install('agents')}") from exc
        doc = arguments.read_docstring(inspect.getdoc(function) if inspect.isroutine(function) else "")
        self.name = name or getattr(function, "__name__", "")
        if not self.name.isidentifier():
            raise TypeError(f"{function!r} has no name of its own: pass FunctionTool(function, name='...').")
        self.description = description or doc.summary or self.name.replace("_", " ")
        self._plain_json = arguments.plain_json
        self._arguments = arguments.Arguments(self.name, function, doc.arguments)
        self.parameters = self._arguments.schema()
        super().__init__()

    def call(self, params: Params, **kwargs: Any) -> Any:
        """Call the function.

        Raises:
            InvalidParams: the arguments do not fit; the message says where.
            Exception: whatever the function raises.
        """
        try:
            given = load_json(params or "{}") if isinstance(params, str) else params
        except (ValueError, RecursionError) as exc:
            raise InvalidParams("the arguments are not JSON: give an object with the function's arguments.") from exc
        return self._told(self._arguments.call(given))

    def _told(self, value: Any) -> Any:
        """Return a function's result in a form for agents: text, content items, or plain JSON values."""
        is_items = isinstance(value, (list, tuple)) and value and all(isinstance(item, ContentItem) for item in value)
        return value if isinstance(value, str) or is_items else self._plain_json(value)
