"""The loop between a model and its tools: ask, do what it calls, tell it the results, until it has answered.

A turn is a generator of steps (steps.py). Each round reads one reply (round.py) and answers its calls in order
(calls.py); the conversation it makes is valid at every step: no call stays without an answer, however it ends.
What the model or a tool does wrong is told to the model; only the model's own failure is raised.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from agent_tools import settings
from agent_tools.agents.calls import Surroundings, code_reader, perform, refused
from agent_tools.agents.cancel import Cancel
from agent_tools.agents.code_stream import CodeReader
from agent_tools.agents.pictures import pictures_message
from agent_tools.agents.round import Round
from agent_tools.agents.steps import Call, CallDone, CallRunning, Finished, RoundDone, Step
from agent_tools.messages import CALL_ID, FIGURES, FUNCTION, Message
from agent_tools.models.base import Conversation, Delta, Model, Usage
from agent_tools.tools.base import BaseTool

ENDED = "the turn was ended."
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Turn:
    """How a turn is run; one value may serve many turns, also at once.

    Attributes:
        model: who is asked.
        tools: what it may call, run here.
        client_functions: definitions of functions it may call that the caller runs; calling one ends the turn.
        files: paths or URLs for tools that take files.
        options: chat completions' request fields. A forced `tool_choice` holds for the first round only.
        max_rounds: how often the model is asked while it may call; then once more without. Default: settings.
        max_calls: how many calls are made; then the model is asked once more without tools. Default: no limit.
        call_timeout: seconds one call's code may run. Default: the tool's own.
        deadline: seconds the whole turn may take. Default: no limit. A tool that runs no code is waited for.
        python_blocks: the name of a tool to which fenced Python in an answer goes; '' if fenced Python is only text.
        show_pictures: how many of the pictures that code draws in a round are shown to the model, which must be one
            that can see.
    """

    model: Model
    tools: Sequence[BaseTool] = ()
    client_functions: Sequence[Mapping[str, Any]] = ()
    files: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    max_rounds: int | None = None
    max_calls: int | None = None
    call_timeout: float | None = None
    deadline: float | None = None
    python_blocks: str = ""
    show_pictures: int = 0

    def run(self, messages: Conversation, cancel: Cancel | None = None) -> Generator[Step, None, None]:
        """Answer a conversation, step by step; the last step is `Finished`.

        Setting `cancel`, from any thread, ends what is going on; so does closing the generator.

        Raises:
            ModelError: the model could not be asked, or broke off.
        """
        cancel, stop = cancel or Cancel(), Cancel()
        with ExitStack() as stack:
            stack.enter_context(cancel.ending(stop.set))
            if self.deadline is not None:
                timer = threading.Timer(self.deadline, stop.set)
                timer.daemon = True
                timer.start()
                stack.callback(timer.cancel)
            going = _Going(self, list(messages), stop)
            yield from going.rounds()
            reason = going.reason or ("cancelled" if cancel.is_set() else "deadline")
            yield Finished(reason, going.usage, tuple(going.pending))


class _Going:
    """One turn under way."""

    def __init__(self, turn: Turn, messages: list[Any], stop: Cancel) -> None:
        self.turn = turn
        self.messages = messages
        self.stop = stop
        self.usage = Usage()
        self.reason = ""  # why it is over; '' while it is not, and if it was stopped
        self.pending: list[Call] = []
        self.tools = {tool.name: tool for tool in turn.tools}
        self.functions = [tool.function for tool in self.tools.values()]
        self.functions += [dict(each.get("function", each)) for each in turn.client_functions]
        self.clients = {function["name"] for function in self.functions} - self.tools.keys()
        self.used_ids: set[str] = set()
        self.calls_made = 0

    def rounds(self) -> Iterator[Step]:
        number = 0
        while not self.reason and not self.stop.is_set():
            number += 1
            may_call = self._may_call(number)
            answer = Round(number, self._declared() if may_call else {}, self.turn.python_blocks, self.used_ids)
            yield from self._ask(answer, may_call)
            results = yield from self._answer_calls(answer)
            self.reason = self._reason(answer)
            yield self._close(answer, results)

    def _may_call(self, number: int) -> bool:
        limit = self.turn.max_rounds or settings.max_rounds()
        has_calls_left = self.turn.max_calls is None or self.calls_made < self.turn.max_calls
        return (
            bool(self.functions)
            and number <= limit
            and has_calls_left
            and (self.turn.options.get("tool_choice") != "none")
        )

    def _declared(self) -> dict[str, CodeReader | None]:
        return {function["name"]: code_reader(self.tools.get(function["name"])) for function in self.functions}

    def _ask(self, answer: Round, may_call: bool) -> Iterator[Step]:
        options = dict(self.turn.options)
        if self.functions and not may_call:
            options["tool_choice"] = "none"
        elif answer.number > 1 and options.get("tool_choice") not in (None, "auto"):
            options["tool_choice"] = "auto"  # else it could never answer
        reply = self.turn.model.reply(self.messages, self.functions, options)
        try:
            with self.stop.ending(lambda: _hang_up(reply)):
                yield from answer.read(self._until_stopped(reply))
        finally:
            _hang_up(reply)

    def _until_stopped(self, reply: Iterator[Delta]) -> Iterator[Delta]:
        for delta in reply:
            if self.stop.is_set():
                return
            yield delta

    def _answer_calls(self, answer: Round) -> Generator[Step, None, list[CallDone]]:
        """Run our calls, in order; calls that the caller has to answer are left pending."""
        done = []
        for call in answer.calls:
            if call.name in self.clients:
                self.pending.append(call)
                continue
            is_cut = answer.reason == "length" and call is answer.calls[-1]
            result = yield from self._answer(call, is_cut)
            done.append(result)
            yield result
        if self.stop.is_set():
            done += [refused(call, ENDED) for call in self.pending]
            self.pending.clear()
        return done

    def _answer(self, call: Call, is_cut: bool) -> Generator[Step, None, CallDone]:
        tool, limit = self.tools.get(call.name), self.turn.max_calls
        if self.stop.is_set():
            return refused(call, ENDED)
        if is_cut:
            return refused(call, "the reply reached its token limit before the call was written.")
        if tool is None:
            known = ", ".join([*self.tools, *sorted(self.clients)])
            return refused(call, f"there is no tool of that name. There is: {known}.")
        if limit is not None and self.calls_made >= limit:
            return refused(call, f"all {limit} calls that may be made are used up. Answer without further calls.")
        self.calls_made += 1
        yield CallRunning(call.id)
        return (yield from perform(call, tool, self._surroundings()))

    def _surroundings(self) -> Surroundings:
        return Surroundings(self.messages, self.turn.files, self.turn.call_timeout, self.stop)

    def _reason(self, answer: Round) -> str:
        """Why the turn is over after this round; '' if it is not, or was stopped."""
        if self.pending:
            return "pending"
        is_stopped = self.stop.is_set() and not answer.reason
        if answer.calls or is_stopped:
            return ""
        return "rounds" if answer.wanted_calls else answer.reason or "stop"

    def _close(self, answer: Round, results: list[CallDone]) -> RoundDone:
        """Add the round to the conversation and to the bill."""
        pictures = pictures_message(results, self.turn.show_pictures, self.messages)
        messages = (*answer.messages, *map(_result, results), *pictures)
        self.messages.extend(messages)
        self.usage += answer.usage or Usage()
        _log.debug("round %d: %d calls, %s", answer.number, len(answer.calls), answer.usage)
        return RoundDone(answer.number, messages, answer.usage, answer.reason)


def _result(done: CallDone) -> Message:
    figures = [path for path in (done.execution.figures if done.execution else ()) if path]
    extra = {CALL_ID: done.call.id, **({FIGURES: figures} if figures else {})}
    return Message(FUNCTION, done.content, name=done.call.name, extra=extra)


def _hang_up(reply: Iterator[Delta]) -> None:
    """Close a reply from whatever thread; a plain generator that is just at work notices at its next piece."""
    close = getattr(reply, "close", None)
    if close is not None:
        with contextlib.suppress(ValueError):
            close()
