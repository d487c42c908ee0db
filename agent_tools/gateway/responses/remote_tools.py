"""The tools of MCP servers in one response: listed before the model is asked, offered to it, called once approved.

A call that needs approval is pending like one of the client's own functions: it ends the response. The next response
makes it before its model is asked, or reports the refusal to the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from itertools import starmap

from agent_tools.agents.steps import Call, CallDelta, CallReady
from agent_tools.agents.turn.loop import ToolLoop
from agent_tools.code_mode.hints import NotCrossing
from agent_tools.code_mode.toolset import Toolset
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.remote_mcp.allowed_servers import AllowedServers
from agent_tools.gateway.remote_mcp.connections import McpConnection, McpConnections
from agent_tools.gateway.remote_mcp.function import remote_function
from agent_tools.gateway.remote_mcp.remote_server import RemoteFailure
from agent_tools.gateway.remote_mcp.tool import RemoteTool
from agent_tools.gateway.responses.approvals import Decision, OpenCall, answer, open_calls
from agent_tools.gateway.responses.call_items import McpCallItem, McpListItem
from agent_tools.gateway.responses.composer import Composer
from agent_tools.gateway.responses.items import Event
from agent_tools.gateway.responses.mcp_names import code_name, model_name
from agent_tools.gateway.responses.mcp_tools import GivenServer
from agent_tools.gateway.tools.tool import ContainerTool
from agent_tools.models.base import JsonObject

_UNDECIDED = "The user has not approved this call."
_GONE = "This call was approved, but its tool is not offered any more."


class RemoteTools:
    """Made with each response; `close` ends its connections. For one thread, but for `cancel`."""

    def __init__(self, config: GatewayConfig, servers: AllowedServers | None, decisions: Sequence[Decision]) -> None:
        self._config = config
        self._connections = McpConnections(config, servers) if servers else None
        self._decisions = {each.request_id: each for each in reversed(decisions)}  # of two, the first counts
        self._about: dict[tuple[str, ...], list[str]] = {}  # ids of new ones, the first last, by tool and arguments
        for each in reversed([each for each in decisions if each.is_new]):
            for tool in ((each.label, each.name), (model_name(each.label, each.name),)):
                self._about.setdefault((*tool, each.arguments), []).append(each.request_id)
        self._tools: dict[str, RemoteTool] = {}
        self._by_own_name: dict[tuple[str, str], RemoteTool] = {}
        self._functions = Toolset(style="sync")

    def cancel(self) -> None:
        """End all waits for servers."""
        if self._connections:
            self._connections.cancel()

    def close(self) -> None:
        """Close the connections to all servers."""
        if self._connections:
            self._connections.close()

    def listed(self, servers: Sequence[GivenServer], turn: ToolLoop, composer: Composer) -> Iterator[Event]:
        """Ask the servers for their tools. A server that does not answer has an error in its item."""
        taken = {tool.name for tool in turn.tools} | {function["name"] for function in turn.client_functions}
        for given in servers:
            item = McpListItem(given.server.label)
            yield from composer.insert(item)
            try:
                found = self._offered(given, taken)
            except RemoteFailure as exc:
                yield from composer.placed(item, item.failed(str(exc)))
            else:
                yield from composer.placed(item, item.listed(found))
        composer.offer(self._tools)

    def _offered(self, given: GivenServer, taken: set[str]) -> list[JsonObject]:
        """Take the tools of a server that the request allows; return them as MCP lists them."""
        assert self._connections
        connection, listed = self._connections.tools(given.server)
        wanted = [each for each in listed if given.allowed.fits(each)]
        most = self._config.max_mcp_tools
        if len(wanted) > most:
            raise RemoteFailure(f"The server has {len(wanted):,} tools, more than {most}: choose by 'allowed_tools'.")
        self._add_functions(connection, given, wanted if "programmatic" in given.callers else ())
        for each in wanted if "direct" in given.callers else ():
            name = model_name(given.server.label, str(each["name"]))
            while name in taken:
                name += "_"
            taken.add(name)
            needs_approval = given.needs_approval(each)
            self._tools[name] = tool = RemoteTool(connection, each, name, needs_approval)
            self._by_own_name.setdefault(_own_name(tool), tool)
        return wanted

    def _add_functions(self, connection: McpConnection, given: GivenServer, listed: Sequence[JsonObject]) -> None:
        """Let code call the tools that need no approval: a person cannot be asked while code runs."""
        names = [(given.server.label, str(each["name"])) for each in listed]
        alike = Counter(starmap(code_name, dict.fromkeys(names)))
        for each, (label, own) in zip(listed, names):
            if given.needs_approval(each):
                continue
            name = code_name(label, own)
            if alike[name] > 1 or name in self._functions.functions:
                name = code_name(label, own, is_marked=True)
            try:
                self._functions.add(remote_function(connection, each, name, self._config.mcp_timeout))
            except NotCrossing as exc:
                raise RemoteFailure(f"The code cannot call the tool {own!r:.80}: {exc}") from exc

    def turn(self, turn: ToolLoop) -> ToolLoop:
        """Return the turn with the listed tools; calls that need approval are left to the client."""
        for tool in turn.tools:
            if isinstance(tool, ContainerTool) and self._functions.functions:
                tool.offer(self._functions)
        called = [tool for tool in self._tools.values() if not tool.needs_approval]
        asked = [tool.definition for tool in self._tools.values() if tool.needs_approval]
        return replace(turn, tools=(*turn.tools, *called), client_functions=(*turn.client_functions, *asked))

    def settled(self, messages: list[JsonObject], composer: Composer) -> Iterator[Event]:
        """Make the calls that were approved, and put the answers of all that were asked about into the messages."""
        answers: list[tuple[OpenCall, str]] = []
        known = {*self._tools, *starmap(model_name, self._by_own_name)}
        for call in reversed(list(open_calls(messages))):
            decision = self._decision(call)
            if decision is not None and decision.is_approved:
                answers.append((call, (yield from self._made(call, decision, composer))))
            elif decision is not None:
                answers.append((call, decision.refusal))
            elif call.name in known:
                answers.append((call, _UNDECIDED))
        for call, text in reversed(answers):
            messages.insert(call.index, answer(call, text))

    def _decision(self, call: OpenCall) -> Decision | None:
        """Take the decision on a call: by its id, else a new one with the same tool and arguments."""
        if decision := self._decisions.pop(call.id, None):
            return decision
        named = self._tools.get(call.name)
        alike = self._about.get((*(_own_name(named) if named else (call.name,)), call.arguments), [])
        while alike and decision is None:  # some were taken by their ids
            decision = self._decisions.pop(alike.pop(), None)
        return decision

    def _made(self, call: OpenCall, decision: Decision, composer: Composer) -> Generator[Event, None, str]:
        """Make a call, and return the answer for the model."""
        item = McpCallItem(decision.label, decision.name, decision.request_id)
        yield from composer.insert(item)
        yield from composer.placed(item, item.write(CallDelta(call.id, call.arguments)))
        yield from composer.placed(item, item.written(CallReady(Call(call.id, call.name, call.arguments))))
        tool = self._by_own_name.get((decision.label, decision.name))  # its name for the model may have changed
        try:
            if tool is None:
                raise RemoteFailure(_GONE)
            text = tool.call(call.arguments)
        except RemoteFailure as exc:
            yield from composer.placed(item, item.ended(str(exc), exc))
            return f"The tool {call.name} failed: {exc}"
        yield from composer.placed(item, item.ended(text))
        return text


def _own_name(tool: RemoteTool) -> tuple[str, str]:
    return tool.label, tool.own_name
