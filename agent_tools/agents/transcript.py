"""Converts the steps of a turn into the messages of a growing response."""

from __future__ import annotations

from dataclasses import replace

from agent_tools.agents.steps import CallBegun, CallDelta, CallDone, ReasoningDelta, RoundDone, Step, TextDelta
from agent_tools.messages import ASSISTANT, CALL_ID, FUNCTION, USER, FunctionCall, Message


class Transcript:
    """The response so far: text, calls and results as separate messages. `name` is the agent's."""

    def __init__(self, name: str | None) -> None:
        self._name = name
        self._settled: list[Message] = []  # of the finished rounds
        self._round: list[Message] = []  # of the current round
        self._positions: dict[str, int] = {}  # call id -> index in the round

    @property
    def messages(self) -> list[Message]:
        """Return all messages, in a list that the caller owns."""
        return [*self._settled, *self._round]

    def add(self, step: Step) -> bool:
        """Add a step, and return whether it changed the response."""
        match step:
            case TextDelta(text):
                self._say(text, "")
            case ReasoningDelta(text):
                self._say("", text)
            case CallBegun(id_, name):
                self._begin(id_, name)
            case CallDelta(id_, arguments):
                self._write(id_, arguments)
            case CallDone():
                result = Message(FUNCTION, step.content, name=step.call.name, extra={CALL_ID: step.call.id})
                self._round.append(result)
            case RoundDone():
                return self._settle(step)
            case _:
                return False
        return True

    def _say(self, text: str, reasoning: str) -> None:
        if not self._round or self._round[-1].function_call or self._round[-1].role != ASSISTANT:
            self._round.append(Message(ASSISTANT, name=self._name))
        last = self._round[-1]
        thought = f"{last.reasoning_content or ''}{reasoning}" or None
        self._round[-1] = replace(last, content=last.text + text, reasoning_content=thought)

    def _begin(self, id_: str, name: str) -> None:
        call, extra = FunctionCall(name, ""), {CALL_ID: id_}
        if self._round and not self._positions:  # the first call belongs to the text before it
            self._round[-1] = replace(self._round[-1], function_call=call, extra=extra)
        else:
            self._round.append(Message(ASSISTANT, name=self._name, function_call=call, extra=extra))
        self._positions[id_] = len(self._round) - 1

    def _write(self, id_: str, arguments: str) -> None:
        place = self._positions[id_]
        call = self._round[place].function_call
        assert call is not None
        written = replace(call, arguments=call.arguments + arguments)
        self._round[place] = replace(self._round[place], function_call=written)

    def _settle(self, done: RoundDone) -> bool:
        """Replace the round's messages by the final ones. Pictures for the model are not part of a response."""
        settled = [
            replace(message, name=self._name) if message.role == ASSISTANT else message
            for message in done.messages
            if message.role != USER
        ]
        is_changed = settled != self._round
        self._settled += settled
        self._round, self._positions = [], {}
        return is_changed
