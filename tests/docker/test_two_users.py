"""Two users of one engine: their sandboxes, sweeps and folders do not meet."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import docker
from agent_tools.engines.context import tag_for
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.machine.owner import Owner

pytestmark = [pytest.mark.docker, pytest.mark.needs_root("it runs processes of two other users")]
ROOT = Path(__file__).resolve().parents[2]
USERS = (60996, 60997)  # of no account, and of no sandbox's
WORK = """
import os, sys
from agent_tools.settings import runtime_dir
from agent_tools.tools import CodeInterpreter

with CodeInterpreter({"work_dir": os.environ["HOME"] + "/work"}) as tool:
    tool.call("secret = 42; open('made', 'w').write('x')")
    print(tool.sandbox.id, runtime_dir(), flush=True)
    sys.stdin.readline()
    print(tool.run("secret").value, flush=True)
"""
SWEEP = "from agent_tools.runtime.engine_lookup import shared_runtime; print(*(s.id for s in shared_runtime().sweep()))"


class User:
    """Runs Python as an ordinary user who may use the engine, with a HOME that no other user may enter."""

    def __init__(self, uid: int, base: Path) -> None:
        self.uid = uid
        self.home = base / str(uid)
        self.home.mkdir(mode=0o700)
        os.chown(self.home, uid, uid)
        self._base = base
        self._python = next(filter(self._works, (sys.executable, "/usr/bin/python3")))

    def start(self, code: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen([self._python, "-c", code, *arguments], **self._options())

    def run(self, code: str, *arguments: str) -> str:
        process = self.start(code, *arguments)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        return said.strip()

    def _works(self, python: str) -> bool:
        """Return whether this user, who may not enter root's folders, can run the package with a Python."""
        try:
            options = {**self._options(), "stderr": subprocess.DEVNULL}
            return subprocess.run([python, "-c", "import agent_tools.tools"], check=False, **options).returncode == 0
        except PermissionError:
            return False

    def _options(self) -> dict[str, Any]:
        socket = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
        packages = f"{ROOT}:{sysconfig.get_path('purelib')}"
        own = {"HOME": str(self.home), "AGENT_TOOLS_RUN_DIR": str(self._base), "PYTHONPATH": packages}
        environ = {name: os.environ[name] for name in ("PATH", "DOCKER_HOST") if name in os.environ}
        return {
            "user": self.uid,
            "group": self.uid,
            "extra_groups": [os.stat(socket).st_gid],
            "text": True,
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "cwd": self.home,
            "env": {**environ, **own},
        }


@pytest.fixture
def users() -> Iterator[tuple[User, User]]:
    base = Path(tempfile.mkdtemp(prefix="agt-users-", dir="/tmp"))  # short, as the paths of sockets are
    base.chmod(0o1777)
    yield User(USERS[0], base), User(USERS[1], base)
    shutil.rmtree(base)


def test_two_users_work_side_by_side_and_enter_no_folder_of_each_other(
    docker_engine: DockerEngine, users: tuple[User, User]
) -> None:
    with ExitStack() as stack:
        processes = [stack.enter_context(user.start(WORK)) for user in users]
        folders = [process.stdout.readline().split()[1] for process in processes if process.stdout]
        assert folders[0] != folders[1]
        for user, other in (users, users[::-1]):
            closed = [str(other.home), folders[users.index(other)]]
            seen = user.run(
                "import os, sys; print(*(os.access(name, os.R_OK | os.X_OK) for name in sys.argv))", *closed
            )
            assert seen.split()[1:] == ["False", "False"]
        assert [user.run(SWEEP) for user in users] == ["", ""]
        assert [process.communicate("\n", timeout=60)[0].strip() for process in processes] == ["42", "42"]


def test_a_sweep_removes_the_sandboxes_of_its_own_user_only(
    docker_engine: DockerEngine, users: tuple[User, User]
) -> None:
    client = docker.from_env()
    dead = subprocess.Popen(["true"])
    dead.wait()
    labels = {**Owner.current().labels, "agent_tools.owner": f"{dead.pid}-1", "agent_tools.user": str(USERS[0])}
    made = client.containers.create(tag_for(), labels=labels)
    try:
        assert users[1].run(SWEEP) == ""
        assert users[0].run(SWEEP) == made.id
    finally:
        with contextlib.suppress(docker.errors.NotFound):  # it was removed, as it should be
            made.remove(force=True)
        client.close()
