"""Volumes at every door: a key's sandboxes have the volumes of the key, and no request names a path of the host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_tools.engines.engine import EngineContainer, SandboxSpec
from agent_tools.errors import InvalidParams
from agent_tools.gateway.config import read_config
from agent_tools.gateway.named_keys import KeyLimits, NamedKeys
from agent_tools.gateway.services import narrowed
from agent_tools.mcp import asgi_app as mcp
from agent_tools.runtime.runtime import Runtime
from tests.doubles import ProcessEngine
from tests.gateway.asking import CODE_TOOL, code, until
from tests.gateway.conftest import NewGateway
from tests.identity_provider import IdentityProvider
from tests.wires.conftest import MOUNTS, Served
from tests.wires.test_doors import DOORS, e2b, posted
from tests.wires.test_e2b import Client


class SeenEngine(ProcessEngine):
    """Notes the volumes of each sandbox, which processes of this machine cannot have."""

    def __init__(self) -> None:
        super().__init__()
        self.volumes: list[list[str]] = []

    def start(self, spec: SandboxSpec) -> EngineContainer:
        self.volumes.append([f"{each.target}={each.source}" for each in spec.volumes])
        return super().start(spec)


@pytest.fixture
def process_runtime() -> Iterator[Runtime]:
    runtime = Runtime(SeenEngine(), lambda packages: "none")
    yield runtime
    runtime.close_all()


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    found = {name: tmp_path / name for name in ("data", "shared")}
    for folder in found.values():
        folder.mkdir()
    return found


@pytest.fixture
def served(new_gateway: NewGateway, folders: dict[str, Path]) -> Iterator[Served]:
    """A gateway where `first` may use the volume `data` only, `second` none, and `plain` all."""
    text = ",".join(f"{name}={folder}:rw" for name, folder in folders.items())
    with ExitStack() as stack:
        replies = [code("6 * 7"), "42."] * 6
        made = new_gateway({"m": replies}, mounts=[*MOUNTS, mcp.MOUNT], named_keys=True, pool=0, volumes=text)
        found = Served(made, stack)
        named = NamedKeys(made.services.store)
        for name, volumes in (("first", "data, unknown"), ("second", "")):
            named.limit(name, KeyLimits(volumes=volumes))
        named.read_into(made.services.keys)
        yield found


def seen(runtime: Runtime) -> list[str]:
    """Return the volumes of the last sandbox."""
    engine = runtime.engine
    assert isinstance(engine, SeenEngine)
    return engine.volumes[-1]


def test_sandboxes_have_the_volumes_of_their_key_at_every_door(
    served: Served, process_runtime: Runtime, folders: dict[str, Path]
) -> None:
    data, shared = (f"/volumes/{name}={folder}" for name, folder in folders.items())
    for door in DOORS:
        if door is not e2b:  # whose clients name what they want
            for key, volumes in (("first", [data]), ("second", [])):
                assert "42" in door(served, key, "print(6 * 7)", 0)
                assert seen(process_runtime) == volumes, (door.__name__, key)
    assert "42" in DOORS[0](served, "plain", "print(6 * 7)", 0)
    assert seen(process_runtime) == [data, shared]


def test_responses_and_the_containers_that_clients_make_have_the_volumes_of_their_key(
    served: Served, process_runtime: Runtime, folders: dict[str, Path]
) -> None:
    data, shared = (f"/volumes/{name}={folder}" for name, folder in folders.items())
    for key, volumes in (("first", [data]), ("second", []), ("plain", [data, shared])):
        made = posted(served, key, "/v1/containers", {"name": "c"}).json()["id"]
        for container in ({"type": "auto"}, made):
            body = {"model": "m", "input": "Go.", "tools": [{**CODE_TOOL, "container": container}]}
            assert posted(served, key, "/v1/responses", body).json()["status"] == "completed"
            assert seen(process_runtime) == volumes, (key, container)


def test_a_key_of_e2b_mounts_what_it_may_use_by_name(
    served: Served, process_runtime: Runtime, folders: dict[str, Path]
) -> None:
    first, plain = Client(served, "first"), Client(served, "plain")
    assert first.http.get("/volumes").json() == [{"volumeID": "data", "name": "data"}]
    assert first.http.get("/volumes/data").json()["name"] == "data"
    assert first.http.get("/volumes/shared").status_code == 404
    mounts = [{"name": "data", "path": "/mnt/my-data"}]
    sandbox = first.create(volumeMounts=mounts)
    assert seen(process_runtime) == [f"/mnt/my-data={folders['data']}"]
    assert first.http.get(f"/sandboxes/{sandbox.id}").json()["volumeMounts"] == mounts
    plain.create()
    assert seen(process_runtime) == []
    plain.create(volumeMounts=[{"name": name, "path": f"/volumes/{name}"} for name in folders])
    assert seen(process_runtime) == [f"/volumes/{name}={folder}" for name, folder in folders.items()]


REFUSED = [
    (404, [{"name": "shared", "path": "/volumes/shared"}]),
    (404, [{"name": "/etc", "path": "/mnt/etc"}]),
    (404, [{"name": "../data", "path": "/mnt/x"}]),
    (404, [{"name": "data=/mnt/x shared", "path": "/volumes/data"}]),
    (400, [{"name": "data", "path": "/opt/kernel"}]),
    (400, [{"name": "data", "path": "/mnt/../etc"}]),
    (400, [{"name": "data", "path": "/mnt/data"}]),
    (400, [{"name": "data", "path": "/mnt/x shared=/mnt/y"}]),
    (400, [{"name": "data", "path": "/mnt/x"}, {"name": "data", "path": "/mnt/y"}]),
    (422, [{"name": "data"}]),
    (422, [{"name": "data", "path": "/mnt/x", "source": "/etc"}] * 100),
    (422, "data"),
]


@pytest.mark.parametrize(("status", "mounts"), REFUSED)
def test_a_client_names_no_other_volume_and_no_path_of_the_host(served: Served, status: int, mounts: Any) -> None:
    made = posted(served, "first", "/e2b/sandboxes", {"volumeMounts": mounts})
    assert made.status_code == status, made.text
    assert served.rows == []


def test_a_volume_that_a_key_loses_is_gone_from_its_next_sandbox(
    served: Served, process_runtime: Runtime, folders: dict[str, Path]
) -> None:
    client = Client(served, "first")
    sandbox = client.create(volumeMounts=[{"name": "data", "path": "/volumes/data"}])
    assert len(seen(process_runtime)) == 1
    services = served.gateway.services
    NamedKeys(services.store).limit("first", KeyLimits(volumes="shared"))
    until(lambda: not served.running)  # within seconds, also if it is in use
    assert sandbox.text("6 * 7") == "42"
    assert seen(process_runtime) == []


def test_users_have_the_volumes_of_their_group(
    new_gateway: NewGateway, process_runtime: Runtime, folders: dict[str, Path]
) -> None:
    with IdentityProvider() as provider:
        settings = {**provider.settings, "oidc_groups": "groups", "named_keys": True, "pool": 0}
        gateway = new_gateway({}, mounts=MOUNTS, volumes=f"data={folders['data']}", **settings)
        named = NamedKeys(gateway.services.store)
        for group, volumes in (("analysts", "data"), ("guests", "")):
            named.add(group, KeyLimits(volumes=volumes), group=group)
        named.read_into(gateway.services.keys)

        def run(user: str, group: str) -> list[str]:
            headers = {"Authorization": f"Bearer {provider.token(user, groups=[group])}"}
            answer = httpx.post(f"{gateway.url}/page/run", json={"code": "6 * 7"}, headers=headers, timeout=60)
            assert answer.status_code == 200, answer.text
            return seen(process_runtime)

        assert run("ann", "analysts") == [f"/volumes/data={folders['data']}"]
        assert run("bob", "guests") == []
        headers = {"X-API-Key": provider.token("bob", groups=["guests"])}
        mounts = [{"name": "data", "path": "/volumes/data"}]
        refused = httpx.post(f"{gateway.url}/e2b/sandboxes", json={"volumeMounts": mounts}, headers=headers, timeout=60)
        assert refused.status_code == 404


def test_only_owners_that_lose_a_volume_lose_their_sandboxes() -> None:
    before = {"all": None, "some": ("a", "b"), "same": ("a",), "more": ("a",)}
    now = {"all": ("a",), "some": ("b",), "same": ("a",), "more": None, "new": ("a",)}
    assert narrowed(before, now) == {"all", "some"}


def test_settings_show_volumes_as_they_are_written(new_gateway: NewGateway, folders: dict[str, Path]) -> None:
    config = new_gateway({}, volumes=f"data={folders['data']}").services.config
    assert dict(config.shown())["volumes"] == (f"data={folders['data']}:ro",)


def test_the_folder_of_the_gateways_own_data_is_no_volume(tmp_path: Path) -> None:
    for data_dir in (tmp_path, tmp_path / "volume", tmp_path / "volume" / "inner"):
        (tmp_path / "volume").mkdir(exist_ok=True)
        with pytest.raises(InvalidParams, match="Volume any is, holds or lies in data_dir"):
            read_config({"upstream": "http://u", "data_dir": data_dir, "volumes": f"any={tmp_path / 'volume'}"})
