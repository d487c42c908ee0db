import pytest

from agent_tools.engines.docker.image import REGISTRY_BASE
from agent_tools.engines.image_versions import MAIN, PYTHON, contents_told
from agent_tools.engines.package_data import shipped
from agent_tools.engines.recipe import FLAVOURS, Flavour, Recipe


def test_the_python_is_the_one_of_the_base() -> None:
    assert f"python:{PYTHON}-" in REGISTRY_BASE


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_every_main_library_is_told_with_the_version_of_its_lock(flavour: Flavour) -> None:
    told = contents_told(Recipe(flavour=flavour))
    locks = {"lean": "requirements.lock", "newest": "flavours/newest.lock"}
    pins = shipped(f"docker/{locks.get(flavour, 'requirements.lock')}").read_text()
    for name in MAIN["lean"].split():
        (version,) = [line.split("==")[1].split()[0] for line in pins.splitlines() if line.startswith(f"{name}==")]
        assert f"{name} {version}" in told


def test_flavours_and_what_was_added_are_told() -> None:
    told = contents_told(Recipe(("polars==1.35.0",), ("graphviz",), "agent"))
    assert told.startswith(f"Python {PYTHON} with numpy ")
    assert told.endswith("polars==1.35.0, graphviz.")
    assert {"git", "ripgrep,", "pytest"} & set(told.split())
    assert "plotly" in contents_told(Recipe(flavour="full"))
