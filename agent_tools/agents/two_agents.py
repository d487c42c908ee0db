"""Two agents that answer questions about a file, each without the power that would make the other dangerous.

The first may read the host's files below one folder and can run no code; the second runs code in a sandbox and sees
nothing of the host. Only text goes from one to the other, and the file itself, which is copied into the sandbox.

This is the division of OpenAI's cookbook "Build your own code interpreter". Its roles, here:

| cookbook | agent_tools |
|---|---|
| BaseAgent: `task`, `add_context` | `Agent`, `FnCallAgent`; `task` and `add_context` of the agents below |
| ChatMessages | a list of `Message`s (messages.py), kept by each agent below |
| ToolManager | `function_list` and `Agent.function_map`; calls are made by `ToolLoop` |
| ToolInterface: `get_definition`, `run` | `BaseTool`: `function`, `call`; or any typed function |
| FileAccessTool, FileAccessAgent | `FileAccess`, `FileAccessAgent` |
| PythonExecTool, PythonExecAgent | `CodeInterpreter`, `PythonExecAgent` |
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_tools.agents.base import ModelLike
from agent_tools.agents.fncall import FnCallAgent
from agent_tools.messages import ASSISTANT, USER, Message
from agent_tools.tools import CodeInterpreter
from agent_tools.tools.file_access import FileAccess

_READ = (
    "You prepare a data analysis that a colleague will write in Python. Read the file the user names with the tool "
    "file_access, which also brings it to your colleague's machine. Then tell your colleague in a few lines the file's "
    "name there, its columns with their types and meaning, its size, and what to beware of. You cannot run code, and "
    "you do not answer questions about the data yourself."
)
_ANALYSE = (
    "You are a data analyst. Answer the user's question about the data by writing Python and running it with the tool "
    "code_interpreter; variables live from call to call. Print what you need to see. You have no network and no other "
    "files than those in the working directory. Base every number in the answer on what the code printed."
)


class _TaskAgent(FnCallAgent):
    """An agent that keeps its conversation, and gets files only by its tools."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.messages: list[Message] = []

    def add_context(self, text: str) -> None:
        """Tell the agent something before its next task."""
        self.messages.append(Message(USER, text))

    def task(self, text: str) -> str:
        """Have a task done in the conversation so far, and return the text of the answer."""
        asked = Message(USER, text)
        response = self.run_nonstream([*self.messages, asked])
        self.messages += [asked, *response]
        return response[-1].text if response and response[-1].role == ASSISTANT else ""

    def _files(self, messages: Sequence[Message]) -> tuple[str, ...]:
        return ()  # a path in a message gives no access


class FileAccessAgent(_TaskAgent):
    """Reads files below `root` of the host and brings them into a code interpreter's sandbox. It can run no code."""

    def __init__(self, llm: ModelLike, root: str | Path, into: CodeInterpreter, **turn: Any) -> None:
        tool = FileAccess({"root": str(root)}, into=into)
        super().__init__([tool], llm, _READ, name="FileAccessAgent", **turn)


class PythonExecAgent(_TaskAgent):
    """Writes Python and runs it in a sandbox. It sees no file of the host."""

    def __init__(self, llm: ModelLike, code_interpreter: CodeInterpreter, **turn: Any) -> None:
        super().__init__([code_interpreter], llm, _ANALYSE, name="PythonExecAgent", **turn)


class TwoAgents:
    """Both agents at work together: `prepare` once for each file, then `ask` as often as you like.

        with TwoAgents('gpt-4o', {'model': 'o3-mini'}, root='data') as analysts:
            analysts.prepare('Use the file traffic_accidents.csv.')
            print(analysts.ask('What factors contribute the most to accidents?'))

    Args:
        reader: the model of the first agent.
        coder: the model of the second agent; the same by default.
        root: the folder of the host whose files may be read.
        code_interpreter: the interpreter that runs the code; by default one that is made here and closed with it.
    """

    def __init__(
        self,
        reader: ModelLike,
        coder: ModelLike | None = None,
        *,
        root: str | Path,
        code_interpreter: CodeInterpreter | None = None,
    ) -> None:
        self._is_own = code_interpreter is None
        self.code_interpreter = code_interpreter or CodeInterpreter()
        self.file_agent = FileAccessAgent(reader, root, self.code_interpreter)
        self.code_agent = PythonExecAgent(reader if coder is None else coder, self.code_interpreter)

    def prepare(self, prompt: str) -> str:
        """Have the first agent read the file that the prompt names, and pass its answer to the second."""
        context = self.file_agent.task(prompt)
        self.code_agent.add_context(f"{prompt}\n\n{context}")
        return context

    def ask(self, question: str) -> str:
        """Have the second agent answer a question."""
        return self.code_agent.task(question)

    def close(self) -> None:
        """Close both agents, and the sandbox unless it was passed in."""
        self.code_agent.close()
        self.file_agent.close()
        if self._is_own:
            self.code_interpreter.close()

    def __enter__(self) -> TwoAgents:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
