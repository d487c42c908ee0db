"""Skills in real containers: a model's way through one, what code cannot do to it, and where it is there again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from agent_tools.engines.docker import image
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.runtime.runtime import Runtime
from agent_tools.sandbox import Sandbox
from tests.gateway.asking import INCLUDE, code, commands, outputs, post
from tests.gateway.conftest import NewGateway, new_gateway, process_runtime
from tests.skills import skill_folder
from tests.unit.skills.test_bundle import zipped

__all__ = ["new_gateway", "process_runtime"]
pytestmark = pytest.mark.docker
TOTAL = """#!/usr/bin/env python
import json, sys
rows = [line.split(",") for line in open(sys.argv[1]).read().split()]
json.dump({rows[0][0]: sum(int(row[0]) for row in rows[1:])}, open("totals.json", "w"))
"""
ATTACKS = (
    "touch /skills/csv/x",
    "echo x >> /skills/csv/SKILL.md",
    "chmod 777 /skills/csv/SKILL.md",
    "rm -rf /skills/csv",
    "mv /skills/csv /skills/y",
    "mkdir /skills/z",
    "ln -s /etc /skills/q",
    "mount -o remount,rw /skills/csv",
    "umount /skills/csv",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = skill_folder(tmp_path_factory.mktemp("skills") / "csv", {"scripts/total.py": TOTAL})
    (folder / "scripts" / "total.py").chmod(0o6755)
    return folder


@pytest.fixture
def sandbox(folder: Path) -> Iterator[Sandbox]:
    with Sandbox(skills=[folder]) as sandbox:
        yield sandbox


def test_a_skill_is_read_and_its_script_runs(sandbox: Sandbox) -> None:
    sandbox.write_file("in.csv", "a,b\n1,2\n3,4\n")
    (skill,) = sandbox.skills
    assert b"python scripts/total.py" in sandbox.run_command(f"cat {skill.path}/SKILL.md").stdout
    assert sandbox.run_command(f"{skill.path}/scripts/total.py in.csv").exit_code == 0
    assert sandbox.read_file("totals.json") == b'{"a": 4}'
    rights = sandbox.run_command(["stat", "-c", "%a %n", "SKILL.md", "scripts/total.py"], cwd=skill.path)
    assert rights.stdout == b"644 SKILL.md\n755 scripts/total.py\n"


def test_code_cannot_change_a_skill_that_others_share(sandbox: Sandbox, folder: Path) -> None:
    with Sandbox(skills=[folder]) as other:
        for attack in ATTACKS:
            assert sandbox.run_command(attack).exit_code != 0, attack
        code = "import os; [os.access(f'/skills/{each}', os.W_OK) for each in ('', 'csv', 'csv/SKILL.md')]"
        assert sandbox.run_code(code).value == [False, False, False]
        listed = [
            each.run_command("cd /skills && find . | sort && cat csv/SKILL.md").stdout for each in (sandbox, other)
        ]
        assert listed[0] == listed[1]
        assert listed[0].startswith(b".\n./csv\n./csv/SKILL.md\n./csv/scripts\n./csv/scripts/total.py\n---\nname: csv")
    assert (sandbox.skills[0].folder / "SKILL.md").read_bytes() == (folder / "SKILL.md").read_bytes()


def test_a_skill_is_there_in_forks_and_after_a_crash_and_a_reset(sandbox: Sandbox) -> None:
    look = "import os; os.listdir('/skills')"
    assert sandbox.run_code(look).value == ["csv"]
    forked = sandbox.fork()
    assert forked.run_code(look).value == ["csv"]
    forked.close()
    sandbox.run_code("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert sandbox.run_code(look).value == ["csv"]
    sandbox.reset()
    assert sandbox.run_code(look).value == ["csv"]


def test_a_sandbox_made_ahead_has_the_skills_that_it_was_made_with(
    folder: Path, work_dir: Path, docker_engine: DockerEngine
) -> None:
    look = "import os; os.path.isdir('/skills') and os.listdir('/skills')"
    runtime = Runtime(docker_engine, partial(image.ensure, docker_engine))
    with contextlib.ExitStack() as undo:
        undo.callback(runtime.close_all)
        with Sandbox(skills=[folder], pool=1, work_dir=work_dir / "a", runtime=runtime) as made_ahead:
            assert made_ahead.prepare_pool(60) == 1
            with Sandbox(pool=1, work_dir=work_dir / "b", runtime=runtime) as plain:
                assert not plain.run_code(look).value
            assert made_ahead.run_code(look).value == ["csv"]
            assert runtime.pools.takes["hit"] == 1


def test_two_sandboxes_at_once_share_one_copy(folder: Path) -> None:
    def use(_: int) -> tuple[Path, object]:
        with Sandbox(skills=[folder]) as sandbox:
            return sandbox.skills[0].folder, sandbox.run_code("open('/skills/csv/SKILL.md').read()").value

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(use, range(2)))
    assert len(found) == 2
    assert len(set(found)) == 1


def test_a_clients_skill_is_in_its_container_even_after_the_container_was_parked(
    new_gateway: NewGateway, docker_runtime: Runtime
) -> None:
    data = zipped(
        ("m/SKILL.md", b"---\nname: m\ndescription: Sums.\n---\n"), ("m/a.py", b"#!/usr/bin/env python\nprint(1 + 1)")
    )
    look = "import os; os.listdir('/skills'), os.access('/skills/m', os.W_OK)"
    gateway = new_gateway({"m": [commands("/skills/m/a.py"), "Ok.", code(look), "Ok."]}, docker_runtime)
    client = gateway.client()
    skill = client.skills.create(files=("m.zip", data))
    container = client.containers.create(name="c", skills=[{"type": "skill_reference", "skill_id": skill.id}])
    client.skills.delete(skill.id)
    named = {"type": "container_reference", "container_id": container.id}
    first = post(gateway, tools=[{"type": "shell", "environment": named}]).json()
    (result,) = next(item["output"] for item in first["output"] if item["type"] == "shell_call_output")
    assert result["stdout"] == "2\n"
    gateway.services.containers.slots.drop(container.id, 1)
    second = post(gateway, tools=[{"type": "code_interpreter", "container": container.id}], include=INCLUDE).json()
    assert outputs(second)[0]["outputs"][0]["logs"] == "(['m'], False)"
