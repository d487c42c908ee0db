"""Jupyter's own programs, each unchanged, on kernels in sandboxes."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest
from playwright.sync_api import Locator, Page, expect, sync_playwright

from agent_tools.jupyter.kernelspec import NAME, KernelSpec
from tests.integrations.left_behind import await_gone, containers
from tests.integrations.served import serving

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PATIENCE = 60.0  # seconds
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="  # 1 x 1
EXPECTED: dict[str, str] = {}
CODE = """import matplotlib.pyplot as plt, pandas as pd
frame = pd.DataFrame({"a": range(n)})
frame.plot(); plt.show()
open("sum.txt", "w").write(str(frame.a.sum()))
frame.describe()"""


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder of notebooks, where the kernelspec is known."""
    base = Path("/tmp") / f"notebooks-{secrets.token_hex(4)}"
    base.mkdir()
    install_spec(base, request, {})
    notebooks = base / "notebooks"
    notebooks.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(base / "prefix" / "share" / "jupyter"))
        patch.setenv("JUPYTER_RUNTIME_DIR", str(base / "runtime"))
        patch.setenv("JUPYTER_CONFIG_DIR", str(base / "config"))
        patch.setenv("JUPYTER_DATA_DIR", str(base / "data"))
        yield notebooks


def install_spec(base: Path, request: pytest.FixtureRequest, options: dict[str, Any]) -> None:
    """Install the kernelspec, with these options of a sandbox."""
    given = {"transport": request.config.getoption("--transport"), **options}
    KernelSpec(given).install(prefix=str(base / "prefix"))


def write_notebook(path: Path, *cells: str) -> Path:
    """A notebook of these cells, the first of which has the parameters."""
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    made.cells[0].metadata["tags"] = ["parameters"]
    made.metadata["kernelspec"] = {"name": NAME, "display_name": "Python (sealed)", "language": "python"}
    nbformat.write(made, path)
    return path


def shown(path: Path) -> set[str]:
    """The MIME types that a notebook's cells have shown."""
    found = nbformat.read(path, 4)
    return {mime for cell in found.cells for output in cell.outputs for mime in output.get("data", {})}


def test_papermill_runs_a_notebook_with_parameters(folder: Path) -> None:
    path = write_notebook(folder / "in.ipynb", "n = 3", CODE)
    papermill.execute_notebook(path, folder / "out.ipynb", {"n": 5}, cwd=folder, progress_bar=False)
    assert (folder / "sum.txt").read_text() == "10"
    assert {"image/png", "text/html", "text/plain"} <= shown(folder / "out.ipynb")


def test_nbconvert_executes_a_notebook(folder: Path) -> None:
    path = write_notebook(folder / "in.ipynb", "n = 3", CODE)
    command = [BIN / "jupyter-nbconvert", "--to", "notebook", "--execute", "--output", "out.ipynb", path]
    subprocess.run(command, cwd=folder, check=True, timeout=PATIENCE)
    assert "image/png" in shown(folder / "out.ipynb")
    assert (folder / "sum.txt").read_text() == "3"


def test_the_console_runs_cells(folder: Path) -> None:
    command = [BIN / "jupyter-console", "--simple-prompt", "--kernel", NAME]
    cells = "x = 6\nx * 7\nname = input('who? ')\nAda\nprint('hello', name)\nexit\n"
    done = subprocess.run(command, input=cells, cwd=folder, text=True, capture_output=True, timeout=PATIENCE)
    assert "42" in done.stdout
    assert "hello Ada" in done.stdout


def test_a_client_killed_in_the_middle_leaves_nothing(folder: Path) -> None:
    path = write_notebook(folder / "in.ipynb", "import time; open('started', 'w').close(); time.sleep(600)")
    client = subprocess.Popen(
        [BIN / "papermill", path, folder / "out.ipynb", "--cwd", folder], stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + PATIENCE
    while not (folder / "started").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert containers(client.pid)
    client.send_signal(signal.SIGKILL)
    client.wait()
    await_gone(client.pid)


@contextmanager
def lab(folder: Path, *more: str) -> Iterator[str]:
    """JupyterLab on a folder, with more options; gives its address, with a token."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(8)
    command = [BIN / "jupyter-lab", "--no-browser", "--allow-root", f"--port={port}", "--ServerApp.open_browser=False"]
    options = [f"--IdentityProvider.token={token}", "--LabApp.expose_app_in_browser=True"]
    server = subprocess.Popen([*command, *options, *more], cwd=folder)
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api?token={token}").close()
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/lab/tree/lab.ipynb?token={token}"
        assert more or containers(server.pid)
    finally:
        server.terminate()
        server.wait(PATIENCE)
    await_gone(server.pid)


@contextmanager
def page_of(url: str) -> Iterator[Page]:
    """The page in a real browser, once its kernel is idle."""
    path = (
        os.environ.get("CHROMIUM") or subprocess.check_output([ROOT / "scripts" / "lib" / "browser"], text=True).strip()
    )
    arguments = ["--no-sandbox"] if os.getuid() == 0 else []
    expect.set_options(timeout=PATIENCE * 1000)
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=path, args=arguments) as browser:
        page = browser.new_page()
        page.goto(url)
        await_kernel(page, "idle")
        yield page


def await_kernel(page: Page, status: str) -> None:
    """Wait until the page is connected to a kernel of this status."""
    kernel = "window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel"
    condition = f"() => {kernel}?.connectionStatus === 'connected' && {kernel}.status === {json.dumps(status)}"
    page.wait_for_function(condition, timeout=PATIENCE * 1000)


def command(page: Page, name: str) -> None:
    """Do what a menu of the page would."""
    page.evaluate(f"() => {{ window.jupyterapp.commands.execute({json.dumps(name)}); }}")


def output(page: Page, number: int) -> Locator:
    """The part of the page below a cell."""
    return page.locator(".jp-CodeCell").nth(number).locator(".jp-OutputArea")


def test_a_person_works_in_jupyterlab(folder: Path) -> None:
    cells = ("x = 6 * 7\nx", "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()", "input('who? ') + '!'")
    write_notebook(folder / "lab.ipynb", *cells, "import os; os.kill(os.getpid(), 11)", "x + 1", "while True: pass")
    with lab(folder) as url, page_of(url) as page:
        command(page, "notebook:run-all-cells")
        expect(output(page, 0)).to_contain_text("42")
        expect(output(page, 1).locator("img")).to_be_visible()
        asked = page.locator("input.jp-Stdin-input")
        asked.fill("Ada")
        asked.press("Enter")
        expect(output(page, 2)).to_contain_text("Ada!")
        expect(output(page, 3)).to_contain_text("signal 11")
        page.locator(".jp-CodeCell").nth(4).click()
        command(page, "notebook:run-cell-and-select-next")
        expect(output(page, 4)).to_contain_text("43")
        command(page, "notebook:run-cell")
        await_kernel(page, "busy")
        command(page, "notebook:interrupt-kernel")
        expect(output(page, 5)).to_contain_text("KeyboardInterrupt")
        page.screenshot(path=ROOT / "tests" / "artefacts" / "jupyterlab.png")
        command(page, "notebook:restart-kernel")
        page.locator(".jp-Dialog .jp-mod-accept").click()
        expect(page.locator(".jp-Dialog")).to_have_count(0)
        page.wait_for_timeout(1000)
        await_kernel(page, "idle")
        page.locator(".jp-CodeCell").nth(4).click()
        command(page, "notebook:run-cell")
        expect(output(page, 4)).to_contain_text("NameError")


def test_figures_are_drawn_from_their_data(folder: Path) -> None:
    bars = {"data": [{"type": "bar", "x": ["a", "b", "c"], "y": [3, 1, 2]}], "layout": {"height": 300}}
    points = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "data": {"values": [{"a": 1, "b": 2}, {"a": 2, "b": 1}]},
        "mark": "point",
        "encoding": {"x": {"field": "a", "type": "quantitative"}, "y": {"field": "b", "type": "quantitative"}},
    }
    types = {"application/vnd.plotly.v1+json": bars, "application/vnd.vegalite.v5+json": points}
    shows = [
        f"from IPython.display import display; display({{{mime!r}: {data!r}}}, raw=True)"
        for mime, data in types.items()
    ]
    newer = {"application/vnd.vegalite.v6.json": points, "image/png": PNG}
    shows.append(f"display({newer!r}, raw=True)")
    write_notebook(folder / "lab.ipynb", *shows)
    with lab(folder) as url, page_of(url) as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        command(page, "notebook:run-all-cells")
        expect(output(page, 0).locator(".bars .point")).to_have_count(3)
        expect(output(page, 1).locator(".vega-embed :is(canvas, svg)").first).to_be_visible()
        expect(output(page, 2).locator("img")).to_be_visible()
        here = url.partition("/lab")[0]
        assert [
            each for each in asked if not each.startswith((here, here.replace("http", "ws"), "data:", "blob:"))
        ] == []


def test_widgets_talk_to_their_code(folder: Path, request: pytest.FixtureRequest) -> None:
    install_spec(folder.parent, request, {"packages": ["ipywidgets"]})
    button = "import ipywidgets as w\nbutton, label = w.Button(description='press'), w.Label('not yet')"
    answer = "n = 0\ndef pressed(_):\n    global n\n    n += 1\n    label.value = f'pressed {n}'"
    write_notebook(folder / "lab.ipynb", f"{button}\n{answer}\nbutton.on_click(pressed)\ndisplay(button, label)")
    with lab(folder) as url, page_of(url) as page:
        command(page, "notebook:run-all-cells")
        expect(output(page, 0)).to_contain_text("not yet")
        for times in (1, 2):
            page.get_by_role("button", name="press", exact=True).click()
            expect(output(page, 0)).to_contain_text(f"pressed {times}")


def test_jupyterlab_s_kernels_run_on_a_server(folder: Path) -> None:
    write_notebook(folder / "lab.ipynb", "x = 6 * 7\nx", "import os; print(os.listdir('.'))")
    with serving() as served:
        gateway = (f"--gateway-url={served.url}", f"--GatewayClient.auth_token={served.token}")
        with lab(folder, *gateway) as url, page_of(url) as page:
            command(page, "notebook:run-all-cells")
            expect(output(page, 0)).to_contain_text("42")
            expect(output(page, 1)).to_contain_text("[]")
            assert containers(served.process.pid)
    await_gone(served.process.pid)
