"""The forks that run the tests: all that they report arrives, also where one of them is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES = {
    "conftest.py": """
import os, pytest

@pytest.fixture(scope="session")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("place")
    yield folder
    with open(os.environ["ENDED"], "a") as ended:
        ended.write(f"{folder}\\n")
""",
    "test_fine.py": "def test_fine(place): assert place.is_dir()\ndef test_too(place): print('not shown')",
    "test_wrong.py": "def test_wrong(place):\n    print('printed')\n    assert place == 1",
    "test_lost.py": "import os\ndef test_first(): pass\ndef test_lost(): os._exit(7)\ndef test_never(): pass",
}


def test_every_outcome_is_reported_and_fixtures_end_where_they_began(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "tests.workers", "-p", "no:xdist"]
    environment = {"ENDED": str(tmp_path / "ended"), "TMPDIR": str(tmp_path), "PATH": ""}
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", f"--rootdir={tmp_path}", tmp_path],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 failed, 3 passed" in done.stdout
    assert "printed" in done.stdout
    assert "not shown" not in done.stdout
    assert "Its worker ended with exit code 7; further tests of its file were not run." in done.stdout
    assert "worker-" in (tmp_path / "ended").read_text()
