"""smolagents: `CodeAgent(executor=AgentToolsExecutor())`. Tools stay on the host, and are called from the code.

`RemotePythonExecutor` is theirs (https://huggingface.co/docs/smolagents/tutorials/secure_code_execution). Where it
sends the source of tools into the sandbox, this one calls them where they are: those of MCP servers and with secrets
work.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from typing import Any

from agent_tools import Execution, Sandbox
from agent_tools.extras import extra
from agent_tools.runtime.host_calls.function import ArgumentError, Keywords, Policy

with extra("smolagents"):
    import PIL.Image
    from smolagents import AgentLogger, CodeAgent, LogLevel, Tool
    from smolagents.local_python_executor import CodeOutput
    from smolagents.remote_executors import RemotePythonExecutor
    from smolagents.utils import AgentError

    from agent_tools.code_mode.schema import stub_of_schema
    from agent_tools.code_mode.stubs import Stub, check_name
    from agent_tools.code_mode.toolset import Toolset

FINAL = "final_answer"
FINAL_SOURCE = """
class FinalAnswer(BaseException):
    pass

def final_answer(answer=None, /, **named):
    import io
    answer = [answer, *named.values()][-1]
    if type(answer).__module__.startswith("PIL."):
        png = io.BytesIO()
        answer.save(png, "PNG")
        _call_sync("final_answer", (), {"png": png.getvalue()})
    else:
        _call_sync("final_answer", (), {"value": answer})
    raise FinalAnswer
"""


class AgentToolsExecutor(RemotePythonExecutor):
    """Runs an agent's code in a sandbox of its own, with state.

    Args:
        cfg: the options of `agent_tools.CodeInterpreter`; `packages` for further imports.
        logger: theirs; silent by default.
    """

    def __init__(self, cfg: dict[str, Any] | None = None, *, logger: AgentLogger | None = None) -> None:
        super().__init__([], logger or AgentLogger(level=LogLevel.OFF))
        self._final = FinalFunction()
        self._functions: dict[str, SmolToolFunction] = {}
        self.sandbox = Sandbox(cfg, hostcalls=Toolset([self._final], style="sync"))

    def send_tools(self, tools: Mapping[str, Tool | CodeAgent]) -> None:
        """Let the code call tools, and managed agents, by name."""
        self._final.tool = tools.get(FINAL)
        others = {name: tool for name, tool in tools.items() if name != FINAL}
        new = {name: SmolToolFunction(name, tool) for name, tool in others.items() if name not in self._functions}
        self._functions.update(new)
        for name, tool in others.items():
            self._functions[name].tool = tool
        if new:
            self.sandbox.add_functions(Toolset(new.values(), style="sync"))

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        """Run code.

        Raises:
            AgentError: the code raised, ran over its time, or ended its kernel.
        """
        self._final.answers.clear()
        execution = self.sandbox.run_code(code)
        logs = "\n".join((*execution.notes, execution.stdout))
        if self._final.answers:
            return CodeOutput(self._final.answers[-1], logs, True)
        if execution.error:
            raise AgentError(f"{logs}\n{execution.error.text}".strip(), self.logger)
        return CodeOutput(_output(execution), logs, False)

    def install_packages(self, additional_imports: list[str]) -> list[str]:
        """Install nothing: packages are `packages` or a `network` with 'pypi' of `cfg`."""
        return additional_imports

    def cleanup(self) -> None:
        """Remove the sandbox."""
        self.sandbox.close()


class FinalStub(Stub):
    """The `final_answer` of the sandbox, which ends the code whatever it catches."""

    def source(self, *, is_async: bool) -> str:
        """Return its definition."""
        return FINAL_SOURCE


class FinalFunction:
    """The `final_answer` of the host: it stores the result of the agent's own tool of that name."""

    name = FINAL

    def __init__(self) -> None:
        self.policy = Policy()
        self.stub = FinalStub(FINAL, [], "Any")
        self.tool: Any = None
        self.answers: list[Any] = []

    async def call(self, args: tuple[Any, ...], kwargs: Keywords) -> None:
        """Store an answer: a value, or a picture as PNG."""
        png = kwargs.get("png")
        answer = _picture(png) if isinstance(png, bytes) else kwargs.get("value")
        self.answers.append(await asyncio.to_thread(self.tool, answer) if self.tool else answer)


class SmolToolFunction:
    """A tool, or a managed agent, as a host function."""

    def __init__(self, name: str, tool: Any) -> None:
        check_name(name)
        self.name, self.tool = name, tool
        self.policy = Policy()
        inputs = getattr(tool, "inputs", None) or {"task": {"type": "string", "description": "The task."}}
        needed = [each for each, schema in inputs.items() if not schema.get("nullable")]
        schema = {"properties": {each: _schema(given) for each, given in inputs.items()}, "required": needed}
        self.stub: Stub = stub_of_schema(name, getattr(tool, "description", "") or "", schema, {})
        self.stub.parameters = self.stub.parameters[1:]  # without the star: models give arguments by their places
        self._names = list(self.stub.names)

    async def call(self, args: tuple[Any, ...], kwargs: Keywords) -> Any:
        """Call the tool in a thread; it checks its arguments itself."""
        if len(args) > len(self._names):
            raise ArgumentError(f"{self.name} takes {len(self._names)} arguments at most.")
        given = {**dict(zip(self._names, args)), **kwargs}
        return await asyncio.to_thread(self.tool, **{name: value for name, value in given.items() if value is not None})


def _schema(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return one of their inputs as JSON schema: `any`, `image` and `audio` are none of its types."""
    kind = given.get("type")
    known = kind if isinstance(kind, list) or kind in _KINDS else None
    return {"description": given.get("description", ""), **({"type": known} if known else {})}


_KINDS = {"string", "integer", "number", "boolean", "array", "object", "null"}


def _output(execution: Execution) -> Any:
    """Return the value of the last expression, else the last figure, else what else was shown."""
    if execution.result:
        return execution.result.text if execution.value is None else execution.value
    return _picture(execution.images[-1]) if execution.images else execution.shown or None


def _picture(data: bytes) -> PIL.Image.Image:
    """Return a picture, undecoded."""
    return PIL.Image.open(io.BytesIO(data), formats=["PNG", "JPEG"])
