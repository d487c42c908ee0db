"""A set of host functions, with what the guest and the model need to know of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Union

from agent_tools.code_mode.functions import PayloadHandler, ToolFunction, TypedFunction
from agent_tools.code_mode.stubs import NotCrossing, Stub, merged_types, module_source
from agent_tools.runtime.host_calls.function import HostFunction, Policy
from agent_tools.text import neutralise

Style = Literal["async", "sync"]
HostCallsLike = Union["Toolset", Iterable[Any], Mapping[str, Callable[[Any], Any]]]


class Toolset:
    """Host functions by name.

    Args:
        functions: typed Python functions (`def` or `async def`), registered tools, other host functions; or a dict of
            payload handlers, `{name: handler(payload)}`.
        style: whether the guest's stubs are awaited ('async') or not ('sync').

    Raises:
        TypeError: a signature has a type that cannot cross, or *args; or a name is taken.
    """

    def __init__(
        self, functions: Iterable[Any] | Mapping[str, Callable[[Any], Any]] = (), style: Style = "async"
    ) -> None:
        self.style: Style = style
        self.functions: dict[str, HostFunction] = {}
        if isinstance(functions, Mapping):
            for name, handler in functions.items():
                self._put(name, PayloadHandler(name, handler))
        else:
            for function in functions:
                self.add(function)

    @classmethod
    def of(cls, given: HostCallsLike) -> Toolset:
        """A toolset as it is, or one made of functions."""
        return given if isinstance(given, Toolset) else cls(given)

    def add(self, function: Any, *, name: str | None = None, policy: Policy | None = None) -> None:
        """Add a function, a registered tool, a host function, or several of these."""
        if isinstance(function, (list, tuple)):
            for each in function:
                self.add(each, policy=policy)
        elif callable(getattr(function, "call", None)) and isinstance(getattr(function, "function", None), dict):
            found = ToolFunction(function, policy)
            self._put(found.name, found)
        elif hasattr(function, "call") and hasattr(function, "policy"):
            function.policy = policy or function.policy
            self._put(function.name, function)
        elif callable(function):
            typed = TypedFunction(function, name, policy)
            self._put(typed.name, typed)
        else:
            raise TypeError(
                f"{function!r:.80} is not a function: give typed Python functions, tools, or a dict of handlers."
            )

    def stubs(self) -> str:
        """The stubs as Python source: types, signatures, docstrings, without bodies; neutralised, see text.py."""
        stubs = self._stubs()
        parts = [*merged_types(stubs).values(), *(stub.summary(is_async=self._is_async) for stub in stubs)]
        return neutralise("\n\n".join(parts))

    def description(self, style: Literal["repl", "main"] = "repl") -> str:
        """What a model should be told: how to write the code, and what it may call."""
        how = _HOW[style].format(way="await them" if self._is_async else "call them; nothing is awaited")
        return f"{how}\n\n```python\n{self.stubs()}\n```"

    def source(self) -> str:
        """The prelude that makes the functions known in the guest, as the module `tools` and as names of the cells."""
        if not self._stubs():
            return ""
        return f"__import__('sandbox').define('tools', {module_source(self._stubs(), is_async=self._is_async)!r})"

    @property
    def _is_async(self) -> bool:
        return self.style == "async"

    def _stubs(self) -> list[Stub]:
        stubs = (getattr(function, "stub", None) for function in self.functions.values())
        return [stub for stub in stubs if stub]

    def _put(self, name: str, function: HostFunction) -> None:
        if name in self.functions:
            raise NotCrossing(f"There are two host functions of the name {name!r}; rename one.")
        self.functions[name] = function
        merged_types(self._stubs())


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
