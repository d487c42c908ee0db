"""The second way to a sandbox, the brake on work_dir, and engines on other machines: all on real ones."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import certifi
import pytest

from agent_tools.engines import context
from agent_tools.engines.docker import image
from agent_tools.engines.docker.connection import BUILD_TIMEOUT
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.engine import EngineContainer
from agent_tools.errors import ToolServiceError
from agent_tools.limits import MIB
from agent_tools.machine.owner import Owner, same_host
from agent_tools.results.execution import Died, Restarted, Stream, TimedOut
from agent_tools.runtime.files.quota import CHECK_SECONDS
from agent_tools.runtime.kernel.channel import KernelChannel
from agent_tools.runtime.kernel.protocol import KernelMessage
from agent_tools.runtime.runtime import Runtime
from agent_tools.tools import CodeInterpreter
from tests.skills import skill_folder
from tests.ssh import PYTHONPATH

pytestmark = pytest.mark.docker
PATIENCE = 5.0  # seconds
ENGINE_SECONDS = 60.0  # for an engine of the tests' own to come up


IN_DEVELOPMENT_MODE = """
import gc, sys
from agent_tools import Sandbox
with Sandbox(transport=sys.argv[1]) as sandbox:
    sandbox.run_code("1")
gc.collect()
"""


@pytest.mark.parametrize("transport", ["sockets", "stdio"])
def test_nothing_fails_in_garbage_that_a_sandbox_leaves(transport: str) -> None:
    """Python prints such failures from 3.13 on, and before it in development mode."""
    command = [sys.executable, "-X", "dev", "-W", "ignore", "-c", IN_DEVELOPMENT_MODE, transport]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""


# -- the brake on work_dir ----------------------------------------------------------------------------------------

FILLERS = {
    "bytes": (
        "for n in range(200): open(f'f{n}', 'wb').write(bytes(1 << 20)); time.sleep(0.02)",
        {"max_work_dir_bytes": 16 * MIB},
        "16,777,216 bytes (max_work_dir_bytes)",
    ),
    "entries": (
        "for n in range(10**6): open(f'f{n}', 'w').close(); time.sleep(0.001)",
        {"max_work_dir_entries": 500},
        "500 entries (max_work_dir_entries)",
    ),
}


@pytest.mark.parametrize("transport", ["sockets", "stdio"])
@pytest.mark.parametrize(("code", "limits", "words"), FILLERS.values(), ids=FILLERS.keys())
def test_code_that_fills_work_dir_is_killed_and_then_refused_until_files_are_deleted(
    new_tool: Callable[..., CodeInterpreter],
    work_dir: Path,
    transport: str,
    code: str,
    limits: dict[str, int],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tool = new_tool(transport=transport, limits=limits)
    tool.call("import time")
    await_kernel = KernelChannel.await_kernel

    def await_kernel_longer(channel: KernelChannel, deadline: float, **options: bool) -> KernelMessage:
        time.sleep(3 * CHECK_SECONDS)  # in which the files are still there
        return await_kernel(channel, deadline, **options)

    monkeypatch.setattr(KernelChannel, "await_kernel", await_kernel_longer)
    for ending in tool.stream(f"import time\n{code}\ntime.sleep(60)", timeout=60):
        if isinstance(ending, Died):
            time.sleep(3 * CHECK_SECONDS)  # of a slow reader
    assert isinstance(ending, Died)
    assert words in ending.reason
    assert ending.variables.kept, ending
    with pytest.raises(ToolServiceError, match="No code was run: earlier code filled work_dir"):
        tool.call("print('refused')")
    for file in work_dir.glob("f*"):
        file.unlink()
    execution = tool.run("time.sleep(0)\nprint('works')")
    assert execution.outputs == (Stream("stdout", "works\n"),)


# -- stdio --------------------------------------------------------------------------------------------------------

HOST = """
import time
from agent_tools.tools import CodeInterpreter
from tests.skills import skill_folder
tool = CodeInterpreter({{"work_dir": {work_dir!r}, "transport": "stdio"}})
tool.call("1")
print(tool.sandbox.id, flush=True)
{ending}
"""


@pytest.mark.parametrize("ending", ["time.sleep(60)", "tool.call('while True: print(1)', timeout=90)"])
def test_a_sandbox_over_stdio_ends_with_a_killed_host(docker_engine: DockerEngine, work_dir: Path, ending: str) -> None:
    script = HOST.format(work_dir=str(work_dir), ending=ending)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout
        id_ = host.stdout.readline().strip()
        assert len(id_) == 64
        time.sleep(0.3)
        host.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE
    while any(sandbox.id == id_ for sandbox, _ in docker_engine.strays(same_host())):
        assert time.monotonic() < deadline, "it is still there"
        time.sleep(0.05)


FORGERY = """
import glob, os, struct
def frame(words): return struct.pack('>II', 0, len(words)) + words
forged = b''.join(map(frame, (b'ready', b'exit 1 7 0 0 /tmp 0 0', b'exit 2 7 0 0 /tmp 0 0', b'failed 1 Zm9yZ2Vk')))
"""
FORGERS = {
    "the files of PID 1": "paths = [f'/proc/1/fd/{n}' for n in range(64)] + ['/proc/1/mem', '/proc/1/stdin']",
    "its own standard streams": "paths = ['/dev/stdin', '/dev/stdout', '/dev/stderr', '/dev/console', '/dev/tty']\n"
    "paths += ['/proc/self/fd/0', '/proc/self/fd/1', '/proc/self/fd/2']",
    "the streams of all others": "paths = [p for p in glob.glob('/proc/[0-9]*/fd/*') "
    "if p.split('/')[2] != str(os.getpid())]",
}
WRITE = """
for path in paths:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        os.write(fd, forged)
        os.close(fd)
    except OSError:
        pass
"""


@pytest.fixture(scope="module")
def over_stdio(docker_runtime: Runtime) -> Iterator[CodeInterpreter]:
    path = Path(tempfile.mkdtemp(prefix="agent-tools-test-"))
    with CodeInterpreter({"work_dir": str(path), "transport": "stdio"}, runtime=docker_runtime) as tool:
        tool.call("1")
        yield tool
    shutil.rmtree(path, ignore_errors=True)


@pytest.mark.parametrize("paths", FORGERS.values(), ids=FORGERS.keys())
def test_code_cannot_speak_for_pid_1(over_stdio: CodeInterpreter, paths: str) -> None:
    over_stdio.run("kept = 1")
    execution = over_stdio.run(f"{FORGERY}\n{paths}\n{WRITE}\nprint('\\ndone')")
    assert "\ndone\n" in execution.stdout
    assert not any(isinstance(output, (Died, Restarted)) for output in execution.outputs)
    assert over_stdio.run("kept").result is not None


def test_code_that_writes_to_all_it_holds_hurts_only_its_kernel(over_stdio: CodeInterpreter) -> None:
    started = time.monotonic()
    over_stdio.run(f"{FORGERY}\nfor fd in range(3, 256):\n    try: os.write(fd, forged)\n    except OSError: pass")
    assert time.monotonic() - started < 30 + PATIENCE
    sandbox = over_stdio.sandbox
    execution = over_stdio.run("print('alive')")
    assert execution.stdout == "alive\n"
    assert not any("code 7" in output.reason for output in execution.outputs if isinstance(output, Restarted))
    assert over_stdio.sandbox == sandbox


def test_pid_1_cannot_be_killed_or_stopped(over_stdio: CodeInterpreter) -> None:
    over_stdio.run("kept = 2")
    over_stdio.run("import os\nfor number in range(1, 65):\n    try: os.kill(1, number)\n    except OSError: pass")
    assert over_stdio.run("print(kept)").stdout == "2\n"


# -- engines on other machines ------------------------------------------------------------------------------------


starts_an_engine = pytest.mark.needs_root(reason="only root can start an engine of the tests' own")
BRIDGE = "agent-tools0"
SIOCSIFFLAGS, SIOCBRADDBR, SIOCBRDELBR = 0x8914, 0x89A0, 0x89A1  # linux/sockios.h


class RemoteEngine:
    """A second engine, on TCP with TLS as on another machine, with the image in it. It needs root, as engines do."""

    def __init__(self, folder: Path, storage: str) -> None:
        self.certificates = folder / "certificates"
        self.certificates.mkdir()
        make_certificates(self.certificates)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        add_bridge()
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(self._command(folder, storage), stdout=log, stderr=log)

    def _command(self, folder: Path, storage: str) -> list[str]:
        own = self.certificates
        return [
            *("setpriv", "--pdeathsig", "TERM", "dockerd"),  # it goes with the tests, however they end
            *("--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid"),
            *(f"--bridge={BRIDGE}", "--iptables=false", f"--storage-driver={storage}"),
            *(f"--host=tcp://127.0.0.1:{self.port}", "--tlsverify", f"--tlscacert={own}/ca.pem"),
            *(f"--tlscert={own}/cert.pem", f"--tlskey={own}/key.pem"),
        ]

    @property
    def environment(self) -> dict[str, str]:
        return {
            "DOCKER_HOST": f"tcp://127.0.0.1:{self.port}",
            "DOCKER_TLS_VERIFY": "1",
            "DOCKER_CERT_PATH": str(self.certificates),
            "REQUESTS_CA_BUNDLE": certifi.where(),  # which does not know this authority, and must not be asked
        }

    def await_answer(self) -> DockerEngine:
        deadline = time.monotonic() + ENGINE_SECONDS
        while self.process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return DockerEngine()
            time.sleep(0.1)
        raise AssertionError(self.log.read_text()[-2000:])

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        remove_bridge()


def add_bridge() -> None:
    """A bridge of its own: an engine without one removes `docker0`, which is the first engine's."""
    remove_bridge()
    _ask_kernel(SIOCBRADDBR)


def remove_bridge() -> None:
    """Remove it; one that is not there is no error."""
    with contextlib.suppress(OSError):
        _set_down()
        _ask_kernel(SIOCBRDELBR)


def _ask_kernel(request: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, request, BRIDGE.encode().ljust(16, b"\0"))


def _set_down() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", BRIDGE.encode(), 0))


def make_certificates(folder: Path) -> None:
    """A throw-away authority, and one certificate that is the engine's and its client's."""
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
    new_key = "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    may_sign = "-addext keyUsage=critical,keyCertSign"  # Python 3.13 wants that said
    for command in (
        f"{new_key} -x509 -days 1 -subj /CN=authority {may_sign} -keyout ca-key.pem -out ca.pem",
        f"{new_key} -subj /CN=engine -keyout key.pem -out request.pem",
        "x509 -req -days 1 -in request.pem -CA ca.pem -CAkey ca-key.pem -CAcreateserial -extfile names -out cert.pem",
    ):
        subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def remote(docker_engine: DockerEngine) -> Iterator[RemoteEngine]:
    root = Path(docker_engine.connection.api().info()["DockerRootDir"])
    beside = root.parent  # where this storage driver is known to work
    folder = Path(tempfile.mkdtemp(prefix="agent-tools-engine-", dir=beside))
    engine = RemoteEngine(folder, docker_engine.info().storage_driver)
    giver = docker_engine.connection.new_client(BUILD_TIMEOUT).api  # it packs the image before the first byte comes
    try:
        with pytest.MonkeyPatch.context() as environment:
            for name, value in engine.environment.items():
                environment.setenv(name, value)
            theirs = engine.await_answer().connection
            with closing(giver), closing(theirs.api()), closing(theirs.api(is_patient=True)) as taker:
                taker.load_image(giver.get_image(context.tag_for(), chunk_size=MIB))
        yield engine
    finally:
        engine.stop()
        subprocess.run(["rm", "-rf", str(folder)], check=False)


@pytest.fixture
def remote_engine(remote: RemoteEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[DockerEngine]:
    for name, value in remote.environment.items():
        monkeypatch.setenv(name, value)
    engine = DockerEngine()
    with closing(engine.connection.api()):
        yield engine


@contextlib.contextmanager
def tool_on(engine: DockerEngine, work_dir: Path, **cfg: object) -> Iterator[CodeInterpreter]:
    """A tool on an engine; afterwards nothing of it is left there."""
    runtime = Runtime(engine, partial(image.ensure, engine))
    try:
        with CodeInterpreter({"work_dir": str(work_dir), **cfg}, runtime=runtime) as tool:
            yield tool
    finally:
        runtime.close_all()
    deadline = time.monotonic() + PATIENCE
    while engine.strays(Owner.current().labels):  # those of earlier tests are removed behind their callers
        assert time.monotonic() < deadline, "something of it is still there"
        time.sleep(0.05)


@pytest.mark.timeout(240)  # with the start of an engine and the loading of an image into it
@starts_an_engine
def test_a_remote_engine_shares_no_folder_and_serves_all_the_same(remote_engine: DockerEngine, work_dir: Path) -> None:
    (work_dir / "data.csv").write_text("a,b\n1,2\n3,4\n")
    assert not remote_engine.guest().shares_files
    with tool_on(remote_engine, work_dir) as tool:
        execution = tool.run(
            "df = pd.read_csv('data.csv')\ndf.plot(); plt.show()\ndf.to_csv('out.csv')\n"
            "import os; os.makedirs('d/e'); open('d/e/数.txt', 'w').write('x' * 3_000_000)\nint(df.b.sum())"
        )
        assert execution.result is not None
        assert execution.result.text == "6"
        assert len(execution.figures) == 1
        assert (work_dir / "out.csv").read_text().startswith(",a,b\n0,1,2")
        assert (work_dir / "d/e/数.txt").stat().st_size == 3_000_000
        assert tool.sandbox
        facts = remote_engine.inspect(tool.sandbox)
        assert [mount for mount in facts["Mounts"] if mount["Type"] == "bind"] == []
        assert facts["HostConfig"]["NetworkMode"] == "none"


@starts_an_engine
def test_a_remote_sandbox_keeps_time_restarts_and_sees_later_files(remote_engine: DockerEngine, work_dir: Path) -> None:
    with tool_on(remote_engine, work_dir) as tool:
        tool.run("open('kept.txt', 'w').write('kept')")
        started = time.monotonic()
        ending = tool.run("x = 1\nwhile True: pass", timeout=1).outputs[-1]
        assert time.monotonic() - started < 1 + 3
        assert isinstance(ending, TimedOut)
        (work_dir / "later.txt").write_text("later")
        (work_dir / "kept.txt").unlink()
        tool.restart()
        assert tool.run("import os\nprint(sorted(os.listdir()))").stdout == "['later.txt']\n"
        died = tool.run("open('last.txt', 'w').write('last')\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
        assert any(isinstance(output, Died) for output in died.outputs)
        assert (work_dir / "last.txt").read_text() == "last"


@starts_an_engine
def test_a_remote_sandbox_has_copies_of_its_skills(remote_engine: DockerEngine, work_dir: Path, tmp_path: Path) -> None:
    folder = skill_folder(tmp_path / "m", {"a.py": "#!/usr/bin/env python\nprint(1 + 1)"})
    with tool_on(remote_engine, work_dir, skills=[str(folder)]) as tool:
        look = "import subprocess; subprocess.run('/skills/m/a.py; ls /skills', shell=True)"
        assert tool.run(look).stdout == "2\nm\n"
        tool.run("open('/skills/m/SKILL.md', 'w').close()")
        assert all((each / "SKILL.md").stat().st_size for each in (folder, tool.options.skills[0].folder))


@starts_an_engine
def test_a_file_server_that_code_kills_is_replaced(remote_engine: DockerEngine, work_dir: Path) -> None:
    with tool_on(remote_engine, work_dir) as tool:
        tool.run("1")
        tool.run("open('a', 'w').write('x')\nimport os, signal\nos.kill(-1, signal.SIGTERM)")
        assert tool.run("print('works')").stdout == "works\n"
        assert (work_dir / "a").read_text() == "x"


SSH = """#!{python}
# Stands for ssh: `docker system dial-stdio` on the machine itself.
import os, select, signal, socket
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
engine = socket.socket(socket.AF_UNIX)
engine.connect({path!r})
ways = {{0: lambda data: engine.sendall(data), engine.fileno(): lambda data: os.write(1, data)}}
while ways:
    for source in select.select(list(ways), [], [])[0]:
        data = os.read(source, 65536)
        if data:
            ways[source](data)
        elif source:
            raise SystemExit
        else:
            engine.shutdown(socket.SHUT_WR)
            del ways[source]
"""


SSH_USER = """
import sys
from agent_tools.tools import CodeInterpreter
from tests.skills import skill_folder
with CodeInterpreter({{"work_dir": {work_dir!r}}}) as tool:
    print(tool.run("open('out.txt', 'w').write('x' * 2_000_000)\\nprint(open('in.txt').read())").stdout.strip())
    print(tool.sandbox.id, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def over_ssh(tmp_path: Path) -> dict[str, str]:
    """Environment variables with which the engine of these tests is reached over a stand-in for `ssh`."""
    path = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
    fake = tmp_path / "ssh"
    fake.write_text(SSH.format(python=sys.executable, path=path))
    fake.chmod(0o755)
    where = {"DOCKER_HOST": "ssh://user@elsewhere", "PYTHONPATH": PYTHONPATH}
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", **where}


def test_run_names_a_file_that_did_not_come_from_an_engine_elsewhere(over_ssh: dict[str, str], work_dir: Path) -> None:
    command = [sys.executable, "-m", "agent_tools", "run", "--work-dir", str(work_dir), "--set", "max_file_bytes=1000"]
    code = "open('large.txt', 'w').write('x' * 2_000)\nopen('small.txt', 'w').write('x')"
    done = subprocess.run(
        [*command, "-c", code], env=over_ssh, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0
    assert "large.txt (it is larger than 1,000 bytes (max_file_bytes))" in done.stderr
    assert [each.name for each in work_dir.iterdir()] == ["small.txt"]


def test_an_engine_reached_over_ssh_serves_and_is_left_clean(
    docker_engine: DockerEngine, over_ssh: dict[str, str], work_dir: Path
) -> None:
    (work_dir / "in.txt").write_text("in")
    command = [sys.executable, "-c", SSH_USER.format(work_dir=str(work_dir))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=over_ssh, text=True, **pipes) as user:  # type: ignore[call-overload]
        assert user.stdout.readline() == "in\n"
        id_ = user.stdout.readline().strip()
        assert docker_engine.inspect(EngineContainer(id_))["Mounts"] == []
        assert (work_dir / "out.txt").stat().st_size == 2_000_000
    assert user.returncode == 0
    assert id_ not in {sandbox.id for sandbox, _ in docker_engine.strays(same_host())}
