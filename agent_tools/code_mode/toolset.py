"""A set of host functions, with the stubs for the guest and the description for the model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Protocol, TypeGuard, Union

from agent_tools.code_mode.functions import PayloadHandler, Tool, ToolFunction, TypedFunction
from agent_tools.code_mode.hints import NotCrossing
from agent_tools.code_mode.stubs import Stub, merged_types, module_source
from agent_tools.runtime.host_calls.function import HostFunction, Policy
from agent_tools.text import neutralise

Style = Literal["async", "sync"]
HostCallsLike = Union["Toolset", Iterable[Any], Mapping[str, Callable[[Any], Any]]]


class NamedFunction(HostFunction, Protocol):
    """A host function with a name."""

    name: str


class Toolset:
    """Host functions by name.

    Args:
        functions: typed Python functions (`def` or `async def`), registered tools, other host functions; or a dict of
            payload handlers, `{name: handler(payload)}`.
        style: 'async' for stubs that the guest awaits, 'sync' for stubs that it calls.

    Raises:
        TypeError: a signature has a type that cannot be sent, or *args; or two functions have the same name.
    """

    def __init__(
        self, functions: Iterable[Any] | Mapping[str, Callable[[Any], Any]] = (), style: Style = "async"
    ) -> None:
        self.style: Style = style
        self.functions: dict[str, HostFunction] = {}
        if not isinstance(functions, Iterable) or isinstance(functions, (str, bytes)):
            raise TypeError(f"{functions!r:.80} is not a list of functions: give [f, g], or a dict of handlers.")
        if isinstance(functions, Mapping):
            for name, handler in functions.items():
                self._put(name, PayloadHandler(name, handler))
        else:
            for function in functions:
                self.add(function)

    @classmethod
    def of(cls, given: HostCallsLike) -> Toolset:
        """Return a toolset unchanged, or make one of functions."""
        return given if isinstance(given, Toolset) else cls(given)

    def add(self, function: Any, *, name: str | None = None, policy: Policy | None = None) -> None:
        """Add a function, a registered tool, a host function, or several of these."""
        if not isinstance(policy, (Policy, type(None))):
            raise TypeError(f"policy={policy!r:.80} is not a Policy: give Policy(max_calls=1), for example.")
        if isinstance(function, (list, tuple)):
            for each in function:
                self.add(each, policy=policy)
        elif _is_tool(function):
            found = ToolFunction(function, policy)
            self._put(found.name, found)
        elif _is_host_function(function):
            if policy:
                function = copy.copy(function)  # another toolset may have it, too
                function.policy = policy
            self._put(function.name, function)
        elif callable(function):
            typed = TypedFunction(function, name, policy)
            self._put(typed.name, typed)
        else:
            raise TypeError(
                f"{function!r:.80} is not a function: give typed Python functions, tools, or a dict of handlers."
            )

    def stubs(self) -> str:
        """Return the stubs as Python source: types, signatures, docstrings, no bodies; neutralised, see text.py."""
        stubs = self._stubs()
        parts = [*merged_types(stubs).values(), *(stub.summary(is_async=self._is_async) for stub in stubs)]
        return neutralise("\n\n".join(parts))

    def description(self, style: Literal["repl", "main"] = "repl") -> str:
        """Return the instructions for a model: how to write the code, and the functions it may call."""
        how = _HOW[style].format(way="await them" if self._is_async else "call them; nothing is awaited")
        stubs = self.stubs()
        named = [name for name, function in self.functions.items() if not getattr(function, "stub", None)]
        shown = [f"```python\n{stubs}\n```"] if stubs else []
        if named:
            shown.append(_BY_NAME.format(names=", ".join(map(repr, named))))
        return "\n\n".join((how, *shown))

    def source(self) -> str:
        """Return the prelude that defines the functions in the guest, as module `tools` and as global names."""
        if not self._stubs():
            return ""
        return f"__import__('sandbox').define('tools', {module_source(self._stubs(), is_async=self._is_async)!r})"

    @property
    def _is_async(self) -> bool:
        return self.style == "async"

    def _stubs(self, *further: HostFunction) -> list[Stub]:
        stubs = (getattr(function, "stub", None) for function in (*self.functions.values(), *further))
        return [stub for stub in stubs if stub]

    def _put(self, name: str, function: HostFunction) -> None:
        if name in self.functions:
            raise NotCrossing(f"Two host functions have the name {name!r}; rename one.")
        merged_types(self._stubs(function))
        self.functions[name] = function


def _is_tool(value: Any) -> TypeGuard[Tool]:
    """Return whether a value is a tool: it has a function definition for a model, and can be called."""
    definition = getattr(value, "function", None)
    return (
        isinstance(definition, Mapping) and definition.keys() >= _DEFINITION and callable(getattr(value, "call", None))
    )


def _is_host_function(value: Any) -> TypeGuard[NamedFunction]:
    """Return whether a value is a host function: only host functions have a `Policy`."""
    return isinstance(getattr(value, "policy", None), Policy)


_DEFINITION = {"name", "description", "parameters"}
_BY_NAME = (
    "Handlers of one payload are called by name ({names}): from sandbox.asyncio import hostcall; "
    "await hostcall(name, payload)"
)
_HOW = {
    "repl": (
        "Write Python. Variables stay from call to call; the value of the last expression is shown. These functions "
        "run outside the sandbox ({way}); several can be awaited at once with asyncio.gather:"
    ),
    "main": (
        "Write Python that defines `async def main() -> object:`; what it returns is the result. Import what you need. "
        "These functions run outside the sandbox ({way}); several can be awaited at once with asyncio.gather:"
    ),
}
