"""The two profiles: the sealed one is ours without sockets, and nothing else."""

from __future__ import annotations

import json

from agent_tools.engines.kubernetes.seccomp import AF_UNIX, EAFNOSUPPORT, Profile, Profiles
from agent_tools.engines.package_data import shipped

TEXT = shipped("docker/seccomp.json").read_text()
PROFILES = Profiles.of(TEXT)


def test_one_is_that_of_the_docker_engine_word_for_word() -> None:
    assert PROFILES.loopback.text == TEXT


def test_the_other_has_no_socket_but_those_of_this_machine() -> None:
    rules = [rule for rule in json.loads(PROFILES.sealed.text)["syscalls"] if "socket" in rule["names"]]
    allowed = [rule for rule in rules if rule["action"] == "SCMP_ACT_ALLOW"]
    assert [(rule["names"], rule["args"][0]["value"], rule["args"][0]["op"]) for rule in allowed] == [
        (["socket"], AF_UNIX, "SCMP_CMP_EQ")
    ]
    (refused,) = [rule for rule in rules if rule["action"] == "SCMP_ACT_ERRNO"]
    assert refused["errnoRet"] == EAFNOSUPPORT


def test_it_differs_in_nothing_else() -> None:
    ours, sealed = json.loads(TEXT), json.loads(PROFILES.sealed.text)
    assert {**ours, "syscalls": []} == {**sealed, "syscalls": []}
    gone = [rule for rule in ours["syscalls"] if rule not in sealed["syscalls"]]
    assert {tuple(rule["names"]) for rule in gone} == {("socket",)}
    assert len([rule for rule in sealed["syscalls"] if rule not in ours["syscalls"]]) == 1


def test_a_node_with_an_old_profile_has_none_of_this_name() -> None:
    assert Profile("sealed", "a").path != Profile("sealed", "b").path
    assert PROFILES.sealed.path.startswith("agent-tools/sealed-")
