"""The Docker engine where it answers nothing: what is asked of it then, and for how long. Without an engine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import docker.errors
import pytest
import requests

from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.docker.unfinished import LOOK_SECONDS, Unfinished
from agent_tools.engines.engine import EngineContainer, SandboxSpec
from agent_tools.engines.guest import Guest
from agent_tools.engines.isolation import Isolation
from agent_tools.errors import EngineError, EngineUnavailable, SandboxStartError
from tests.unit.engines.docker.test_unfinished import NotedGuard

TIMEOUT = 60


class HangingApi:
    """The SDK's client of an engine that answers up to one request, and then nothing; notes how long each may take."""

    def __init__(self, hangs_at: str, timeout: int, waited: list[int]) -> None:
        self.api = self
        self.hangs_at = hangs_at
        self.timeout = timeout
        self.waited = waited

    def __getattr__(self, request: str) -> Any:
        def ask(*args: Any, **kwargs: Any) -> dict[str, str]:
            if request == self.hangs_at or self.waited:
                self.waited.append(self.timeout)
                raise requests.ReadTimeout(f"{request} was not answered")
            return {"Id": "c1"}

        return ask

    def close(self) -> None:
        pass


class HangingConnection:
    """As much of a connection as making a sandbox needs."""

    engine = "Docker"

    def __init__(self, hangs_at: str) -> None:
        self.hangs_at = hangs_at
        self.waited: list[int] = []

    def api(self) -> HangingApi:
        return self.new_client(TIMEOUT)

    def new_client(self, timeout: int) -> HangingApi:
        return HangingApi(self.hangs_at, timeout, self.waited)


def engine_on(connection: HangingConnection) -> DockerEngine:
    engine = DockerEngine(TIMEOUT)
    engine.connection = connection  # type: ignore[assignment]
    engine._unfinished = Unfinished(engine.connection, NotedGuard())
    return engine


@pytest.mark.parametrize("step", ["create_container_from_config", "start"])
def test_an_engine_that_stops_answering_while_a_sandbox_is_made_is_waited_for_once(step: str) -> None:
    connection = HangingConnection(step)
    engine = engine_on(connection)
    with pytest.raises(EngineUnavailable):
        engine.start(_spec())
    assert connection.waited[0] == TIMEOUT
    assert sum(connection.waited[1:]) <= LOOK_SECONDS


def test_what_may_have_been_made_is_looked_for_briefly_before_another_is_made() -> None:
    connection = HangingConnection("create_container_from_config")
    engine = engine_on(connection)
    for _ in range(2):
        with pytest.raises(EngineUnavailable):
            engine.start(_spec())
    assert connection.waited.count(TIMEOUT) == 2
    assert sum(connection.waited) <= 2 * TIMEOUT + 3 * LOOK_SECONDS


def test_podmans_images_have_the_names_that_docker_gives_them() -> None:
    tags = [["docker.io/library/agent-tools:a", "localhost/agent-tools:b"], ["agent-tools:c"], None]
    api = SimpleNamespace(images=lambda name: [{"RepoTags": each, "Size": 1} for each in tags])
    engine = DockerEngine(TIMEOUT)
    engine.connection = SimpleNamespace(api=lambda: api, engine="Podman")  # type: ignore[assignment]
    found = engine.images("agent-tools")
    assert [each["RepoTags"] for each in found] == [["agent-tools:a", "agent-tools:b"], ["agent-tools:c"], []]
    assert {each["Size"] for each in found} == {1}


class RefusingApi:
    """The SDK's client of an engine that makes containers, starts none, and has removed them itself; notes requests."""

    def __init__(self) -> None:
        self.api = self
        self.asked: list[str] = []

    def __getattr__(self, request: str) -> Any:
        def ask(*args: Any, **kwargs: Any) -> dict[str, str]:
            self.asked.append(request)
            if request == "start":
                raise docker.errors.APIError("unknown runtime")
            if request == "remove_container":
                raise docker.errors.NotFound("it is gone")
            return {"Id": "c1"}

        return ask


def test_what_an_engine_refused_to_start_is_not_looked_for_at_each_later_start() -> None:
    api = RefusingApi()
    connection = SimpleNamespace(engine="Docker", api=lambda: api, new_client=lambda _: api)
    engine = engine_on(cast("Any", connection))
    for _ in range(3):
        with pytest.raises(SandboxStartError, match="unknown runtime"):
            engine.start(_spec())
    assert api.asked.count("remove_container") == 3
    assert "containers" not in api.asked


def _spec() -> SandboxSpec:
    return SandboxSpec(
        image="agent-tools:0123456789abcdef",
        run_dir=Path("/run/agent_tools"),
        work_dir=Path("/srv/work"),
        guest=Guest(container_ids=(10001, 10001), host_ids=(10001, 10001)),
        isolation=Isolation(),
        labels={"agent_tools.name": "one"},
    )


class Networks:
    """A connection to an engine that answers one inspection of its network, or fails it."""

    def __init__(self, answer: object, is_local: bool) -> None:
        self.answer = answer
        self.is_local = is_local

    def api(self) -> Networks:
        return self

    def inspect_network(self, name: str) -> object:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


DOCKER0 = {"Options": {"com.docker.network.bridge.name": "docker0"}}


@pytest.mark.parametrize(
    ("answer", "is_local", "bridge"),
    [
        pytest.param(DOCKER0, True, "docker0", id="the default network's"),
        pytest.param(DOCKER0, False, "", id="on another machine"),
        pytest.param({"Options": None}, True, "", id="a network without a bridge"),
        pytest.param(docker.errors.NotFound("no network"), True, "", id="no default network"),
    ],
)
def test_the_bridge_of_an_engine_is_its_interface_on_this_machine(answer: object, is_local: bool, bridge: str) -> None:
    engine = DockerEngine(TIMEOUT)
    engine.connection = Networks(answer, is_local)  # type: ignore[assignment]
    assert engine.bridge() == bridge


class RefusingConnection:
    """As much of a connection as removing a build's leavings needs, to an engine that refuses."""

    def __init__(self, status: int) -> None:
        self.status = status

    def api(self, is_patient: bool) -> RefusingConnection:
        return self

    def prune_images(self, filters: dict[str, Any]) -> None:
        response = requests.Response()
        response.status_code = self.status
        raise docker.errors.APIError("refused", response, "a prune operation is already running")


def test_leavings_that_are_being_removed_already_fail_no_build() -> None:
    engine = DockerEngine(TIMEOUT)
    engine.connection = RefusingConnection(409)  # type: ignore[assignment]
    engine.prune_build_stage("label")


def test_an_engine_that_cannot_remove_them_is_told() -> None:
    engine = DockerEngine(TIMEOUT)
    engine.connection = RefusingConnection(500)  # type: ignore[assignment]
    with pytest.raises(EngineError, match="already running"):
        engine.prune_build_stage("label")


class ForgetfulApi:
    """The SDK's client of an engine that has lost its image, until that is made again."""

    def __init__(self) -> None:
        self.has_image = False

    def create_container_from_config(self, config: dict[str, Any]) -> dict[str, str]:
        if not self.has_image:
            raise docker.errors.ImageNotFound("No such image")
        return {"Id": "c1"}

    api_version = "1.47"

    def start(self, container: str) -> None:
        assert container == "c1"

    def info(self) -> dict[str, Any]:
        return {"CgroupVersion": "2"}


class ForgetfulConnection:
    engine = "Docker"

    def __init__(self) -> None:
        self.client = ForgetfulApi()

    def api(self) -> ForgetfulApi:
        return self.client


def spec_of(image: str) -> SandboxSpec:
    return SandboxSpec(image, Path("/run/x"), None, Guest((1, 1), (1, 1)), Isolation(), {})


def test_an_image_that_is_gone_is_got_back_and_the_start_goes_on() -> None:
    engine, connection, asked = DockerEngine(TIMEOUT), ForgetfulConnection(), []

    def restore(tag: str) -> bool:
        asked.append(tag)
        connection.client.has_image = True
        return True

    engine.connection = connection  # type: ignore[assignment]
    engine.restore_image = restore
    assert engine.start(spec_of("agent-tools:1")).id == "c1"
    assert asked == ["agent-tools:1"]


def test_an_image_that_is_gone_for_good_is_told() -> None:
    engine = DockerEngine(TIMEOUT)
    engine.connection = ForgetfulConnection()  # type: ignore[assignment]
    with pytest.raises(SandboxStartError, match="agent-tools:1 is missing"):
        engine.start(spec_of("agent-tools:1"))


class ListingApi:
    """The SDK's client of an engine with one container, whose first process is this one; `top` names `listed`."""

    def __init__(self, listed: list[int]) -> None:
        self.listed = listed

    def inspect_container(self, container: str) -> dict[str, Any]:
        return {"State": {"Pid": os.getpid()}}

    def top(self, container: str, ps_args: str) -> dict[str, Any]:
        return {"Processes": [[str(pid)] for pid in self.listed] or None}


class ListingConnection:
    """As much of a connection as listing processes needs."""

    def __init__(self, listed: list[int], engine: str = "Docker") -> None:
        self.listed = listed
        self.engine = engine

    def api(self) -> ListingApi:
        return ListingApi(self.listed)


@pytest.mark.parametrize("listed", [[1, 2, 4], []], ids=["numbers of the container", "none"])
def test_processes_are_found_where_top_does_not_name_them_by_the_numbers_of_the_host(listed: list[int]) -> None:
    engine = DockerEngine(TIMEOUT)
    engine.connection = ListingConnection(listed)  # type: ignore[assignment]
    with subprocess.Popen(["sleep", "60"]) as child:
        found = engine.processes(EngineContainer("c1"))
        child.kill()
    assert {os.getpid(), child.pid} <= set(found)
    assert not {1, 2, 4} & set(found)


def test_processes_that_top_names_by_the_numbers_of_the_host_are_taken_from_it() -> None:
    engine = DockerEngine(TIMEOUT)
    engine.connection = ListingConnection([os.getpid(), 4_000_000])  # type: ignore[assignment]
    assert engine.processes(EngineContainer("c1")) == [os.getpid(), 4_000_000]


def test_podman_is_not_asked_for_processes_since_it_would_execute_ps_in_the_container() -> None:
    engine = DockerEngine(TIMEOUT)
    engine.connection = ListingConnection([os.getpid(), 4_000_000], "Podman")  # type: ignore[assignment]
    found = engine.processes(EngineContainer("c1"))
    assert os.getpid() in found
    assert 4_000_000 not in found


class NotingApi:
    """The SDK's client of an engine that maps users or does not; notes what containers are asked for."""

    api_version = "1.41"

    def __init__(self, *security: str) -> None:
        self.security = security
        self.asked: list[dict[str, Any]] = []

    def info(self) -> dict[str, Any]:
        return {"SecurityOptions": list(self.security)}

    def create_container_from_config(self, config: dict[str, Any]) -> dict[str, str]:
        self.asked.append(config)
        raise EngineError("enough")


@pytest.mark.parametrize(("security", "mode"), [(("name=seccomp", "name=userns"), "host"), (("name=seccomp",), None)])
def test_a_sandbox_has_the_callers_users_where_the_engine_maps_others(security: tuple[str, ...], mode: object) -> None:
    engine, api = DockerEngine(TIMEOUT), NotingApi(*security)
    engine.connection = SimpleNamespace(api=lambda **_: api, engine="Docker", is_local=True)  # type: ignore[assignment]
    with pytest.raises(EngineError, match="enough"):
        engine.start(_spec())
    host = api.asked[0]["HostConfig"]
    assert host.get("UsernsMode") == mode
    assert ("/sys/fs/cgroup" in host.get("ReadonlyPaths", ())) is (mode == "host")
