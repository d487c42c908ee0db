"""A release can be installed; workflows that publish hold to least rights; what is published has its licences."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent_tools.engines.context import tag_for
from agent_tools.engines.recipe import Recipe
from agent_tools.extras import DISTRIBUTION
from supply import release

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}")
UNTRUSTED = re.compile(r"\$\{\{\s*github\.(event|head_ref|ref_name|actor)")
WRITES = {
    "attest": {"id-token", "attestations"},
    "publish": {"id-token"},
    "image": {"packages", "id-token"},
    "release": {"contents"},
}


def read(path: Path) -> dict[Any, Any]:
    workflow = yaml.safe_load(path.read_text())
    assert isinstance(workflow, dict)
    return workflow


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in read(path)["jobs"].values() for step in job["steps"]]


def writes(permissions: dict[str, str]) -> set[str]:
    return {name for name, right in permissions.items() if right != "read"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_job_is_bounded_in_time_and_does_something(path: Path) -> None:
    workflow = read(path)
    assert workflow["name"] == path.stem
    for job in workflow["jobs"].values():
        assert 0 < job["timeout-minutes"] <= 90
        assert all(("run" in step) != ("uses" in step) for step in job["steps"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_no_workflow_runs_with_rights_on_code_of_strangers(path: Path) -> None:
    triggers = set(read(path)[True])  # `on`, as YAML reads it
    assert triggers <= {"push", "pull_request"}
    assert not any(UNTRUSTED.search(step.get("run", "")) for step in steps(path))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_jobs_have_the_rights_they_need_and_no_more(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] in ({}, {"contents": "read"})
    allowed = WRITES if path.stem == "release" else {}
    for name, job in workflow["jobs"].items():
        assert writes(job.get("permissions", {})) == allowed.get(name, set()), name


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_to_commits_and_say_their_version(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if "uses:" in line]
    assert all(re.search(r"@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line) for line in lines)
    assert all(PINNED.fullmatch(step["uses"]) for step in steps(path) if "uses" in step)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_checkouts_leave_no_credentials(path: Path) -> None:
    checkouts = [step for step in steps(path) if "actions/checkout" in step.get("uses", "")]
    assert checkouts
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_a_change_is_decided_by_the_same_script_as_elsewhere() -> None:
    commands = [step.get("run", "") for step in steps(ROOT / ".github" / "workflows" / "ci.yml")]
    assert "bash .ci/run" in commands
    assert any("scripts/try matrix" in command for command in commands)


def test_only_a_tag_publishes_and_without_a_stored_token() -> None:
    path = ROOT / ".github" / "workflows" / "release.yml"
    assert read(path)[True] == {"push": {"tags": ["v*"]}}
    assert "secrets." not in path.read_text()


def test_sdist_and_wheel_carry_the_licences_of_all_that_they_ship(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--directory", str(tmp_path)]
    subprocess.run(build, check=True, capture_output=True, cwd=ROOT)
    (sdist,), (wheel,) = tmp_path.glob("*.tar.gz"), tmp_path.glob("*.whl")
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(wheel) as file:
        in_wheel = {name.partition(".dist-info/")[2] for name in file.namelist()}
    shipped = {"LICENSE", "fonts/LICENSE-Apache-2.0.txt", "fonts/LICENSE-OFL-1.1.txt"}
    assert shipped <= in_sdist
    assert {f"licenses/{name}" for name in shipped} <= in_wheel
    assert {"host.lock", "docker/requirements.lock"} <= in_sdist


def test_the_notes_of_a_release_are_its_section_of_the_changelog() -> None:
    changelog = "# Changes\n\n## 0.2.0\n\n* b\n\n## 0.1.0 (unreleased)\n\n* a\n"
    assert release.notes(changelog, "0.2.0") == "* b\n\n"
    assert release.notes(changelog, "0.1.0") == "* a\n"
    with pytest.raises(ValueError, match=r"no section of 0\.2"):
        release.notes(changelog, "0.2")


BUILDX = """#!/bin/sh
printf '%s\\n' "$@" >"$0.arguments"
cat >/dev/null
for each; do case $each in --metadata-file=*) echo '{"containerimage.digest": "sha256:1d"}' >"${each#*=}" ;; esac; done
"""


def test_an_image_for_several_platforms_is_pushed_by_buildx_on_the_one_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, recipe = tmp_path / "docker", Recipe(flavour="full")
    program.write_text(BUILDX)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(release, "RELEASED", tmp_path / "published.json")
    release.pin_images("registry.example.com/tools", [recipe], "linux/amd64,linux/arm64")
    record = json.loads((tmp_path / "published.json").read_text())
    assert record["digests"] == {tag_for(recipe).partition(":")[2]: "sha256:1d"}
    asked = (tmp_path / "docker.arguments").read_text().split("\n")
    below = f"registry.example.com/tools:{tag_for().partition(':')[2]}"
    assert {"buildx", "--push", "--platform=linux/amd64,linux/arm64", f"--build-arg=STACK_IMAGE={below}"} <= set(asked)


# -- installing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", release.PAGES, ids=lambda path: path.name)
def test_pages_say_how_to_install_what_there_is(page: Path) -> None:
    source = release.package_source((ROOT / "mkdocs.yml").read_text())
    assert release.install_lines(page.read_text(), source) == page.read_text()


INSTALLED = f"""
pip install {DISTRIBUTION}   # needs Docker
pip install '{DISTRIBUTION}[adk]' more
`pip install '{DISTRIBUTION}[mcp]'` and `%pip install xxhash`
["--from", "{DISTRIBUTION}[mcp]"]
"""
IN_A_CHECKOUT = """
pip install .   # in a checkout; needs Docker
pip install '.[adk]' more  # in a checkout
`pip install '.[mcp]'` and `%pip install xxhash`
["--from", "/path/to/checkout[mcp]"]
"""


def test_a_release_turns_the_pages_to_the_index() -> None:
    assert release.install_lines(IN_A_CHECKOUT, DISTRIBUTION) == INSTALLED
    assert release.install_lines(INSTALLED, DISTRIBUTION) == INSTALLED
    assert release.install_lines(IN_A_CHECKOUT, ".") == IN_A_CHECKOUT
