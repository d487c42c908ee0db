"""The limits of what the code can do, and what the host can see of it."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import docker
from agent_tools.conformance.engine import engine_checks
from agent_tools.conformance.facts import read_facts
from agent_tools.conformance.host import host_findings
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.first_process import ENVIRONMENT
from agent_tools.limits import MIB
from agent_tools.runtime.runtime import Runtime
from agent_tools.tools import CodeInterpreter
from tests.docker.lasting import lasting_tool

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def limited_tool(docker_runtime: Runtime) -> Iterator[CodeInterpreter]:
    """A tool that may have little, for tests that run into one limit of it each: the next one finds it working."""
    little = {"pids": 64, "memory": 256 * MIB, "file_size": MIB, "open_files": 256, "tmp": 2 * MIB}
    with lasting_tool(docker_runtime, {"env": {"GREETING": "hello"}, **little}) as tool:
        yield tool


def _printed(tool: CodeInterpreter, code: str, timeout: float = 30) -> str:
    return tool.run({"code": code}, timeout=timeout).stdout.strip()


def _attempt(tool: CodeInterpreter, code: str) -> str:
    """The name of the exception an expression raises, or what it gives."""
    attempt = f"try:\n    print('got', {code})\nexcept Exception as e:\n    print(type(e).__name__, e)"
    return _printed(tool, f"import os, socket\n{attempt}")


def test_the_host_sees_an_unprivileged_process_in_every_respect(
    shared_tool: CodeInterpreter, docker_engine: DockerEngine
) -> None:
    shared_tool.call("1")
    assert shared_tool.sandbox
    facts = read_facts(docker_engine.inspect(shared_tool.sandbox), docker_engine.processes(shared_tool.sandbox))
    findings = list(host_findings(facts))
    assert len(findings) >= 15
    assert [finding for finding in findings if finding.is_promised and finding.verdict != "held"] == []


def test_every_process_of_the_sandbox_is_unprivileged(
    shared_tool: CodeInterpreter, docker_engine: DockerEngine
) -> None:
    shared_tool.call("import subprocess\nchild = subprocess.Popen(['sleep', '30'])")
    init = docker_engine.inspect(shared_tool.sandbox)["State"]["Pid"]  # type: ignore[arg-type]
    pids = [init, *_descendants(init)]
    assert len(pids) >= 3
    for pid in pids:
        status = dict(re.findall(r"^(\w+):\s*(.*)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE))
        assert status["Uid"].split()[0] != "0"
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"
        assert {int(status[cap], 16) for cap in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    shared_tool.call("child.kill()")


def _descendants(pid: int) -> list[int]:
    children = [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    return children + [below for child in children for below in _descendants(child)]


NETWORK = {
    "internet": "socket.create_connection(('1.1.1.1', 443), 2)",
    "metadata": "socket.create_connection(('169.254.169.254', 80), 2)",
    "names": "socket.gethostbyname('example.com')",
    "datagrams": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('8.8.8.8', 53))",
    "metadata over IPv6": "socket.create_connection(('fd00:ec2::254', 80), 2)",
    "the host by name": "socket.create_connection(('host.docker.internal', 80), 2)",
    "the engine of a desktop": "socket.create_connection(('192.168.65.7', 2375), 2)",
    "the gateway": "socket.create_connection(('172.17.0.1', 80), 2)",
    "packets": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "vsock": "socket.socket(40, 1)",
    "kernel crypto": "socket.socket(38, 5)",
    "netfilter": "socket.socket(16, 3, 12)",
}


@pytest.mark.parametrize("code", NETWORK.values(), ids=NETWORK.keys())
def test_there_is_no_network(shared_tool: CodeInterpreter, code: str) -> None:
    found = _attempt(shared_tool, code)
    assert "Error" in found or "error" in found
    assert not found.startswith("got")


def test_only_the_loopback_interface_exists(shared_tool: CodeInterpreter) -> None:
    assert _printed(shared_tool, "import socket\nprint([name for _, name in socket.if_nameindex()])") == "['lo']"


FORBIDDEN = {
    "write to /etc": "open('/etc/x', 'w')",
    "write to the kernel": "open('/opt/kernel/x', 'w')",
    "write to our guest code": "open('/opt/guest/agent_tools_guest/pid1/init.py', 'a')",
    "write to the run directory": "open('/run/kernel/x', 'w')",
    "reach the lifeline": "socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect('/run/kernel/init.sock')",
    "slow PID 1 down": "os.setpriority(os.PRIO_PROCESS, 1, 19)",
    "slow everything down": "os.setpriority(os.PRIO_USER, 0, 19)",
    "take PID 1 off the processor": "os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))",
    "set-user-id by chmod": "os.chmod(open('/workspace/f', 'w').name, 0o4755)",
    "set-user-id by open": "os.open('/workspace/g', os.O_CREAT | os.O_WRONLY, 0o4755)",
    "make a FIFO": "os.mkfifo('/workspace/fifo')",
    "make a device": "os.mknod('/workspace/null', 0o020666, os.makedev(1, 3))",
    "new user namespace": "os.unshare(0x10000000)",
    "become root": "(os.setuid(0), os.chown('/workspace', 1, 1))",  # setuid is allowed under a rootless engine
    "read memory of PID 1": "open('/proc/1/mem', 'rb').read(1)",
    "descriptors of PID 1": "(os.listdir('/proc/1/fd'), os.readlink('/proc/1/fd/0'))",  # numbers alone are no access
    "limits of PID 1": "__import__('resource').prlimit(1, 0, (1, 1))",
    "another name for the host's audit": "os.write(os.open('/proc/self/loginuid', os.O_WRONLY), b'1')",
    "docker's socket": "os.stat('/var/run/docker.sock')",
    "execute from /tmp": "(open('/tmp/s', 'w').close(), os.chmod('/tmp/s', 0o755), os.execv('/tmp/s', ['s']))",
}


@pytest.mark.parametrize("code", FORBIDDEN.values(), ids=FORBIDDEN.keys())
def test_it_is_refused(shared_tool: CodeInterpreter, code: str) -> None:
    found = _attempt(shared_tool, code)
    assert re.match(r"(PermissionError|OSError|FileNotFoundError)", found), found


SYSCALLS = {
    "io_uring_setup": 425,
    "ptrace": 101,
    "bpf": 321,
    "userfaultfd": 323,
    "keyctl": 250,
    "mount": 165,
    "pivot_root": 155,
    "perf_event_open": 298,
    "process_vm_readv": 310,
    "open_by_handle_at": 304,
    "setns": 308,
    "pidfd_getfd": 438,
    "vmsplice": 278,
}


@pytest.mark.parametrize("number", SYSCALLS.values(), ids=SYSCALLS.keys())
def test_dangerous_system_calls_are_refused(shared_tool: CodeInterpreter, number: int) -> None:
    code = f"import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nprint(libc.syscall({number}, 0, 0, 0, 0, 0))"
    assert _printed(shared_tool, f"{code}\nprint(ctypes.get_errno())") == "-1\n1"  # EPERM


PID_1_BY_OTHER_NUMBERS = """
import ctypes, os
libc, nothing = ctypes.CDLL(None, use_errno=True), (ctypes.c_int * 32)(1)
calls = {"sched_setscheduler": (144, 0, 5, nothing), "sched_setparam": (142, 0, nothing),
    "sched_setaffinity": (203, 0, 128, nothing), "setpriority": (141, 0, 0, 19), "ioprio_set": (251, 1, 0, 3 << 13)}
for name, (number, *words) in calls.items():
    place = 1 if name in ("setpriority", "ioprio_set") else 0
    for high in (0, 1 << 32, 1 << 63, 0xFFFFFFFF << 32):
        words[place] = ctypes.c_ulong(1 | high)
        if libc.syscall(ctypes.c_long(number), *words) != -1 or ctypes.get_errno() != 1:
            print(name, hex(high), ctypes.get_errno())
print(os.sched_getscheduler(1), os.getpriority(os.PRIO_PROCESS, 1))
"""


def test_pid_1_is_slowed_down_by_no_way_of_writing_its_number(shared_tool: CodeInterpreter) -> None:
    assert _printed(shared_tool, PID_1_BY_OTHER_NUMBERS) == "0 0"


def test_abstract_sockets_of_the_host_are_out_of_reach(shared_tool: CodeInterpreter) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0agent-tools-test-of-isolation")
        listener.listen(1)
        found = _attempt(shared_tool, "socket.socket(socket.AF_UNIX).connect('\\0agent-tools-test-of-isolation')")
    assert found.startswith("ConnectionRefusedError")


def test_what_is_said_is_nowhere_in_what_the_engine_shows(
    shared_tool: CodeInterpreter, docker_engine: DockerEngine
) -> None:
    told = secrets.token_hex(32)
    assert _printed(shared_tool, f"print({told!r})") == told
    assert shared_tool.sandbox is not None
    assert told not in str(docker_engine.inspect(shared_tool.sandbox))
    log = b""
    with contextlib.suppress(docker.errors.APIError):  # Podman 5 keeps none, and says so
        log = docker_engine.connection.api().logs(shared_tool.sandbox.id)
    assert told.encode() not in log


def test_nothing_that_the_engine_shows_leads_to_the_kernel(
    shared_tool: CodeInterpreter, docker_engine: DockerEngine
) -> None:
    assert _printed(shared_tool, "print(get_ipython().kernel.session.key)") == "b''"  # there is no secret
    shown = docker_engine.inspect(shared_tool.sandbox)  # type: ignore[arg-type]
    run_dirs = [mount["Source"] for mount in shown["Mounts"] if mount["Destination"] == "/run/kernel"]
    sockets = [list(Path(each).iterdir()) for each in run_dirs]
    assert sockets in ([[]], [])  # none that could be connected to; over stdio, no folder for one


def test_signals_do_not_reach_pid_1(shared_tool: CodeInterpreter) -> None:
    shared_tool.call("import os, signal\nstate = 'alive'")
    for name in ("SIGKILL", "SIGTERM", "SIGSTOP"):
        shared_tool.call(f"os.kill(1, signal.{name})")
    assert _printed(shared_tool, "print(state)") == "alive"


def test_the_environment_holds_nothing_of_the_host(
    shared_tool: CodeInterpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = set(_printed(shared_tool, "import os\nprint(*os.environ)").split())
    ipython = {
        "MPLBACKEND",
        "JPY_PARENT_PID",
        "CLICOLOR",
        "CLICOLOR_FORCE",
        "FORCE_COLOR",
        "PAGER",
        "GIT_PAGER",
        "TERM",
    }
    names_of_the_user = {"USER", "LOGNAME", "SHELL", "container"}  # the last is Podman's, and names only Podman
    base_image = {"PYTHON_VERSION", "PYTHON_SHA256", "GPG_KEY", "HOSTNAME", "PYDEVD_USE_FRAME_EVAL"}
    assert set(ENVIRONMENT) <= names <= set(ENVIRONMENT) | ipython | names_of_the_user | base_image


def test_given_environment_variables_arrive(limited_tool: CodeInterpreter) -> None:
    assert _printed(limited_tool, "import os\nprint(os.environ['GREETING'])") == "hello"


def test_the_process_limit_stops_a_fork_bomb(limited_tool: CodeInterpreter) -> None:
    code = """
import os, time
n = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        n += 1
except OSError:
    print('stopped', n < 64)
"""
    assert _printed(limited_tool, code) == "stopped True"
    assert _printed(limited_tool, "print('alive')") == "alive"


def test_the_memory_limit_ends_the_kernel_and_is_named(limited_tool: CodeInterpreter) -> None:
    execution = limited_tool.run("x = []\nwhile True: x.append(bytearray(16 << 20))", timeout=60)
    assert "memory limit of 0.25 GiB" in execution.outputs[-1].text
    assert _printed(limited_tool, "print('alive')") == "alive"


def test_a_file_over_the_limit_is_refused(limited_tool: CodeInterpreter) -> None:
    assert "File too large" in _attempt(limited_tool, "open('/workspace/big', 'wb').truncate(1 << 30)")


def test_descriptors_are_limited(limited_tool: CodeInterpreter) -> None:
    assert "Too many open files" in _attempt(limited_tool, "[open('/dev/null') for _ in range(1000)]")
    assert _printed(limited_tool, "print('alive')") == "alive"


def test_temporary_folders_are_limited(limited_tool: CodeInterpreter) -> None:
    write = "[open(f'/tmp/big{n}', 'wb').write(bytes(1 << 20)) for n in range(4)]"  # each within the size of a file
    assert "No space left" in _attempt(limited_tool, write)


INOTIFY = """
import ctypes
libc = ctypes.CDLL(None)
held = []
while (fd := libc.inotify_init1(0)) >= 0: held.append(fd)
print(len(held))
"""


def test_what_the_kernel_counts_for_each_user_is_a_sandboxs_own(
    new_tool: Callable[..., CodeInterpreter], shared_tool: CodeInterpreter
) -> None:
    shared_tool.restart()
    greedy, neighbour = new_tool(), shared_tool
    taken = int(_printed(greedy, INOTIFY))
    assert taken > 0
    left = int(_printed(neighbour, INOTIFY))
    neighbour.restart()
    assert left == (taken if os.getuid() == 0 else 0)  # whoever is not root lends its own uid to every sandbox


def test_a_folder_that_comes_with_the_uid_of_another_keeps_its_files(
    new_tool: Callable[..., CodeInterpreter], shared_tool: CodeInterpreter, tmp_path: Path
) -> None:
    first, second = shared_tool, new_tool(work_dir=str(tmp_path / "second"))
    write = "import os\nos.makedirs('locked', 0o700)\nopen('locked/file', 'w').write('mine')\nprint(os.getuid())"
    uid = int(_printed(first, write))
    assert int(_printed(second, write)) == uid or os.getuid() == 0
    second.close()
    if os.getuid() == 0:
        subprocess.run(["chown", "-R", f"{uid}:{uid}", tmp_path / "second"], check=True)
    third = new_tool(work_dir=str(tmp_path / "second"))
    found = _printed(third, "import os\nprint(open('locked/file').read(), os.getuid())").split()
    assert found[0] == "mine"
    assert (int(found[1]) != uid) == (os.getuid() == 0)


def test_the_image_holds_no_tools_to_install_compile_or_escalate(shared_tool: CodeInterpreter) -> None:
    code = """
import importlib.util, os, shutil, stat, subprocess
print([name for name in 'gcc cc make git curl wget sudo su passwd mount'.split() if shutil.which(name)])
print(subprocess.run(['pip', '--version'], capture_output=True, text=True))
print(importlib.util.find_spec('pip').origin, importlib.util.find_spec('ensurepip'))
found = []
for folder, _, files in os.walk('/'):
    if folder.startswith(('/proc', '/sys')):
        continue
    for name in files:
        path = os.path.join(folder, name)
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            continue
        if stat.S_ISREG(mode) and mode & 0o6000:
            found.append(path)
print(found)
"""
    programs, pip, modules, escalating = _printed(shared_tool, code, timeout=60).splitlines()
    assert (programs, modules, escalating) == ("[]", "/opt/no_pip/pip.py None", "[]")
    assert "returncode=1, stdout='', stderr='Packages cannot be changed here;" in pip


def test_no_trace_of_the_build_machine_is_in_the_image(shared_tool: CodeInterpreter) -> None:
    code = "import os\nprint([f for _, _, files in os.walk('/opt') for f in files if 'ca-bundle' in f])"
    assert _printed(shared_tool, f"{code}\nprint(os.path.exists('/build'))") == "[]\nFalse"


WORKING = {
    "priorities": "os.nice(1), os.setpriority(os.PRIO_PROCESS, os.getpid(), 12), psutil.Process().nice(13)",
    "scheduling": "os.sched_setaffinity(0, {0}), os.sched_setscheduler(os.getpid(), os.SCHED_BATCH, os.sched_param(0))",
    "files without a name": "tempfile.TemporaryFile().write(b'x'), tempfile.TemporaryFile(dir='.').write(b'x')",
    "files without a name in C": "ctypes.CDLL(None).tmpfile() or 1 / 0",
    "a terminal": "subprocess.check_output(['sh', '-c', 'stty size; tty'], stdin=os.openpty()[1])",
    "a shell": "get_ipython().system('sleep 0')",
    "locks": "fcntl.lockf(open('lock', 'w'), fcntl.LOCK_EX), fcntl.flock(open('lock'), fcntl.LOCK_SH)",
    "SQLite": "sqlite3.connect('db').executescript('pragma journal_mode=wal; create table a(b)')",
    "shared memory": "shared_memory.SharedMemory(create=True, size=1 << 20).unlink()",
    "processes": "multiprocessing.get_context('fork').Pool(2).map(abs, [1])",
    "processes from nothing": "concurrent.futures.ProcessPoolExecutor(2).submit(abs, 1).result()",
    "processes of joblib": "joblib.Parallel(2)(joblib.delayed(abs)(n) for n in range(4))",
    "descriptors sent": "pair = socket.socketpair(); socket.send_fds(pair[0], [b'x'], [0])",
    "a server on loopback": "end = socket.create_server(('127.0.0.1', 0)); socket.create_connection(end.getsockname())",
    "datagrams": "socket.create_server(('::1', 0), family=socket.AF_INET6) and socket.socket(type=socket.SOCK_DGRAM)",
    "options of sockets": "socket.socket().setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)",
    "interfaces": "socket.if_nameindex(), psutil.net_if_addrs(), psutil.net_if_stats()",
    "watching files": "ctypes.CDLL(None).inotify_init1(0) >= 0 or 1 / 0",
    "matrices": "np.linalg.svd(np.random.rand(300, 300))",
    "forests": "sklearn.ensemble.RandomForestClassifier(20, n_jobs=2).fit([[0], [1]] * 9, [0, 1] * 9)",
}
IMPORTS = """import concurrent.futures, ctypes, fcntl, joblib, multiprocessing, os, psutil, sklearn.ensemble
import socket, sqlite3, subprocess, tempfile
from multiprocessing import shared_memory
"""


@pytest.mark.parametrize("code", WORKING.values(), ids=WORKING.keys())
def test_ordinary_code_is_refused_nothing(shared_tool: CodeInterpreter, code: str) -> None:
    execution = shared_tool.run(f"{IMPORTS}{code}\nprint('works')", timeout=60)
    assert execution.stdout.splitlines()[-1:] == ["works"], execution.outputs


SETTINGS = {
    "plain": "",
    "after set_theme": "sns.set_theme()",
    "after a multi-line set_theme": "sns.set_theme(\n    style='dark'\n)",
    "after a style": "plt.style.use('default')",
    "with another backend": "import matplotlib\nmatplotlib.use('Agg')",
}


@pytest.mark.parametrize("setup", SETTINGS.values(), ids=SETTINGS.keys())
def test_chinese_japanese_and_korean_text_renders(shared_tool: CodeInterpreter, setup: str) -> None:
    shared_tool.restart()  # of whose figures none has settings yet
    code = f"""
import warnings
warnings.simplefilter('error')
{setup}
fig, ax = plt.subplots()
ax.set_title('数据随时间变化 かな漢字 데이터 분석 뷁')
fig.savefig('title.png')
print('rendered')
"""
    assert _printed(shared_tool, code, timeout=60) == "rendered"


def test_the_engine_is_described(docker_engine: DockerEngine) -> None:
    checks = list(engine_checks(docker_engine.info(), docker_engine.bridge()))
    assert "engine" in {check.name for check in checks}
    assert not [check for check in checks if check.verdict == "fail"]
