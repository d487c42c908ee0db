"""The folder of a gateway's data is closed to other users of the machine."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from agent_tools.errors import InvalidParams
from agent_tools.gateway.config import DATABASE
from agent_tools.gateway.data_dir import FOLDER_ID, prepare_data_dir
from tests.gateway.conftest import NewGateway


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_that_was_there_is_closed_with_its_database(new_gateway: NewGateway, work_dir: Path) -> None:
    folder = work_dir / "open"
    folder.mkdir()
    folder.chmod(0o755)
    gateway = new_gateway({}, data_dir=folder)
    gateway.__exit__()
    for name in (DATABASE, f"{DATABASE}-wal"):
        (folder / name).touch()
        (folder / name).chmod(0o644)
    folder.chmod(0o777)
    prepare_data_dir(folder)
    assert mode(folder) == 0o700
    assert {mode(each) for each in folder.glob(f"{DATABASE}*")} == {0o600}


@pytest.mark.parametrize("name", [FOLDER_ID, DATABASE, "lost+found", "somebodys"])
def test_a_folder_with_other_things_is_not_closed_but_refused(work_dir: Path, name: str) -> None:
    folder = work_dir / "d"
    folder.mkdir()
    (folder / name).mkdir()
    folder.chmod(0o755)
    if name == "somebodys":
        with pytest.raises(InvalidParams, match=r"mode 0755.*chmod 700"):
            prepare_data_dir(folder)
        assert mode(folder) == 0o755
        folder.chmod(0o700)
    prepare_data_dir(folder)
    assert mode(folder) == 0o700


SERVE = """
import os, pathlib, sys
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.serving.run import serve
from agent_tools.runtime.runtime import Runtime
from tests.doubles import ProcessEngine
os.umask(0o022)
config = GatewayConfig("http://127.0.0.1:9/v1", data_dir=sys.argv[1], port=0, pool=0)

def ready(port):
    pathlib.Path(sys.argv[1], "made").touch()
    os.kill(os.getpid(), 15)

serve(config, Runtime(ProcessEngine(), lambda packages: "none"), ready=ready)
"""


def test_files_that_are_written_while_serving_are_private(work_dir: Path) -> None:
    folder = work_dir / "d"
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    subprocess.run([sys.executable, "-c", SERVE, str(folder)], env=env, check=False, timeout=120)
    assert (folder / "made").exists()
    assert {each.name: mode(each) for each in folder.iterdir() if mode(each) & 0o077} == {}
