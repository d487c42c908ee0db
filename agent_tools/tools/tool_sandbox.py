"""The sandbox of a tool for models: the pictures of its runs are files, and its answers are Markdown."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from agent_tools import settings
from agent_tools.code_reader import Code
from agent_tools.errors import FileRejected
from agent_tools.results.execution import Execution, Output, Picture
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.tools.markdown import markdown


class ToolSandbox(Sandbox):
    """A sandbox whose functions are all known when it starts."""

    takes_functions = False

    def stream_saved(
        self, code: Code, timeout: float | None = None, cancelled: threading.Event | None = None
    ) -> Generator[Output, None, Execution]:
        """Like `stream`, but the execution's pictures are saved."""
        with closing(self.stream(code, timeout, cancelled)) as outputs:
            execution = yield from outputs
        saved = self.save_pictures(execution.pictures)
        return replace(execution, saved=saved) if saved else execution

    def save_pictures(self, pictures: Sequence[Picture]) -> tuple[Picture, ...]:
        """Save pictures under new names and return them with their paths; a refused picture has the path ''."""
        return tuple(replace(picture, path=self._saved(picture)) for picture in pictures)

    def markdown(self, execution: Execution) -> str:
        """Return an execution as text for a model, with links to its pictures."""
        return markdown(execution, self._url)

    def _saved(self, picture: Picture) -> str:
        try:
            return self.workspace.save_picture(picture.data, picture.suffix, self.options.figures_dir)
        except FileRejected:
            return ""

    def _url(self, path: str) -> str:
        base = self.options.static_url or settings.static_url()
        return f"{base.rstrip('/')}/{Path(path).name}" if base else path
