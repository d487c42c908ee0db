"""Nothing in the image's recipes, the locks and the seccomp profile is for one kind of processor alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from agent_tools.engines.package_data import shipped

PROFILE = json.loads(shipped("docker/seccomp.json").read_text())
ALLOWED = {name for rule in PROFILE["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW" for name in rule["names"]}
X86_ALONE = {
    "access": "faccessat",
    "chmod": "fchmodat",
    "chown": "fchownat",
    "creat": "openat",
    "dup2": "dup3",
    "alarm": "setitimer",
    "epoll_create": "epoll_create1",
    "epoll_wait": "epoll_pwait",
    "eventfd": "eventfd2",
    "fork": "clone",
    "futimesat": "utimensat",
    "getdents": "getdents64",
    "getpgrp": "getpgid",
    "vfork": "clone",
    "inotify_init": "inotify_init1",
    "lchown": "fchownat",
    "link": "linkat",
    "mkdir": "mkdirat",
    "open": "openat",
    "pause": "ppoll",
    "pipe": "pipe2",
    "poll": "ppoll",
    "readlink": "readlinkat",
    "mknod": "mknodat",
    "rename": "renameat",
    "rmdir": "unlinkat",
    "select": "pselect6",
    "signalfd": "signalfd4",
    "symlink": "symlinkat",
    "time": "clock_gettime",
    "unlink": "unlinkat",
    "utime": "utimensat",
    "utimes": "utimensat",
    "stat": "newfstatat",
    "lstat": "newfstatat",
}
"""Calls that the kernel has on x86-64 and not on arm64 (asm-generic/unistd.h), and those that stand in for them."""
RECIPES = sorted(path for path in shipped("docker").rglob("*") if path.is_file())
ONE_KIND = re.compile(r"\b(x86[-_]64|amd64|aarch64|arm64|i[36]86|platform_machine|linux/\w+)\b", re.IGNORECASE)


def test_the_profile_knows_both_kinds_and_no_32_bit_ones() -> None:
    known = {each["architecture"]: each["subArchitectures"] for each in PROFILE["archMap"]}
    assert known == {"SCMP_ARCH_X86_64": [], "SCMP_ARCH_AARCH64": []}


@pytest.mark.parametrize("name", sorted(X86_ALONE.keys() & ALLOWED))
def test_what_only_x86_has_is_allowed_in_its_other_form(name: str) -> None:
    assert X86_ALONE[name] in ALLOWED


def test_no_rule_is_for_one_kind_alone() -> None:
    conditions = [part for rule in PROFILE["syscalls"] for part in (rule.get("includes"), rule.get("excludes")) if part]
    assert [each for each in conditions if "arches" in each] == []


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_no_recipe_and_no_lock_names_a_kind(path: Path) -> None:
    text = path.read_text().replace("SCMP_ARCH_X86_64", "").replace("SCMP_ARCH_AARCH64", "")
    assert ONE_KIND.findall(text) == []
