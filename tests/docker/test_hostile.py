"""Code that attacks its own kernel, PID 1 and the host: each call answers in time, and the next one works."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.limits import MIB
from agent_tools.machine.owner import same_host
from agent_tools.results.execution import Died, Error, Omitted, Output, Restarted, Stream, TimedOut
from agent_tools.runtime.runtime import Runtime
from agent_tools.tools import CodeInterpreter
from tests.docker.lasting import lasting_tool
from tests.docker.pausing import pause
from tests.waiting import until

pytestmark = pytest.mark.docker
PATIENCE = 10.0  # seconds: attacks leave the machine little room; tests/contract holds the three that are promised

WIRE = """
import os, struct, time
wire = get_ipython().kernel.session._writer.socket
wire.setblocking(True)
"""
SOCKETS = """
import os, socket
def sockets():
    found = []
    for fd in os.listdir('/proc/self/fd'):
        try:
            s = socket.socket(fileno=os.dup(int(fd)))
        except OSError:
            continue
        with s:
            found.append((s.family.name, s.getsockname(), s.getpeername()))
    return found
"""
KERNEL = "kernel = get_ipython().kernel\nparent = kernel.get_parent('shell')\n"
BREAKS = {
    "a size that claims to be huge": (
        WIRE + "wire.sendall(struct.pack('>2I', 2, 2**32 - 1))\ntime.sleep(60)",
        r"a message of 4,294,967,295 bytes, over 16,777,216 bytes",
    ),
    "noise on the wire": (
        WIRE + "wire.sendall(b'\\xff' + os.urandom(4096))\ntime.sleep(60)",
        r"bytes that are no message",
    ),
    "an unknown channel": (
        WIRE + "wire.sendall(bytes((0, 0, 0, 9)) * 2)\ntime.sleep(60)",
        r"bytes that are no message",
    ),
    "parts without an end": (
        WIRE + "while True: wire.sendall(struct.pack('>3I', 2, 1020, 255) + bytes(1016))",
        r"a message of 255 parts",
    ),
    "messages of bare bytes": (
        WIRE
        + "body = bytes(4 << 20)\nhead = struct.pack('>7I', 2, 20 + len(body), 4, 0, 0, 0, len(body))\n"
        + "while True: wire.sendall(head + body)",
        r"a malformed message \(JSONDecodeError\)",
    ),
}
ATTACKS = {
    **{name: code for name, (code, _) in BREAKS.items()},
    "a message that never ends": WIRE
    + "wire.sendall(struct.pack('>7I', 2, 20 + (15 << 20), 4, 0, 0, 0, 15 << 20))\n"
    + "while True:\n    wire.sendall(b'x')\n    time.sleep(0.01)",
    "JSON that is costly to read": KERNEL
    + "import json\nbomb = b'{\"data\":{\"application/json\":[' + b'[],' * 4_000_000 + b'0]}}'\n"
    + "kernel.session.pack = lambda o: bomb if 'data' in o else json.dumps(o, default=str).encode()\n"
    + "for _ in range(4): kernel.session.send(kernel.iopub_socket, 'display_data', {'data': {}}, parent=parent)",
    "closing its own channels": "import os\nos.closerange(3, 1024)\nimport time\ntime.sleep(60)",
    "signals to PID 1": "import os\nfor s in range(1, 65):\n    try: os.kill(1, s)\n    except OSError: pass",
    "a flood of messages": KERNEL
    + "text = {'name': 'stdout', 'text': 'x' * 9999}\n"
    + "while True: kernel.session.send(kernel.iopub_socket, 'stream', text, parent=parent)",
    "a flood of empty updates": "from IPython.display import publish_display_data\n"
    + "while True: publish_display_data({'text/plain': ''}, transient={'display_id': 'a'}, update=True)",
    "a fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "stopping everything": "import os, signal\nos.fork()\nfor pid in (-1, os.getpid()): os.kill(pid, signal.SIGSTOP)",
}


@pytest.fixture(scope="module")
def used_tool(docker_runtime: Runtime) -> Iterator[CodeInterpreter]:
    """As those of other modules, with room for few processes: a bomb has filled it soon."""
    with lasting_tool(docker_runtime, {"pids": 64}) as tool:
        yield tool


@pytest.fixture
def tool(fresh_tool: CodeInterpreter) -> CodeInterpreter:
    return fresh_tool


def _memory() -> int:
    """Bytes this process has resident."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("code", ATTACKS.values(), ids=ATTACKS.keys())
def test_an_attack_ends_in_time_without_growth_and_the_next_call_works(tool: CodeInterpreter, code: str) -> None:
    tool.call("1")
    before, started = _memory(), time.monotonic()
    tool.run({"code": code}, timeout=1)
    assert time.monotonic() - started < 1 + PATIENCE
    assert _memory() - before < 100 * MIB
    assert tool.run("print('works')").stdout == "works\n"


@pytest.mark.parametrize(("code", "reason"), BREAKS.values(), ids=BREAKS.keys())
def test_code_that_breaks_the_protocol_ends_its_kernel(tool: CodeInterpreter, code: str, reason: str) -> None:
    died = tool.run({"code": code}, timeout=20).outputs[-1]
    assert isinstance(died, Died)
    assert re.fullmatch(f"it sent {reason}", died.reason)
    assert died.cause == "protocol_violation"


def test_a_forged_end_can_only_lie_about_itself(tool: CodeInterpreter) -> None:
    forge = (
        KERNEL + "kernel.session.send(kernel.shell_channel, 'execute_reply', {'status': 'ok'}, parent=parent)\n"
        "kernel._publish_status('idle', 'shell')\nkernel.session.flush()\nimport time\ntime.sleep(1)\nprint('late')"
    )
    forged = tool.run({"code": forge}, timeout=5)
    assert forged.outputs == ()
    assert forged.duration < 1
    execution = tool.run("print('mine')", timeout=10)
    assert execution.stdout == "mine\n"


def test_what_earlier_code_planted_does_not_run_in_a_fresh_kernel(tool: CodeInterpreter) -> None:
    plant = """
import os, pathlib
for folder in ('.ipython/profile_default/startup', '.ipython/profile_default', '.config', 'matplotlib'):
    pathlib.Path.home().joinpath(folder).mkdir(parents=True, exist_ok=True)
home = pathlib.Path.home() / '.ipython/profile_default'
(home / 'startup/00-x.py').write_text('import time; planted = 1; time.sleep(60)')
(home / 'ipython_config.py').write_text('import time; time.sleep(60)')
(home / 'ipython_kernel_config.py').write_text('import time; time.sleep(60)')
os._exit(0)
"""
    tool.run({"code": plant})
    started = time.monotonic()
    execution = tool.run("print('planted' in globals())", timeout=5)
    assert time.monotonic() - started < 5
    assert isinstance(execution.outputs[0], Restarted)
    assert execution.stdout == "False\n"


def test_the_guest_inherits_nothing_of_pid_1_but_its_channels(tool: CodeInterpreter) -> None:
    code = SOCKETS + "print(os.listdir('/run/kernel'), set(sockets()), sep='\\n')"
    assert tool.run({"code": code}).stdout == "[]\n{('AF_UNIX', '', '')}\n"


def test_what_the_code_left_running_ends_with_its_kernel(tool: CodeInterpreter) -> None:
    orphan = "while True: open('/workspace/beat', 'a').write('x'); time.sleep(0.05)"
    code = f"import os, time\nif os.fork() == 0:\n    os.setsid()\n    {orphan}\ntime.sleep(0.3)\nos._exit(1)"
    assert isinstance(tool.run({"code": code}).outputs[-1], Died)
    assert _has_stopped(tool)


@pytest.mark.parametrize("timeout", [0.5, 2.5], ids=["told by an order", "told by the page"])
def test_the_time_limit_holds_while_nobody_reads(tool: CodeInterpreter, timeout: float) -> None:
    assert any(isinstance(output, TimedOut) for output in _read_late(tool, "[signal.SIGALRM]", timeout))


@pytest.mark.parametrize("timeout", [0.5, 2.5], ids=["told by an order", "told by the page"])
def test_code_that_is_deaf_is_killed_while_nobody_reads(tool: CodeInterpreter, timeout: float) -> None:
    outputs = _read_late(tool, "[signal.SIGALRM, signal.SIGINT]", timeout)
    (ending,) = [output for output in outputs if isinstance(output, TimedOut)]
    assert not ending.state_kept


def _read_late(tool: CodeInterpreter, ignored: str, timeout: float) -> list[Output]:
    """Run what never ends, with these signals ignored; return the outputs that are read after it has ended."""
    code = f"""
import signal, time
for number in {ignored}: signal.signal(number, signal.SIG_IGN)
print('started\\n', end='', flush=True)
while True:
    open('/workspace/beat', 'a').write('x')
    time.sleep(0.05)
"""
    with closing(tool.stream({"code": code}, timeout=timeout)) as stream:
        assert next(stream) == Stream("stdout", "started\n")
        time.sleep(timeout)
        until(lambda: _has_stopped(tool), 10)
        return list(stream)


def _has_stopped(tool: CodeInterpreter) -> bool:
    """Whether nothing writes any more to the file that the code wrote to again and again."""
    beat = Path(tool.work_dir) / "beat"
    size = beat.stat().st_size
    time.sleep(0.3)
    return size > 0 and beat.stat().st_size == size


def test_a_run_that_is_over_does_not_end_the_next_one(tool: CodeInterpreter) -> None:
    for _ in range(3):
        assert tool.run("x = 1", timeout=2.2).ok
    execution = tool.run("import time\ntime.sleep(4)\nprint(x)", timeout=20)
    assert execution.stdout == "1\n"


def test_an_error_read_late_is_still_an_error(tool: CodeInterpreter) -> None:
    stream = tool.stream("print('now', flush=True)\n1/0", timeout=2)
    next(stream)
    time.sleep(2.5)
    assert isinstance(list(stream)[-1], Error)


def test_honest_large_displays_cost_no_variables(tool: CodeInterpreter) -> None:
    code = "x = 1\nfrom IPython.display import HTML, JSON, display\ndisplay(HTML('中' * 6_000_000))"
    execution = tool.run({"code": f"{code}\ndisplay(JSON({{'a': list(range(1_500_000))}}))"}, timeout=30)
    assert execution.ok
    assert "left out" in execution.outputs[0].text  # type: ignore[union-attr]
    assert tool.run("x").result is not None


def test_a_paused_sandbox_is_given_up_and_replaced(tool: CodeInterpreter, docker_engine: DockerEngine) -> None:
    tool.call("1")
    pause(docker_engine.connection.api(), tool.sandbox.id)  # type: ignore[union-attr]
    started = time.monotonic()
    tool.run("print(1)", timeout=0.5)
    assert time.monotonic() - started < 0.5 + PATIENCE + 10
    assert tool.run("print('works')").stdout == "works\n"


def test_a_host_killed_while_its_guest_attacks_leaves_nothing(docker_engine: DockerEngine, work_dir: Path) -> None:
    script = f"""
from agent_tools.tools import CodeInterpreter
tool = CodeInterpreter({{"work_dir": {str(work_dir)!r}, "pids": 64}})
tool.call("1")
print(tool.sandbox.id, flush=True)
tool.call({ATTACKS["a fork bomb"]!r}, timeout=60)
"""
    host = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert host.stdout
    id_ = host.stdout.readline().strip()
    time.sleep(0.5)
    host.send_signal(signal.SIGKILL)
    host.wait(10)
    host.stdout.close()
    deadline = time.monotonic() + 60  # a fork bomb leaves the machine little room
    while id_ in {sandbox.id for sandbox, _ in docker_engine.strays(same_host())}:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_cancelling_a_waiting_run_does_not_touch_the_one_that_runs(tool: CodeInterpreter) -> None:
    tool.call("1")
    answers: list[str] = []
    first = threading.Thread(target=lambda: answers.append(tool.call("import time\ntime.sleep(1)\nprint('whole')")))
    first.start()
    time.sleep(0.3)
    cancelled = threading.Event()
    second = threading.Thread(target=tool._call, args=("print('never')", None, None, cancelled))
    second.start()
    time.sleep(0.2)
    tool.cancel(cancelled)
    second.join(5)
    first.join(5)
    assert answers == ["stdout:\n\n```\nwhole\n\n```"]


def test_pictures_that_are_none_are_left_out_with_a_note(tool: CodeInterpreter) -> None:
    code = "from IPython.display import display\ndisplay({'image/png': 'bm90IGEgcG5n', 'text/plain': 'x'}, raw=True)"
    outputs = tool.run({"code": code}).outputs
    assert outputs[-1] == Omitted("a picture (not image/png)")


ENDLESS = {
    "backtracking": "import re\nre.match('(a+)+$', 'a' * 60 + 'b')",
    "a C call that sleeps": "import ctypes\nctypes.CDLL(None).sleep(60)",
    "a C call that waits for a signal": "import ctypes\nwhile True: ctypes.CDLL(None).pause()",
    "a lock it holds itself": "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()",
    "arithmetic": "3 ** (10 ** 9)",
}


@pytest.mark.parametrize("code", ENDLESS.values(), ids=ENDLESS.keys())
def test_code_without_end_is_ended_in_time(tool: CodeInterpreter, code: str) -> None:
    tool.call("1")
    started = time.monotonic()
    assert isinstance(tool.run({"code": code}, timeout=1).outputs[-1], TimedOut)
    assert time.monotonic() - started < 1 + PATIENCE
    assert tool.run("print('works')").stdout == "works\n"


def test_a_thread_left_running_holds_up_nobody(tool: CodeInterpreter) -> None:
    tool.call("1")
    execution = tool.run(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\nprint('now')"
    )
    assert execution.stdout == "now\n"
    assert execution.duration < PATIENCE


DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            open('/workspace/beat', 'a').write('x')
            time.sleep(0.05)
    os._exit(0)
os.wait()
time.sleep(0.3)
"""


@pytest.mark.parametrize("end", ["restart", "close"])
def test_a_daemon_ends_with_the_session_that_started_it(tool: CodeInterpreter, end: str) -> None:
    tool.run({"code": DAEMON})
    getattr(tool, end)()
    time.sleep(0.3)
    assert _has_stopped(tool)


LAST_WISHES = """
import atexit, signal, time
class Clinging:
    def __del__(self): time.sleep(60)
clinging = Clinging()
atexit.register(time.sleep, 60)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
"""


def test_closing_does_not_wait_for_what_the_code_still_wants(tool: CodeInterpreter) -> None:
    assert tool.run({"code": LAST_WISHES}).ok
    started = time.monotonic()
    tool.close()
    assert time.monotonic() - started < PATIENCE


STALLED_HOST = """
import sys
from agent_tools import CodeInterpreter

DEAF = '''
import signal, time
for number in (signal.SIGINT, signal.SIGALRM):
    signal.signal(number, signal.SIG_IGN)
while True:
    with open("beat", "w") as file:
        file.write(str(time.monotonic()))
    time.sleep(0.02)
'''
with CodeInterpreter({"work_dir": sys.argv[1]}) as tool:
    tool.call("kept = 1")
    print(tool.call(DEAF, timeout=2))
"""


def stands_still(file: Path) -> bool:
    before = file.read_text()
    time.sleep(0.5)
    return file.read_text() == before


def test_the_time_limit_holds_while_the_host_is_stopped(tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    host = subprocess.Popen([sys.executable, "-c", STALLED_HOST, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        until(lambda: beat.exists() and beat.read_text() != "", PATIENCE * 6)
        time.sleep(0.5)  # PID 1 is armed once a run lasts
        host.send_signal(signal.SIGSTOP)
        until(lambda: stands_still(beat), PATIENCE)
    finally:
        host.send_signal(signal.SIGCONT)
    assert "exceeded the time limit" in host.communicate(timeout=60)[0]
