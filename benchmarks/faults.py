"""Hostile code and failing surroundings against live sandboxes: what survived, and how long past its deadline.

    .venv/bin/python benchmarks/faults.py [--sections ABCDEFGH] [--timeout 2] [--verbose]

A case is survived when its answer shows what it must, comes within three seconds of its time limit, and the next call
on the same instance works. Exit code 1 when one is lost.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_tools.engines.docker import image
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.errors import ToolServiceError
from agent_tools.limits import MIB
from agent_tools.results.execution import Execution
from agent_tools.tools import CodeInterpreter

PATIENCE = 3.0  # seconds past the time limit
SECTIONS = {
    "A": "resource exhaustion",
    "B": "time limits",
    "C": "protocol abuse",
    "D": "file system",
    "E": "network",
    "F": "privilege",
    "G": "host and engine",
    "H": "files and URLs",
}
KERNEL = "k = get_ipython().kernel; p = k.get_parent('shell'); send = k.session.send\n"
LIBC = "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
SLEEP = "import time; time.sleep(60)"
LATE, LOST = r"TimedOut", r"(TimedOut|Died).*(variables are lost|Variables are lost)"
REFUSED, NO_WAY = r"PermissionError|OSError", r"(OSError|TimeoutError|gaierror|Error)"
Act = Callable[[CodeInterpreter, DockerEngine], object]


@dataclass(frozen=True)
class Case:
    """Code for a call, and what its answer must match: kinds and texts of its outputs, and what became of its files."""

    section: str
    name: str
    code: str
    expected: str
    files: Sequence[str] = ()
    act: Act | None = None
    """The fault, done to the instance from another thread, while the code runs."""


CASES = [
    Case("A", "memory", "x = []\nwhile True: x.append(bytearray(32 << 20))", r"Died.*memory limit"),
    Case("A", "one huge allocation", "bytearray(50 << 30)", r"MemoryError|Died"),
    Case("A", "full /tmp", "open('/tmp/f', 'wb').write(bytes(300 << 20))", r"No space|Died"),
    Case("A", "full /dev/shm", "open('/dev/shm/f', 'wb').write(bytes(80 << 20))", r"No space"),
    Case("A", "fork bomb", "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", LOST),
    Case("A", "thread bomb", "import threading\nwhile True: threading.Thread(target=__import__('time').sleep, args=[60]).start()", r"can't start new thread"),  # noqa: E501
    Case("A", "descriptor bomb", "x = [open('/dev/null') for _ in range(9999)]", r"Too many open files"),
    Case("A", "sparse giant", "open('big', 'wb').truncate(1 << 40)", r"File too large"),
    Case("A", "core dump", "import os; os.abort()", r"Died.*signal 6"),
    Case("A", "endless print", "while True: print('x' * 100)", r"TimedOut"),
    Case("A", "a display of 20 MB", "from IPython.display import HTML; HTML('x' * 20_000_000)", r"left out"),
    Case("B", "sleep", SLEEP, LATE),
    Case("B", "loop", "while True: pass", LATE),
    Case("B", "await", "import asyncio; await asyncio.sleep(60)", LATE),
    Case("B", "swallows everything", "import time\nwhile True:\n    try: time.sleep(1)\n    except BaseException: pass", LOST),  # noqa: E501
    Case("B", "ignores signals", f"import signal\nfor s in (2, 14): signal.signal(s, signal.SIG_IGN)\n{SLEEP}", LOST),
    Case("B", "a C call", LIBC + "libc.sleep(60)", r"TimedOut"),
    Case("B", "backtracking", "import re; re.match('(a+)+$', 'a' * 60 + 'b')", r"TimedOut"),
    Case("B", "arithmetic", "3 ** (10 ** 9)", r"TimedOut"),
    Case("B", "stops itself", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", LOST),
    Case("B", "a thread goes on", "import threading, time; threading.Thread(target=time.sleep, args=[60]).start(); print('on')", r"Stream: on"),  # noqa: E501
    Case("C", "noise on all descriptors", "import os\nfor fd in range(3, 99):\n    try: os.write(fd, os.urandom(4096))\n    except OSError: pass\n" + SLEEP, r"Died|TimedOut"),  # noqa: E501
    Case("C", "closes its channels", f"import os; os.closerange(3, 1024)\n{SLEEP}", r"Died"),
    Case("C", "a bad signature", KERNEL + f"k.session.key = b'x'; k._publish_status('busy', 'shell')\n{SLEEP}", "Died"),
    Case("C", "a flood", KERNEL + "while True: send(k.iopub_socket, 'stream', {'name': 'stdout', 'text': 'x' * 9999}, parent=p)", r"TimedOut|Died"),  # noqa: E501
    Case("C", "forged idle", KERNEL + "k._publish_status('idle', 'shell'); print('after')", r"Stream: after"),
    Case("C", "contents of wrong types", KERNEL + "[send(k.iopub_socket, t, {'text': 7, 'data': [], 'name': None}, parent=p) for t in ('stream', 'display_data', 'error')]; print('on')", r"on|Died"),  # noqa: E501
    Case("C", "a picture that is none", "from IPython.display import display; display({'image/png': 'AAAA'}, raw=True)", r"left out"),  # noqa: E501
    Case("C", "input", "input()", r"disabled"),
    Case("D", "a linked file", "import os; os.symlink('/etc/passwd', 'out.csv')", r"^$"),
    Case("D", "set-user-id", "import os; open('s', 'w').close(); os.chmod('s', 0o4755)", REFUSED),
    Case("D", "a FIFO", "import os; os.mkfifo('pipe')", REFUSED),
    Case("D", "the root", "open('/etc/x', 'w')", REFUSED),
    Case("D", "a locked folder", "import os; os.mkdir('locked'); os.chmod('locked', 0)", r"^$"),
    Case("D", "the run directory", "open('/run/kernel/x', 'w')", REFUSED),
    Case("D", "deep folders", "import os\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')\nos.chdir('/workspace')", "^$"),  # noqa: E501
    Case("E", "the internet", "import socket; socket.create_connection(('1.1.1.1', 443), 1)", NO_WAY),
    Case("E", "names", "import socket; socket.gethostbyname('example.com')", NO_WAY),
    Case("E", "metadata", "import socket; socket.create_connection(('169.254.169.254', 80), 1)", NO_WAY),
    Case("E", "the gateway", "import socket; socket.create_connection(('172.17.0.1', 80), 1)", NO_WAY),
    Case("E", "raw packets", "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)", REFUSED),
    Case("E", "vsock", "import socket; socket.socket(40, 1)", REFUSED),
    Case("F", "becoming root", "import os; os.setuid(0)", REFUSED),
    Case("F", "a user namespace", LIBC + "print(libc.unshare(0x10000000), ctypes.get_errno())", r"Stream: -1 1"),
    Case("F", "ptrace", LIBC + "print(libc.ptrace(16, 1, 0, 0), ctypes.get_errno())", r"Stream: -1 1"),
    Case("F", "io_uring", LIBC + "print(libc.syscall(425, 1, 0), ctypes.get_errno())", r"Stream: -1 1"),
    Case("F", "bpf", LIBC + "print(libc.syscall(321, 0, 0, 0), ctypes.get_errno())", r"Stream: -1 1"),
    Case("F", "PID 1's memory", "open('/proc/1/mem', 'rb').read(1)", REFUSED),
    Case("F", "signals to PID 1", "import os\nfor s in (9, 15, 19): os.kill(1, s)\nprint('alive')", r"Stream: alive"),
    Case("G", "killed", SLEEP, r"Died", act=lambda tool, on: on.connection.api().kill(tool.sandbox.id)),
    Case("G", "removed", SLEEP, r"Died", act=lambda tool, engine: engine.remove(tool.sandbox)),  # type: ignore[arg-type]
    Case("G", "paused", SLEEP, r"Died|TimedOut", act=lambda tool, on: on.connection.api().pause(tool.sandbox.id)),
    Case("G", "closed", SLEEP, r"SessionClosed", act=lambda tool, _: tool.close()),
    Case("G", "interrupted", SLEEP, r"KeyboardInterrupt", act=lambda tool, _: tool.interrupt()),
    Case("G", "restarted", SLEEP, r"Died", act=lambda tool, _: tool.restart()),
    Case("H", "no file", "1", r"not available", files=["/nowhere.csv"]),
    Case("H", "a device", "1", r"not available", files=["/dev/zero"]),
    Case("H", "a folder", "1", r"not available", files=["/etc"]),
    Case("H", "this machine", "1", r"not available", files=["http://127.0.0.1/x"]),
    Case("H", "this machine, in disguise", "1", r"not available", files=["http://0x7f000001/x", "http://[::ffff:127.0.0.1]/x"]),
    Case("H", "metadata", "1", r"not available", files=["http://169.254.169.254/latest/meta-data"]),
    Case("H", "other schemes", "1", r"not available", files=["ftp://example.com/x", "gopher://x"]),
]  # fmt: skip


@dataclass
class Score:
    """One section's result."""

    tried: int = 0
    lost: int = 0
    worst: float = 0.0


def described(execution: Execution) -> str:
    """Kinds and texts of all outputs, and of the files that could not be had."""
    files = [f"not available: {file.source} {file.error}" for file in execution.files if file.name is None]
    return "\n".join(
        files + [f"{type(output).__name__}: {output.text}" for output in execution.outputs if hasattr(output, "text")]
    )


def attempt(case: Case, tool: CodeInterpreter, engine: DockerEngine, timeout: float) -> tuple[str, float]:
    """Run one case: why it is lost ('' if survived), and seconds past its time limit."""
    assert tool.run("print('ready')").stdout == "ready\n"
    other = threading.Timer(0.3, case.act or (lambda *_: None), [tool, engine])
    other.start()
    started = time.monotonic()
    try:
        answer = described(tool.run({"code": case.code}, files=case.files, timeout=timeout))
    except ToolServiceError as exc:
        answer = f"{exc.code}: {exc.message}"
    past = time.monotonic() - started - timeout
    other.join()
    if not re.search(case.expected, answer, re.DOTALL):
        return f"answered {answer[:300]!r}", past
    if past > PATIENCE:
        return "came late", past
    try:
        works = tool.run("print('works')").stdout
    except ToolServiceError as exc:
        works = str(exc.message)
    return ("" if works == "works\n" else f"the next call gave {works[:300]!r}"), past


def measure(sections: str, timeout: float, is_verbose: bool) -> dict[str, Score]:
    """Run the cases, each section on an instance of its own."""
    engine = DockerEngine()
    image.ensure(engine, progress=print)
    scores: dict[str, Score] = {}
    for section in sections:
        folder = Path(tempfile.mkdtemp(prefix="agent-tools-faults-"))
        with CodeInterpreter({"work_dir": str(folder), "memory": 512 * MIB}) as tool:
            for case in (case for case in CASES if case.section == section):
                why, past = attempt(case, tool, engine, timeout)
                score = scores.setdefault(section, Score())
                score.tried, score.lost = score.tried + 1, score.lost + bool(why)
                score.worst = max(score.worst, past)
                if why or is_verbose:
                    print(f"{section} {case.name}: {'lost: ' + why if why else 'survived'} ({past:+.2f} s)", flush=True)
                else:
                    print(".", end="", flush=True)
        subprocess.run(["rm", "-rf", str(folder)], check=False)  # folders deeper than Python's recursion goes
    return scores


def report(scores: dict[str, Score]) -> None:
    """The table."""
    print(f"\n\n{'section':24} {'tried':>6} {'survived':>9} {'lost':>5}   worst past the deadline")
    for section, score in scores.items():
        title, survived = f"{section} {SECTIONS[section]}", score.tried - score.lost
        print(f"{title:24} {score.tried:6} {survived:9} {score.lost:5}   {max(0.0, score.worst):.2f} s")
    tried, lost = (sum(getattr(score, name) for score in scores.values()) for name in ("tried", "lost"))
    print(f"{'all':24} {tried:6} {tried - lost:9} {lost:5}   {max(0.0, *(s.worst for s in scores.values())):.2f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", default="".join(SECTIONS), help="letters of the sections to run (default: all)")
    parser.add_argument("--timeout", type=float, default=2.0, help="each case's time limit in seconds (default 2)")
    parser.add_argument("--verbose", action="store_true", help="name every case and its time past the deadline")
    options = parser.parse_args()
    if unknown := set(options.sections) - set(SECTIONS):
        parser.error(f"there is no section {', '.join(sorted(unknown))}")
    result = measure(options.sections, options.timeout, options.verbose)
    report(result)
    sys.exit(1 if any(score.lost for score in result.values()) else 0)
