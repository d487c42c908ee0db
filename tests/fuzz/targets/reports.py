"""Reports of PID 1, which a fork's supervisor may forge: lines, with MARK between them, and the text in them."""

from __future__ import annotations

from agent_tools.guest.wire.lines import MAX_LINE
from agent_tools.guest.wire.words import Exit, Failed, Marked, Printed, Ready, read_report
from agent_tools.limits import Limits
from agent_tools.runtime.kernel.end_words import describe_exit
from agent_tools.runtime.kernel.output_limits import limited
from agent_tools.runtime.kernel.protocol import streams
from tests.fuzz import unfold
from tests.fuzz.oracle import Parts, Target

MARK = b"<|>"
LIMITS = Limits()


def unfold_lines(data: bytes) -> Parts:
    """The lines, one a part, as long as a datagram may be."""
    return [line[:MAX_LINE] for line in unfold.text(data).split(MARK)]


def read(parts: Parts) -> None:
    """Read each line, and show what it says."""
    for part in parts:
        match read_report(part):
            case Printed(_, name, text):
                shown = [*limited(streams(name, text), LIMITS)]
                assert len(text) <= MAX_LINE
                assert not any("\x1b" in getattr(each, "text", "") for each in shown)
            case Exit() as ended:
                assert len(describe_exit(ended, 1 << 30)) < 100
            case Failed() | Marked() | Ready() | None:
                pass


TARGET = Target(
    read,
    unfold_lines,
    words=(
        MARK,
        b"exit 1 7 0 0 /tmp 0 0",
        b"exit 1 0 9 1 /tmp 0 0",
        b"failed 1 eA==",
        b"marked 1 2",
        b"printed 1 stdout eA==",
    ),
)
