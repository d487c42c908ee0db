"""Debian packages in a derived image."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from agent_tools.engines.docker import image
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.recipe import Recipe
from agent_tools.runtime.runtime import Runtime
from agent_tools.tools import CodeInterpreter

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]  # two small packages, and the lists of all of Debian's
PACKAGES = ["jq", "sudo"]


@pytest.fixture
def tag(docker_engine: DockerEngine, docker_runtime: Runtime) -> Iterator[str]:
    tag = image.ensure(docker_engine, Recipe.read((), PACKAGES))
    yield tag
    docker_runtime.settle()  # a container on its way out still uses it
    docker_engine.remove_image(tag)


def test_they_are_there_without_what_escalates_and_the_user_keeps_its_name(
    tag: str, new_tool: Callable[..., CodeInterpreter]
) -> None:
    with new_tool(debian_packages=PACKAGES) as tool:
        execution = tool.run(
            "import shutil, subprocess\n"
            "print(subprocess.getoutput('echo [1] | jq -c .'), subprocess.getoutput('whoami'))\n"
            "print([name for name in ('sudo', 'su') if shutil.which(name)])\n"
            "print(subprocess.getoutput('find / -xdev -type f -perm /6000 2>/dev/null'))\n"
            "print('Package: jq\\n' in open('/var/lib/dpkg/status').read())"
        )
    assert execution.stdout == "[1] sandbox\n[]\n\nTrue\n"
