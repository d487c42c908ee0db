"""The output of one command, as text, bounded: the beginning at once, the end of the rest when it is over. Pure."""

from __future__ import annotations

import codecs
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable

from agent_tools.results.commands import CommandResult
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.text import SafePieces
from agent_tools.tools.command_tool import StreamName


class OutputText:
    """Takes bytes of both streams, and returns text that is safe to show.

    `limit` is in characters, of both streams together. The first half is returned as it arrives. Of the rest, the last
    half is returned at the end, after a note that counts the omitted characters exactly. All returned texts joined are
    the output.
    """

    def __init__(self, limit: int) -> None:
        self._room = limit - limit // 2
        self._most = limit // 2
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
        self._pieces: dict[str, SafePieces] = defaultdict(SafePieces)
        self._shown: dict[str, list[str]] = defaultdict(list)
        self._end: deque[tuple[str, str]] = deque()
        self._size = 0
        self._left_out: Counter[str] = Counter()

    def add(self, stream: StreamName, data: bytes) -> str:
        """Take in bytes, and return the text that they add to the beginning; '' once that is full."""
        return self._take(stream, self._text(stream, data))

    def finish(self, stream: StreamName, more: str = "") -> str:
        """Take the last text of a stream, and return its remaining output."""
        first = self._take(stream, self._text(stream, b"", is_over=True) + more)
        rest = "".join(text for name, text in self._end if name == stream)
        if left_out := self._left_out[stream]:
            rest = f"\n[... {left_out:,} characters left out ...]\n{rest}"
        self._shown[stream].append(rest)
        return first + rest

    def text(self, stream: StreamName) -> str:
        """Return the output of a stream so far."""
        return "".join(self._shown[stream])

    def _text(self, stream: StreamName, data: bytes, *, is_over: bool = False) -> str:
        """Decode bytes and make them safe; half a character and half an escape wait for the rest."""
        pieces = self._pieces[stream]
        return pieces.feed(self._decoders[stream].decode(data, is_over)) + (pieces.finish() if is_over else "")

    def _take(self, stream: StreamName, text: str) -> str:
        head, rest = text[: self._room], text[self._room :]
        self._room -= len(head)
        if head:
            self._shown[stream].append(head)
        if rest:
            self._keep(stream, rest)
        return head

    def _keep(self, stream: str, text: str) -> None:
        """Keep the last characters of both streams."""
        self._end.append((stream, text))
        self._size += len(text)
        while self._size > self._most:
            name, first = self._end.popleft()
            excess = min(len(first), self._size - self._most)
            self._size -= excess
            self._left_out[name] += excess
            if excess < len(first):
                self._end.appendleft((name, first[excess:]))


def run_bounded(
    sandbox: Sandbox,
    command: str,
    output: OutputText,
    on_text: Callable[[StreamName, str], None],
    timeout: float,
    cancelled: threading.Event,
) -> CommandResult:
    """Run a command and pass its output on as text, within the limit of `output`; the reason of its end comes last."""
    result = sandbox.run_command(
        command,
        timeout=timeout,
        max_output=1,  # `output` has it
        on_output=lambda stream, data: on_text(stream, output.add(stream, data)),
        cancelled=cancelled,
    )
    on_text("stdout", output.finish("stdout"))
    on_text("stderr", output.finish("stderr", f"{result.reason}\n" if result.reason else ""))
    return result
