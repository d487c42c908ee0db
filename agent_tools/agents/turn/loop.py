"""The loop between a model and its tools: ask, make the calls, report the results, until the model has answered.

Theory of operation. `ToolLoop.run` is one turn: a generator of steps (../steps.py), made of rounds. In each round

1. the model is asked with the conversation so far, and its reply is read into steps while it arrives (round.py);
2. its calls are made in order, one at a time; calls of the caller's own functions are left pending;
3. the reply and the results are appended to the conversation, and what the round cost is added up.

The turn ends when a reply has no calls, when calls are pending, or when it is stopped. When all rounds or calls are
used up, the model is asked once more with `tool_choice: none`: a turn should end with an answer. So it is for an answer
in a format (`response_format`), which only the last request asks for: the answer before it is put aside.

Every call that is not left pending gets an answer, a refusal if it was not made: servers reject a conversation with an
unanswered call. The model gets its own mistakes and the tools' failures as answers; only failures of its server are
raised.

Two tokens end a turn. `cancel` is the caller's; `stop` is the turn's own, and is set by `cancel` and by the deadline's
timer. Setting `stop` hangs up on the model or interrupts the running code, from the thread that sets it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from agent_tools import settings
from agent_tools.agents.cancel import Cancel
from agent_tools.agents.steps import Call, CallDone, CallRunning, Finished, RoundDone, Step
from agent_tools.agents.turn.round import Round
from agent_tools.agents.turn.tool_call import CallContext, code_reader, perform, pictures_message, refused
from agent_tools.messages import CALL_ID, FIGURES, FUNCTION, Message
from agent_tools.models.base import Conversation, FunctionDefinition, Model, Options, Usage, abandon
from agent_tools.tools.base import BaseTool

CUT = {"length": "reached its token limit", "content_filter": "was cut off by a filter"}
"""Finish reasons of an answer that is not whole: none of its calls is made."""
ENDED = "the turn was ended."
LEAST_TOKENS = 16  # that a model is asked for after a first round: servers take no smaller limit
_TOKENS = ("max_tokens", "max_completion_tokens")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ToolLoop:
    """A model, its tools, and the limits of a turn; one value may serve many turns, also at once.

    Attributes:
        model: the model that is asked.
        tools: the tools it may call; they run here.
        client_functions: definitions of functions that the caller runs; a call of one ends the turn.
        files: paths or URLs for tools that take files.
        options: chat completions' request fields. A forced `tool_choice` holds for the first round only, and a limit on
            tokens for all rounds together, as far as the server counts them.
        max_rounds: how often the model is asked with tools; then once more without. Default: settings.
        max_calls: how many calls are made; then the model is asked once more without tools. Default: no limit.
        call_timeout: seconds that the code of one call may run. Default: the tool's own.
        deadline: seconds that the whole turn may take. Default: no limit. A tool that runs no code is waited for.
        python_blocks: the name of a tool that gets the fenced Python in an answer; '' leaves it as text.
        show_pictures: how many of a round's pictures the model is shown; it must be a model that reads images.
        format_beside_tools: the model's server takes a `response_format` beside tools; by default it is asked for the
            format once more, without calls, when its answer has come: many servers let no call through a format.
    """

    model: Model
    tools: Sequence[BaseTool] = ()
    client_functions: Sequence[FunctionDefinition] = ()
    files: Sequence[str] = ()
    options: Options = field(default_factory=dict)
    max_rounds: int | None = None
    max_calls: int | None = None
    call_timeout: float | None = None
    deadline: float | None = None
    python_blocks: str = ""
    show_pictures: int = 0
    format_beside_tools: bool = False

    def run(self, messages: Conversation, cancel: Cancel | None = None) -> Generator[Step, None, None]:
        """Answer a conversation, step by step; the last step is `Finished`.

        Setting `cancel`, from any thread, ends the turn; so does closing the generator.

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
            turn = _RunningTurn(self, list(messages), stop)
            yield from turn.rounds()
            reason = turn.reason or ("cancelled" if cancel.is_set() else "deadline")
            yield Finished(reason, turn.usage, tuple(turn.pending))


class _RunningTurn:
    """The state of one turn, and its rounds."""

    def __init__(self, loop: ToolLoop, messages: list[Any], stop: Cancel) -> None:
        self.loop = loop
        self.messages = messages
        self.stop = stop
        self.usage = Usage()
        self.reason = ""  # the reason of the end; '' while the turn goes on, and if it was stopped
        self.pending: list[Call] = []
        self.tools = {tool.name: tool for tool in loop.tools}
        self.functions = [tool.definition for tool in self.tools.values()]
        self.functions += [dict(each.get("function", each)) for each in loop.client_functions]
        self.clients = {function["name"] for function in self.functions} - self.tools.keys()
        self.used_ids: set[str] = set()
        self.calls_made = 0
        self.spent = 0  # tokens of the limit that the options have on them
        self.defers_format = bool(loop.options.get("response_format")) and not loop.format_beside_tools
        self.has_draft = False  # the model has answered, and is asked for the format

    def rounds(self) -> Iterator[Step]:
        number = 0
        while not self.reason and not self.stop.is_set():
            if self.spent and any(left < LEAST_TOKENS for left in self._tokens_left().values()):
                self.reason = "length"
                return
            number += 1
            answer = self._new_round(number, self._may_call(number))
            yield from self._ask(answer)
            if answer.is_draft and answer.reason and not answer.calls:
                self.has_draft = True  # the conversation continues without it
                self.usage += answer.usage or Usage()
                yield RoundDone(number, (), answer.usage, answer.reason)
                continue
            results = yield from self._make_calls(answer)
            self.reason = self._reason(answer)
            yield self._close(answer, results)

    def _new_round(self, number: int, may_call: bool) -> Round:
        functions = self.functions if may_call else ()
        declared = {function["name"]: code_reader(self.tools.get(function["name"])) for function in functions}
        schemas = {function["name"]: function.get("parameters") for function in self.functions}
        is_draft = may_call and self.defers_format
        return Round(number, declared, self.loop.python_blocks, self.used_ids, schemas, is_draft)

    def _may_call(self, number: int) -> bool:
        limit = self.loop.max_rounds or settings.max_rounds()
        has_calls_left = self.loop.max_calls is None or self.calls_made < self.loop.max_calls
        may_use_tools = bool(self.functions) and self.loop.options.get("tool_choice") != "none"
        return may_use_tools and has_calls_left and number <= limit and not self.has_draft

    def _ask(self, answer: Round) -> Iterator[Step]:
        options = {**self.loop.options, **self._tokens_left()}
        if answer.is_draft:
            del options["response_format"]
        if self.functions and not answer.declared:
            options["tool_choice"] = "none"
        elif answer.number > 1 and options.get("tool_choice") not in (None, "auto"):
            options["tool_choice"] = "auto"  # a model that is forced to call could never answer
        reply = self.loop.model.reply(self.messages, self.functions, options)
        try:
            with self.stop.ending(lambda: abandon(reply)):
                yield from answer.read(takewhile(lambda _: not self.stop.is_set(), reply))
        finally:
            abandon(reply)

    def _tokens_left(self) -> dict[str, int]:
        """Return the token limits of the options, minus the tokens that were spent."""
        limits = {name: self.loop.options.get(name) for name in _TOKENS}
        return {name: most - self.spent for name, most in limits.items() if type(most) is int and most > 0}

    def _make_calls(self, answer: Round) -> Generator[Step, None, list[CallDone]]:
        """Make the calls of our tools, in order; calls that the caller has to answer are left pending."""
        done = []
        for call in answer.calls:
            if call.name in self.clients and answer.reason not in CUT:
                self.pending.append(call)
                continue
            result = yield from self._make_call(call, answer.reason)
            done.append(result)
            yield result
        if self.stop.is_set():
            done += [refused(call, ENDED) for call in self.pending]
            self.pending.clear()
        return done

    def _make_call(self, call: Call, reason: str) -> Generator[Step, None, CallDone]:
        tool, limit = self.tools.get(call.name), self.loop.max_calls
        if self.stop.is_set():
            return refused(call, ENDED)
        if reason in CUT:
            return refused(call, f"the reply {CUT[reason]} before the call was written.")
        if tool is None:
            known = ", ".join([*self.tools, *sorted(self.clients)])
            return refused(call, f"there is no tool of that name. Tools: {known}.")
        if limit is not None and self.calls_made >= limit:
            return refused(call, f"the limit of {limit} calls is reached. Answer without further calls.")
        self.calls_made += 1
        yield CallRunning(call.id, call.name)
        context = CallContext(self.messages, self.loop.files, self.loop.call_timeout, self.stop)
        done = yield from perform(call, tool, context)
        has_note = call.note and isinstance(done.content, str)
        return replace(done, content=f"{done.content}\n\n{call.note}") if has_note else done

    def _reason(self, answer: Round) -> str:
        """Return the reason for which the turn ends after this round; '' if it goes on, or was stopped."""
        if self.pending:
            return "pending"
        is_stopped = self.stop.is_set() and not answer.reason
        is_over = answer.reason in CUT and (
            answer.reason != "length" or any(call.name in self.clients for call in answer.calls)
        )
        if (answer.calls and not is_over) or is_stopped:
            return ""
        return "rounds" if answer.wanted_calls else answer.reason or "stop"

    def _close(self, answer: Round, results: list[CallDone]) -> RoundDone:
        """Append the round to the conversation, and add its tokens."""
        pictures = pictures_message(results, self.loop.show_pictures, self.messages)
        messages = (*answer.messages, *map(_result, results), *pictures)
        self.messages.extend(messages)
        self.usage += answer.usage or Usage()
        self.spent += answer.usage.output_tokens if answer.usage else 0  # none for an answer that was put aside
        _log.debug("round %d: %d calls, %s", answer.number, len(answer.calls), answer.usage)
        return RoundDone(answer.number, messages, answer.usage, answer.reason)


def _result(done: CallDone) -> Message:
    figures = [path for path in (done.execution.figures if done.execution else ()) if path]
    extra = {CALL_ID: done.call.id, **({FIGURES: figures} if figures else {})}
    return Message(FUNCTION, done.content, name=done.call.name, extra=extra)
