"""The kernelspec, and the command that installs it."""

from __future__ import annotations

import json
import sys
from importlib.metadata import entry_points
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jupyter_client.kernelspec import KernelSpecManager

from agent_tools.cli import cli
from agent_tools.engines.network import NetworkPolicy
from agent_tools.errors import InvalidParams
from agent_tools.jupyter.kernelspec import NAME, PROVISIONER, KernelSpec, sandbox_config
from agent_tools.jupyter.provisioner import SandboxProvisioner
from agent_tools.sandbox.options import read_options


def test_both_kinds_of_clients_are_told_the_same() -> None:
    content = KernelSpec({"memory": 2**30, "network": {"allow": ["pypi"]}}, "fresh").content()
    config = content["metadata"]["kernel_provisioner"]["config"]
    argv = content["argv"]
    assert config == {
        "work_dir": "fresh",
        "outputs": "all",
        "options": {"memory": 2**30, "network": {"allow": ["pypi"]}},
    }
    assert read_options([value for flag, value in pairwise(argv) if flag == "--set"]) == config["options"]
    assert argv[argv.index("--work-dir") + 1] == "fresh"
    assert "{connection_file}" in argv
    assert content["interrupt_mode"] == "signal"


def test_secrets_are_not_written_where_others_read(tmp_path: Path) -> None:
    network = {"allow": ["api.example.com"], "headers": {"api.example.com": {"Authorization": "Bearer s3cret"}}}
    with pytest.raises(InvalidParams, match="headers"):
        KernelSpec({"network": network}).install(prefix=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_package_index_with_a_user_is_no_secret_of_the_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:s3cret@index.example.com/simple")
    folder = KernelSpec({"network": {"allow": ["pypi"]}}).install(prefix=str(tmp_path))
    assert "s3cret" not in (folder / "kernel.json").read_text()


def test_the_provisioner_is_found_by_the_name_in_the_spec() -> None:
    (found,) = entry_points(group="jupyter_client.kernel_provisioners", name=PROVISIONER)
    assert found.load() is SandboxProvisioner


def test_the_command_installs_what_jupyter_finds(tmp_path: Path) -> None:
    arguments = ["jupyter", "install", "--prefix", str(tmp_path), "--no-build", "--memory", "1g", "--allow", "pypi"]
    done = CliRunner().invoke(cli, [*arguments, "--set", "idle_stop=60"])
    assert done.exit_code == 0, done.output
    (path,) = (tmp_path / "share/jupyter/kernels").glob("*/kernel.json")
    assert path.parent.name == NAME
    config = json.loads(path.read_text())["metadata"]["kernel_provisioner"]["config"]
    assert config["options"] == {"memory": 2**30, "network": {"allow": ["pypi"]}, "idle_stop": 60}
    specs = KernelSpecManager(kernel_dirs=[str(path.parents[1])])
    assert specs.get_kernel_spec(NAME).argv[0] == sys.executable


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--user", "--sys-prefix"], "one of --user"),
        (["--set", "memory"], "NAME=VALUE"),
        (["--name", "a b"], "a b"),
        (["--name", ""], "name '' is not usable"),
        (["--title", " "], "--title is empty"),
        (["--prefix", ""], "'--prefix': it is empty"),
    ],
)
def test_bad_arguments_say_what_to_do(tmp_path: Path, arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(cli, ["jupyter", "install", "--no-build", *arguments])
    assert done.exit_code != 0
    assert words in done.output + str(done.exception)


@pytest.mark.parametrize(
    ("options", "work_dir", "words"),
    [
        ({"memry": 1}, "cwd", "memry"),
        ({"work_dir": "/x"}, "cwd", "have a work_dir"),
        ({}, "here", "'cwd' or 'fresh'"),
        ({"privileged": True}, "cwd", "break the isolation"),
        ({"network": NetworkPolicy(allow=("pypi",))}, "cwd", "no JSON value"),
    ],
)
def test_options_are_checked_before_they_are_installed(options: dict[str, Any], work_dir: Any, words: str) -> None:
    with pytest.raises(InvalidParams, match=words):
        KernelSpec(options, work_dir)


def test_outputs_are_all_or_plain() -> None:
    assert KernelSpec(outputs="plain").content()["metadata"]["kernel_provisioner"]["config"]["outputs"] == "plain"
    with pytest.raises(InvalidParams, match="'all' or 'plain'"):
        KernelSpec(outputs="some")  # type: ignore[arg-type]


def test_the_folder_is_the_notebooks_or_a_fresh_one() -> None:
    assert sandbox_config({"cpus": 2}, "cwd", "/a") == {"cpus": 2, "work_dir": "/a"}
    assert sandbox_config({"cpus": 2}, "fresh", "/a") == {"cpus": 2}
