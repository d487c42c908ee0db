"""The part of the tool that keeps variables and brings them back."""

from __future__ import annotations

from typing import BinaryIO

from agent_tools.checkpoint import Mark
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.saved_state import SavedState, VariablesReport
from agent_tools.tools.base import file_errors, tool_errors


class WithState:
    """Goes back to where the variables were, saves them, and loads them."""

    _sandbox: Sandbox

    def undo(self) -> None:
        """Take the variables back to where they were before the last call; files stay. Errors as for `Sandbox.undo`."""
        with tool_errors():
            self._sandbox.undo()

    def checkpoint(self) -> Mark:
        """Keep the variables as they are now, for `rollback`. Errors as for `Sandbox.checkpoint`."""
        with tool_errors():
            return self._sandbox.checkpoint()

    def rollback(self, mark: Mark) -> None:
        """Take the variables to where they were at a mark; files stay. Errors as for `Sandbox.rollback`."""
        with tool_errors():
            self._sandbox.rollback(mark)

    def save(self) -> SavedState:
        """Return files and variables, for `load`, and what could not be saved. Raises ToolServiceError."""
        with tool_errors(), file_errors():
            return self._sandbox.save(variables=True)

    def load(self, state: SavedState | bytes | BinaryIO) -> VariablesReport:
        """Bring back what `save` returned; return what became of the variables. Raises ToolServiceError."""
        with tool_errors(), file_errors():
            return self._sandbox.load(state)
