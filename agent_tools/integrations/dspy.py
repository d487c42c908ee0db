"""DSPy: `dspy.configure(interpreter_factory=AgentToolsInterpreter)`, for RLM, CodeAct and ProgramOfThought.

`CodeInterpreter` is their protocol (dspy.primitives.code_interpreter). Tools stay on the host.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
from collections.abc import Callable
from typing import Any

from agent_tools import Execution, Sandbox
from agent_tools.errors import AgentToolsError
from agent_tools.extras import extra
from agent_tools.results.outputs import Died, Error, TimedOut

with extra("dspy"):
    from dspy.primitives.code_interpreter import CodeExecutionError, CodeInterpreterError, FinalOutput

VARIABLES = "/tmp/.variables.json"  # in the sandbox
SET_VARIABLES = f"""
with open({VARIABLES!r}) as _file:
    globals().update(__import__("json").load(_file))
__import__("os").remove({VARIABLES!r})
del _file
"""
DEFINE_SUBMIT = """
class Submitted(BaseException):
    pass

def SUBMIT(*args, **kwargs):
    names = {names!r}
    import sandbox
    sandbox.hostcall("dspy_submit", {{"args": args, "kwargs": kwargs, "names": names}})
    raise Submitted
"""
DEFINE_TOOL = """
def {name}(*args, **kwargs):
    import sandbox
    return sandbox.hostcall("dspy_tool", {{"name": {name!r}, "args": args, "kwargs": kwargs}})
"""


class AgentToolsInterpreter:
    """An interpreter in a sandbox of its own. Tools may come and go between executions.

    Args:
        tools: functions of the host that the code calls by name.
        output_fields: what `SUBMIT` takes, by place: `[{'name': ...}]`.
        cfg: the options of `agent_tools.CodeInterpreter`.
    """

    execution_instructions = (
        "CPython with numpy, pandas, scipy, scikit-learn and matplotlib, in a container without network. "
        "Variables stay."
    )

    def __init__(
        self,
        tools: dict[str, Callable[..., Any]] | None = None,
        output_fields: list[dict[str, Any]] | None = None,
        cfg: dict[str, Any] | None = None,
    ) -> None:
        self._tools = dict(tools or {})
        self.output_fields = output_fields
        self._submitted: list[Any] = []
        self.sandbox = Sandbox(cfg, hostcalls={"dspy_tool": self._call, "dspy_submit": self._submit})

    @property
    def tools(self) -> dict[str, Callable[..., Any]]:
        """The functions that the code can call; DSPy adds to them."""
        return self._tools

    def start(self) -> None:
        """Start the sandbox; otherwise the first execution does."""
        self.sandbox.start()

    def shutdown(self) -> None:
        """Remove the sandbox."""
        self.sandbox.close()

    def execute(self, code: str, variables: dict[str, Any] | None = None) -> Any:
        """Run code and return what it printed and its last value as text, None for nothing, or what it submitted.

        Raises:
            SyntaxError: the code is no Python.
            CodeExecutionError: the code raised, or ran over its time, and the variables are kept.
            CodeInterpreterError: the variables are lost, or the sandbox could not run the code.
        """
        _check(code)
        try:
            self._define(variables or {})
            self._submitted.clear()
            execution = self.sandbox.run_code(code)
        except (AgentToolsError, OSError) as exc:
            raise CodeInterpreterError(str(exc)) from exc
        if self._submitted:
            return FinalOutput(self._submitted[-1])
        _raise_error(execution)
        return "\n".join((*execution.notes, execution.stdout + execution.shown)) or None

    def _define(self, variables: dict[str, Any]) -> None:
        """Define SUBMIT, the tools and variables, before each execution: what was defined before may be lost.

        Variables go by way of a file: a context can be larger than a cell may be.
        """
        names = [field["name"] for field in self.output_fields or ()]
        code = [DEFINE_SUBMIT.format(names=names), *(DEFINE_TOOL.format(name=name) for name in self._tools)]
        if variables:
            try:
                self.sandbox.write_file(VARIABLES, json.dumps(variables))
            except (TypeError, ValueError) as exc:
                raise CodeInterpreterError(f"A variable is no JSON value: {exc}") from exc
            code.append(SET_VARIABLES)
        _raise_error(self.sandbox.run_code("".join(code)))

    async def _call(self, payload: dict[str, Any]) -> Any:
        tool = self._tools[payload["name"]]
        given = {**dict(zip(inspect.signature(tool).parameters, payload["args"])), **payload["kwargs"]}
        called = await asyncio.to_thread(tool, **given)  # by name: so DSPy calls its own
        return await called if inspect.isawaitable(called) else called

    def _submit(self, payload: dict[str, Any]) -> None:
        args, kwargs, names = payload["args"], payload["kwargs"], payload["names"]
        if names:
            self._submitted.append({**dict(zip(names, args)), **kwargs})
        else:
            self._submitted.append(args[0] if len(args) == 1 and not kwargs else kwargs or list(args))


def _check(code: str) -> None:
    try:
        compile(code, "code", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError as exc:
        raise SyntaxError(f"Invalid Python syntax. message: {exc}") from exc


def _raise_error(execution: Execution) -> None:
    match execution.error:
        case None:
            pass
        case Error() as error:
            raise CodeExecutionError(error.text)
        case TimedOut(state_kept=True) as error:
            raise CodeExecutionError(error.text)
        case TimedOut() | Died() as error:
            raise (CodeExecutionError if error.variables.kept else CodeInterpreterError)(error.text)
