"""The call of a script's function, as the runner in the guest (guest/host_calls.py, `run_function`) takes part in it.

The runner fetches the arguments and hands over what the function yields and returns, by requests that look like
calls
of host functions. No host function can have their names, and no limits apply to them: they belong to a call that the
host itself made, and are answered where the socket is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard, get_args

from agent_tools.guest.wire.values import Encoded
from agent_tools.runtime.host_calls.function import CallRefused

Request = Literal["$arguments", "$yield", "$return"]


@dataclass(eq=False)
class ScriptCall:
    """One call. `take_item` gets each value that the function yields; `result` is set when it returns."""

    arguments: Encoded
    take_item: Callable[[Any], object]
    result: Any = None

    def answer(self, request: Request, given: list[Any]) -> Encoded:
        """Answer a request of the runner.

        Raises:
            CallRefused: it has the wrong number of arguments.
        """
        match request, given:
            case "$arguments", []:
                return self.arguments
            case "$yield", [item]:
                self.take_item(item)
            case "$return", [value]:
                self.result = value
            case _:
                raise CallRefused("HostCallArgumentError", f"{request} does not take {len(given)} arguments.", "error")
        return None, []


def is_request(name: str) -> TypeGuard[Request]:
    """Return whether a name is one of the runner's requests."""
    return name in get_args(Request)
