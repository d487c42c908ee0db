"""A machine without a network: one folder brings the package and its image. `scripts/release` runs this."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_tools.engines.context import tag_for
from agent_tools.engines.docker.engine import DockerEngine

pytestmark = [
    pytest.mark.docker,
    pytest.mark.needs_root(reason="only root can start an engine of the tests' own, without a network"),
    pytest.mark.timeout(900),
]
ENGINE_SECONDS = 60.0
FIGURE = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"


class Island:
    """An engine without images, and programs beside it, in a network namespace that has no route."""

    def __init__(self, folder: Path, storage: str) -> None:
        self.socket = folder / "docker.sock"
        self.log = folder / "log"
        command = [
            *("unshare", "--net", "setpriv", "--pdeathsig", "TERM", "dockerd", f"--host=unix://{self.socket}"),
            *("--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid"),
            *("--bridge=none", "--iptables=false", f"--storage-driver={storage}"),
        ]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def await_answer(self) -> None:
        deadline = time.monotonic() + ENGINE_SECONDS
        while self.process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
                probe.connect(str(self.socket))
                return
            time.sleep(0.1)
        raise AssertionError(self.log.read_text()[-2000:])

    def run(self, *command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
        inside = ["nsenter", f"--net=/proc/{self.process.pid}/ns/net", *command]
        environment = {**os.environ, "DOCKER_HOST": f"unix://{self.socket}", "PYTHON": sys.executable}
        environment.pop("PIP_FIND_LINKS", None)
        return subprocess.run(inside, cwd=cwd, env=environment, capture_output=True, text=True, check=False)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def island(docker_engine: DockerEngine) -> Iterator[Island]:
    beside = Path(docker_engine.connection.api().info()["DockerRootDir"]).parent  # where this storage driver works
    folder = Path(tempfile.mkdtemp(prefix="agent-tools-island-", dir=beside))
    island = Island(folder, docker_engine.info().storage_driver)
    try:
        island.await_answer()
        yield island
    finally:
        island.stop()
        subprocess.run(["umount", "--quiet", "--lazy", f"{folder}/exec/netns/default"], check=False)
        subprocess.run(["rm", "-rf", str(folder)], check=False)


def test_a_machine_without_a_network_has_all_of_it_from_one_folder(
    island: Island, work_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, times = work_dir / "bundle", [time.monotonic()]
    made = subprocess.run(
        [sys.executable, "-m", "agent_tools", "bundle", bundle],
        cwd=work_dir,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    reach = "import socket; socket.create_connection(('192.0.2.1', 80), 2)"
    assert "Network is unreachable" in island.run(sys.executable, "-c", reach, cwd=work_dir).stderr

    times.append(time.monotonic())
    installed = island.run("sh", bundle / "install.sh", cwd=work_dir)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    assert tag_for() in installed.stdout
    times.append(time.monotonic())
    command = work_dir / "agent-tools" / "bin" / "agent-tools"
    drawn = island.run(command, "run", "--work-dir", work_dir, "-c", FIGURE, cwd=work_dir)
    times.append(time.monotonic())
    assert drawn.returncode == 0, drawn.stderr
    assert (work_dir / "figure-001.png").read_bytes().startswith(b"\x89PNG")
    probed = island.run(command, "doctor", "--probe", "--json", cwd=work_dir)
    assert probed.returncode == 0, probed.stdout + probed.stderr
    summary = json.loads(probed.stdout)["summary"]
    assert (summary["open"], summary["is_open"]) == (0, False)
    with capsys.disabled():
        seconds = (f"{end - begin:.0f} s" for begin, end in itertools.pairwise(times))
        print("\nbundle: {}, install.sh: {}, first figure: {};".format(*seconds), load(), "probe:", summary)

    with (bundle / "install.sh").open("a") as file:
        file.write("# changed\n")
    shutil.rmtree(work_dir / "agent-tools")
    refused = island.run("sh", bundle / "install.sh", cwd=work_dir)
    assert refused.returncode == 1
    assert "was changed" in refused.stderr
    assert not (work_dir / "agent-tools").exists()


def load() -> str:
    """Return how busy the machine is, which the times depend on."""
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"


def test_a_folder_that_has_something_is_not_written_to(work_dir: Path) -> None:
    (work_dir / "mine").touch()
    done = subprocess.run(
        [sys.executable, "-m", "agent_tools", "bundle", work_dir], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "is not empty" in done.stderr
