"""Outputs are settled as they come: cleared and replaced ones are removed."""

from __future__ import annotations

from agent_tools.results.execution import Cleared, Display, HostCall, Notice, Omitted, Output, Restarted, Stream

OURS = (Restarted, Omitted, Notice, HostCall)  # outputs that the code cannot clear


class Settling:
    """Settles outputs as they come: joins stream texts, updates displays in place, and drops cleared ones."""

    def __init__(self) -> None:
        self._outputs: list[Output] = []
        self._places: dict[str, int] = {}  # of the first display with an id
        self._clears_next = False

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The outputs that have come so far, settled."""
        return tuple(self._outputs)

    def add(self, output: Output) -> None:
        """Settle one more."""
        if isinstance(output, Cleared):
            self._clears_next = output.wait
            if not output.wait:
                self._clear()
            return
        if self._clears_next and not isinstance(output, OURS):
            self._clears_next = False
            self._clear()
        self._settle(output)

    def _clear(self) -> None:
        self._outputs = [output for output in self._outputs if isinstance(output, OURS)]
        self._places.clear()

    def _settle(self, output: Output) -> None:
        last = self._outputs[-1] if self._outputs else None
        if isinstance(output, Stream) and isinstance(last, Stream) and last.name == output.name:
            self._outputs[-1] = Stream(last.name, last.text + output.text)
            return
        if isinstance(output, Display) and output.display_id is not None:
            place = self._places.setdefault(output.display_id, len(self._outputs))
            if output.is_update and place < len(self._outputs):
                self._outputs[place] = Display(output.data, output.display_id)
                return
        self._outputs.append(output)
