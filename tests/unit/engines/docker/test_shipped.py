import ast
import re
from pathlib import Path

import pytest

from agent_tools.engines.package_data import shipped

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize(
    "name",
    [
        "docker/code_interpreter.dockerfile",
        "docker/debian_base.sh",
        "docker/font_fallback.py",
        "docker/matplotlibrc",
        "docker/packages.dockerfile",
        "docker/requirements.lock",
        "docker/seccomp.json",
        "fonts/DroidSansFallbackFull.ttf",
        "fonts/NanumSquareR.ttf",
        "guest/pid1/init.py",
        "guest/startup.py",
    ],
)
def test_what_the_package_needs_is_there_and_not_empty(name: str) -> None:
    assert shipped(name).stat().st_size > 0


def test_every_file_the_code_asks_for_is_there() -> None:
    asked: list[str] = []
    for file in (ROOT / "agent_tools").rglob("*.py"):
        asked += re.findall(r'shipped\("([^"{]+)"\)', file.read_text())
    assert len(asked) >= 3
    assert [name for name in asked if not shipped(name).exists()] == []


def test_the_guests_code_is_part_of_the_package() -> None:
    assert shipped("guest") == ROOT / "agent_tools" / "guest"


@pytest.mark.parametrize("name", ["guest/pid1/init.py", "guest/startup.py", "docker/font_fallback.py"])
def test_shipped_python_is_valid_where_it_runs(name: str) -> None:
    ast.parse(shipped(name).read_text(), feature_version=(3, 13))


def test_the_fonts_come_with_their_licences() -> None:
    assert "Apache License" in (shipped("fonts") / "LICENSE-Apache-2.0.txt").read_text()
    assert "SIL OPEN FONT LICENSE" in (shipped("fonts") / "LICENSE-OFL-1.1.txt").read_text()


def test_locked_packages_are_pinned_by_hash() -> None:
    lock = shipped("docker/requirements.lock").read_text().replace("\\\n", " ")
    pins = [line for line in lock.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert pins
    assert [line[:60] for line in pins if "==" not in line or "--hash=sha256:" not in line] == []
