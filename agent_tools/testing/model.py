"""A model that follows a script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_tools.errors import ModelError
from agent_tools.models.base import Conversation, Delta
from agent_tools.models.wire import wire_messages, wire_tools
from agent_tools.testing.script import Replies, Script, ScriptedReply


@dataclass(frozen=True)
class Asked:
    """What a scripted model was asked: all as it would have gone over the wire."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    options: dict[str, Any]


class ScriptedModel:
    """A `Model` without a server, for tests of agents.

        model = ScriptedModel(["Hello!", ScriptedReply(calls=[ScriptedCall("code_interpreter", {"code": "1 + 1"})])])

    Each reply answers one round, in turn; a script that is used up is a `ModelError`, and so is a reply with a status.
    `asked` records every request, `closed` counts the replies that were closed before their end.
    """

    def __init__(self, script: Script) -> None:
        self.asked: list[Asked] = []
        self.closed = 0
        self._replies = Replies(script)

    def reply(
        self,
        messages: Conversation,
        tools: Sequence[Mapping[str, Any]] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Iterator[Delta]:
        """The next reply of the script."""
        asked = Asked(wire_messages(messages), wire_tools(tools), dict(options or {}))
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
            raise ModelError("The scripted model broke its answer off with an error.", detail=reply.error)
