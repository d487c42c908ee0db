"""Outputs that somebody is told of while they are passed on."""

from __future__ import annotations

from collections.abc import Callable, Generator

from agent_tools.execution import Execution, Output


def told(
    outputs: Generator[Output, None, Execution], tell: Callable[[Output], object]
) -> Generator[Output, None, Execution]:
    """Pass each output on to `tell` as well."""
    try:
        while True:
            output = next(outputs)
            tell(output)
            yield output
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
