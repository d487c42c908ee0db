"""An agent that reasons and acts in text, for models and servers without tool calls."""

from __future__ import annotations

from agent_tools.agents.assistant import Assistant
from agent_tools.agents.react.model import ReActModel
from agent_tools.agents.react.text import scratchpad
from agent_tools.agents.steps import CallBegun, CallDelta, CallDone, ReasoningDelta, RoundDone, Step, TextDelta
from agent_tools.agents.transcript import Transcript
from agent_tools.messages import ASSISTANT, Message
from agent_tools.models import Model


class ReActChat(Assistant):
    """`Assistant` for models that only write text: Thought, Action, Action Input, Observation, Final Answer.

        bot = ReActChat(llm={'model': 'qwen-max'}, name='Data Analyst', function_list=['code_interpreter'])

    The response is one message, whose text grows with each of these. Arguments: see `Assistant`.
    """

    def _model_for_loop(self, model: Model) -> Model:
        return ReActModel(model, {name: tool.args_format for name, tool in self.function_map.items()})

    def _transcript(self) -> Transcript:
        return _ReActTranscript(self.name)


class _ReActTranscript(Transcript):
    """The response as one message of ReAct text. When a round ends it is rewritten, with each result under its call."""

    def __init__(self, name: str | None) -> None:
        super().__init__(name)
        self._done = ""  # the text of the finished rounds
        self._now = ""  # the text of the current round
        self._reasoning = ""

    @property
    def messages(self) -> list[Message]:
        text = _joined(self._done, self._now)
        return [Message(ASSISTANT, text, reasoning_content=self._reasoning or None, name=self._name)]

    def add(self, step: Step) -> bool:
        match step:
            case TextDelta(text) | CallDelta(_, text):
                self._now += text
            case ReasoningDelta(text):
                self._reasoning += text
            case CallBegun(_, name):
                self._now = _joined(self._now, f"Action: {name}\nAction Input: ")
            case CallDone():
                self._now = _joined(self._now, f"Observation: {step.text}")
            case RoundDone():
                before = _joined(self._done, self._now)
                self._done, self._now = _joined(self._done, scratchpad(step.messages)), ""
                return before != self._done
            case _:
                return False
        return True


def _joined(first: str, second: str) -> str:
    """Return both texts, the second on a line of its own."""
    return f"{first}\n{second}" if first and second and not first.endswith("\n") else first + second
