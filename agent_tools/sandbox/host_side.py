"""The host's side of a sandbox's host functions: the service for their calls, and their definitions for user code."""

from __future__ import annotations

from dataclasses import replace

from agent_tools.code_mode.attachments import rich_value
from agent_tools.code_mode.toolset import HostCallsLike, Toolset
from agent_tools.runtime.host_calls.function import HostFunction
from agent_tools.runtime.host_calls.host_calls import HostCalls
from agent_tools.sandbox.options import Options


class HostSide:
    """Host functions of a sandbox that has some, or may get some later."""

    @staticmethod
    def none_yet(options: Options) -> HostCalls:
        """Return the service of a pre-warmed sandbox, which has no functions yet."""
        return HostCalls({}, options.call_limits)

    @staticmethod
    def of(options: Options) -> tuple[HostCalls, str]:
        """Return the service for the functions in the options, and the code that defines them in the sandbox."""
        toolset = Toolset.of(options.hostcalls or ())
        return HostCalls(toolset.functions, options.call_limits, rich_value), toolset.source()

    @staticmethod
    def added(
        options: Options, functions: HostCallsLike, *, others: bool
    ) -> tuple[Options, dict[str, HostFunction], str]:
        """Add functions, or without `others` replace all by them.

        Return the options with all functions, the new ones, and the code that defines all.
        """
        further = Toolset.of(functions)
        if not others:
            return replace(options, hostcalls=further), further.functions, further.source()
        known = Toolset.of(options.hostcalls) if options.hostcalls else None
        both = Toolset(style=(known or further).style)
        for toolset in filter(None, (known, further)):
            both.add(list(toolset.functions.values()))
        return replace(options, hostcalls=both), further.functions, both.source()
