"""The choice of an OCI runtime: by name, by what stands between code and the host's kernel, or the engine's own."""

from __future__ import annotations

import pytest

from agent_tools.engines.isolation import Isolation
from agent_tools.engines.oci_runtime import chosen, kind_of
from agent_tools.errors import InvalidParams, SandboxStartError


@pytest.mark.parametrize(
    ("isolation", "runtimes", "found"),
    [
        (Isolation(), ("runc", "runsc"), None),
        (Isolation(), ("runsc", "runc"), "runsc"),
        (Isolation(), ("of my own",), None),
        (Isolation(), (), None),
        (Isolation(isolation="gvisor"), ("runc", "io.containerd.runc.v2", "runsc-kvm"), "runsc-kvm"),
        (Isolation(isolation="gvisor"), ("runsc",), "runsc"),
        (Isolation(isolation="container"), ("runc", "runsc"), None),
        (Isolation(isolation="container"), ("runsc", "crun"), "crun"),
        (Isolation(isolation="container"), (), None),
        (Isolation(runtime="kata"), ("runc",), "kata"),
    ],
)
def test_the_runtime_is_the_one_that_was_asked_for(
    isolation: Isolation, runtimes: tuple[str, ...], found: str | None
) -> None:
    assert chosen(isolation, runtimes) == found


@pytest.mark.parametrize(
    ("isolation", "runtimes"),
    [
        (Isolation(isolation="gvisor"), ("runc", "kata")),
        (Isolation(isolation="gvisor"), ()),
        (Isolation(isolation="container"), ("runsc",)),
    ],
)
def test_nothing_runs_under_another_kind_than_the_one_asked_for(
    isolation: Isolation, runtimes: tuple[str, ...]
) -> None:
    with pytest.raises(SandboxStartError, match=r"is not possible: the engine has .* Nothing was run") as caught:
        chosen(isolation, runtimes)
    assert ("runsc install" in str(caught.value)) == (isolation.isolation == "gvisor")


@pytest.mark.parametrize(
    "given", [{"isolation": "vm"}, {"isolation": None}, {"isolation": "gvisor", "runtime": "runsc"}]
)
def test_what_names_no_isolation_or_two_is_an_error(given: dict[str, str]) -> None:
    with pytest.raises(InvalidParams, match="isolation="):
        Isolation(**given)  # type: ignore[arg-type]


def test_kinds_are_known_by_the_beginning_of_a_name() -> None:
    names = ("runsc", "kata-qemu", "sysbox-runc", "runc", "io.containerd.runc.v2", "crun", "else")
    assert [kind_of(name) for name in names] == ["gvisor", "kata", "sysbox", "container", "container", "container", ""]
