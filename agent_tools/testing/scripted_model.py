"""A model that follows a script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agent_tools.errors import ModelError
from agent_tools.models.base import Conversation, Delta, FunctionDefinition, JsonObject, Options
from agent_tools.models.wire import wire_messages, wire_tools
from agent_tools.testing.replies import Replies, Script, ScriptedReply


@dataclass(frozen=True)
class RecordedRequest:
    """A request to a scripted model, as it would have been sent to a server."""

    messages: list[JsonObject]
    tools: list[JsonObject]
    options: JsonObject


class ScriptedModel:
    """A `Model` without a server, for tests of agents.

        model = ScriptedModel(["Hello!", ScriptedReply(calls=[ScriptedCall("code_interpreter", {"code": "1 + 1"})])])

    The replies answer one request each, in order. A reply with an HTTP status other than 200 raises `ModelError`, as
    does a request after the last reply. `asked` holds the requests, `closed` counts the replies that were closed early.
    """

    def __init__(self, script: Script) -> None:
        self.asked: list[RecordedRequest] = []
        self.closed = 0
        self._replies = Replies(script)

    def reply(
        self,
        messages: Conversation,
        tools: Sequence[FunctionDefinition] = (),
        options: Options | None = None,
    ) -> Iterator[Delta]:
        """Yield the next reply of the script."""
        asked = RecordedRequest(wire_messages(messages), wire_tools(tools), dict(options or {}))
        self.asked.append(asked)
        return self._play(
            self._replies.next({"messages": asked.messages, "tools": asked.tools, **asked.options}),
        )

    def _play(self, reply: ScriptedReply) -> Iterator[Delta]:
        if reply.status != 200:
            raise ModelError(f"The scripted model answered {reply.status}.", reply.status, detail=reply.error)
        if reply.wait_before:
            reply.wait_before.wait()
        deltas = list(reply.deltas())
        try:
            for number, delta in enumerate(deltas):
                if number == reply.cut_after:
                    raise ModelError("The scripted model broke off.", is_retryable=True)
                if reply.wait_midway and number == len(deltas) // 2:
                    reply.wait_midway.wait()
                yield delta
        except GeneratorExit:
            self.closed += 1
            raise
        if reply.error:
            raise ModelError("The scripted model ended its answer with an error.", detail=reply.error)
