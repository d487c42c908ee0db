"""Jupyter's stock programs on kernels in real sandboxes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jupyter_kernel_test
import nbformat
import pytest
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from agent_tools.errors import InvalidParams
from agent_tools.jupyter.kernelspec import NAME, KernelSpec
from agent_tools.runtime.engine_lookup import shared_runtime
from agent_tools.runtime.runtime import Runtime
from tests.unit.jupyter.conftest import what_libraries_keep
from tests.unit.jupyter.talking import PATIENCE, Talk

__all__ = ["what_libraries_keep"]

pytestmark = pytest.mark.docker
PLOT = "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()"
HTML = "from IPython.display import HTML, display; display(HTML('<b>x</b>'))"
LOCAL = {"provisioner_name": "local-provisioner", "config": {}}


@contextlib.contextmanager
def notebooks_in(patch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of notebooks, in an environment in which the kernelspec is installed."""
    base = Path(tempfile.mkdtemp(prefix="agent-tools-jupyter-"))
    KernelSpec().install(prefix=str(base))
    for name, folder in (("PATH", "share/jupyter"), ("RUNTIME_DIR", "runtime"), ("CONFIG_DIR", "c"), ("DATA_DIR", "d")):
        patch.setenv(f"JUPYTER_{name}", str(base / folder))
    (base / "notebooks").mkdir()
    patch.chdir(base / "notebooks")
    yield base / "notebooks"
    shared_runtime("docker").close_all()
    shutil.rmtree(base)


@pytest.fixture
def notebooks(docker_runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of notebooks of the test's own."""
    with notebooks_in(monkeypatch) as folder:
        yield folder


@pytest.fixture(scope="class")
def kernel_of_the_class(request: pytest.FixtureRequest, docker_runtime: Runtime) -> Iterator[None]:
    """One kernel for all tests of the class, as the suite has it, in a folder of notebooks."""
    with pytest.MonkeyPatch.context() as patch, notebooks_in(patch):
        started = jupyter_kernel_test.start_new_kernel(kernel_name=NAME)
        request.cls.km, request.cls.kc = started
        yield
        started[1].stop_channels()
        started[0].shutdown_kernel()
        started[0].context.destroy(linger=0)


def manager(**metadata: Any) -> KernelManager:
    """What starts kernels as clients do; with a provisioner named, as those that know none."""
    made = KernelManager(kernel_name=NAME)
    assert made.kernel_spec
    made.kernel_spec.metadata.update(metadata)
    return made


def talk_to(kernel: KernelManager) -> Talk:
    """A client of a kernel that has been started."""
    client = kernel.client()
    client.start_channels()
    client.wait_for_ready(timeout=PATIENCE)
    return Talk(client)


@pytest.mark.usefixtures("kernel_of_the_class")
class TestKernel(jupyter_kernel_test.KernelTests):
    """The suite that Jupyter's own project publishes for kernels, all of it."""

    kernel_name = NAME
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('test', file=sys.stderr)"
    completion_samples = [{"text": "zi", "matches": {"zip"}}]  # noqa: RUF012
    complete_code_samples = ["1", "print('hello, world')", "def f(x):\n  return x*2\n\n"]  # noqa: RUF012
    incomplete_code_samples = ["print('''hello", "def f(x):\n  x*2"]  # noqa: RUF012
    invalid_code_samples = ["import = 7q"]  # noqa: RUF012
    code_page_something = "zip?"
    code_generate_error = "raise"
    code_execute_result = [{"code": "1+2+3", "result": "6"}]  # noqa: RUF012
    code_display_data = [{"code": HTML, "mime": "text/html"}, {"code": PLOT, "mime": "image/png"}]  # noqa: RUF012
    code_history_pattern = "1?2*"
    supported_history_operations = ("tail", "range", "search")
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"

    @classmethod
    def setUpClass(cls) -> None:
        """Leave the start to the fixture, which has the environment that it needs."""

    @classmethod
    def tearDownClass(cls) -> None:
        """Leave the end to the fixture."""


def run_notebook(folder: Path, *cells: str, **options: Any) -> Any:
    """A notebook after nbclient has run it."""
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = NotebookClient(made, kernel_name=NAME, resources={"metadata": {"path": str(folder)}}, **options)
    client.execute()
    return made


def test_nbclient_runs_a_notebook_in_its_folder(notebooks: Path) -> None:
    cells = (
        "import pandas as pd\npd.DataFrame({'a': [1]})",
        PLOT,
        "open('made', 'w').write('inside'); import os; os.getuid()",
        f"%config InlineBackend.figure_formats = ['svg']\n{PLOT}",
    )
    made = run_notebook(notebooks, *cells)
    assert "text/html" in made.cells[0].outputs[0].data
    assert "image/png" in made.cells[1].outputs[0].data
    assert int(made.cells[2].outputs[0].data["text/plain"]) != 0
    assert (notebooks / "made").read_text() == "inside"
    assert "<svg" in made.cells[3].outputs[0].data["image/svg+xml"]
    nbformat.validate(made)


def test_a_folder_that_does_not_exist_is_refused_and_not_made(notebooks: Path) -> None:
    with pytest.raises(InvalidParams, match="does not exist: make it"):
        run_notebook(notebooks / "missing", "1")
    assert not (notebooks / "missing").exists()


def test_nbclient_is_told_of_the_memory_limit(notebooks: Path) -> None:
    with pytest.raises(
        CellExecutionError, match=r"memory limit of 2 GiB \(read less at once.*\); variables are as they were"
    ):
        run_notebook(notebooks, "x = bytearray(3 * 2**30)")


def test_nbclient_interrupts_a_cell_that_takes_too_long(notebooks: Path) -> None:
    with pytest.raises(CellExecutionError, match="KeyboardInterrupt"):
        run_notebook(notebooks, "while True: pass", timeout=2, interrupt_on_timeout=True)


@pytest.mark.parametrize("metadata", [{}, {"kernel_provisioner": LOCAL}], ids=["provisioner", "launcher"])
def test_a_kernel_is_interrupted_restarted_and_ended(notebooks: Path, metadata: dict[str, Any]) -> None:
    kernel = manager(**metadata)
    kernel.start_kernel(cwd=str(notebooks))
    talk = talk_to(kernel)
    try:
        assert talk.run("x = input('? '); x", answer="typed").text == "'typed'"
        started = talk.client.execute("open('began', 'w').close()\nimport re\nre.match('(a+)+$', 'a' * 60 + 'b')")
        while not (notebooks / "began").exists():
            time.sleep(0.05)
        kernel.interrupt_kernel()
        assert talk.reply_to(started)["ename"] == "KeyboardInterrupt"
        assert "signal 11" in talk.run("import os; os.kill(os.getpid(), 11)").reply["content"]["evalue"]
        assert talk.run("x").text == "'typed'"
        assert kernel.is_alive()
        for now in (True, False):
            kernel.restart_kernel(now=now)
            talk.client.wait_for_ready(timeout=PATIENCE)
            assert talk.run("x").reply["content"]["ename"] == "NameError"
    finally:
        talk.client.stop_channels()
        kernel.shutdown_kernel()
        kernel.context.destroy(linger=0)


def test_a_launcher_killed_in_the_middle_leaves_nothing(notebooks: Path) -> None:
    kernel = manager(kernel_provisioner=LOCAL)
    kernel.start_kernel(cwd=str(notebooks))
    talk = talk_to(kernel)
    talk.client.execute("import time; time.sleep(600)")
    assert kernel.provisioner
    os.kill(kernel.provisioner.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    talk.client.stop_channels()
    kernel.shutdown_kernel(now=True)
    kernel.context.destroy(linger=0)


def test_a_launcher_ends_with_whoever_started_it(notebooks: Path) -> None:
    code = "import sys, os, signal\nfrom jupyter_client.manager import KernelManager\n"
    code += f"kernel = KernelManager(kernel_name={NAME!r}, connection_file='c.json')\n"
    code += "kernel.kernel_spec.metadata.clear()\n"
    code += "kernel.start_kernel()\nclient = kernel.client(); client.start_channels(); client.wait_for_ready(60)\n"
    code += "print(kernel.provisioner.pid, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    deadline = time.monotonic() + PATIENCE
    while Path(f"/proc/{int(done.stdout)}").exists():
        assert time.monotonic() < deadline, "the launcher goes on"
        time.sleep(0.1)
