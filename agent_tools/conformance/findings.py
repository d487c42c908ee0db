"""The untrusted findings of code inside a container.

Each is bounded, checked against the catalogue and neutralised; a malformed one counts as `unknown`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agent_tools.text import neutralise

Verdict = Literal["held", "open", "unknown", "info"]
VERDICTS: tuple[Verdict, ...] = ("held", "open", "unknown", "info")

EXPOSURE = "information exposure"
FILES = "file system"
NETWORK = "network"
PRIVILEGES = "privileges and dangerous operations"
LIMITS = "resource limits"
CATEGORIES = (EXPOSURE, FILES, NETWORK, PRIVILEGES, LIMITS)
MOST_CHARS = 120  # of what was found


@dataclass(frozen=True)
class Finding:
    """The verdict on one property, and its reason. `info` is a fact without a promise."""

    category: str
    name: str
    verdict: Verdict
    found: str
    seen_by: Literal["host", "code"]
    """Findings of `code` come from inside the container and may be false."""
    is_promised: bool = True
    """True if our sandbox promises it with its default options."""
    advice: str = ""
    """For an open property that is not promised to this caller: the reason and the remedy."""

    @property
    def breaks_a_promise(self) -> bool:
        """True if such a finding breaks a promise of the default sandbox."""
        return self.is_promised and self.verdict == "open"


def counts(findings: Sequence[Finding]) -> dict[Verdict, int]:
    """Return the count of each verdict."""
    found = Counter(finding.verdict for finding in findings)
    return {verdict: found[verdict] for verdict in VERDICTS}


def one_line(text: str) -> str:
    """Return a container's text, made safe to show in one cell of a table."""
    words = " ".join(neutralise(text[: 4 * MOST_CHARS]).split())
    return words if len(words) <= MOST_CHARS else f"{words[: MOST_CHARS - 1]}…"


MOST_BYTES = 64 * 1024  # of a container's claims
_ROOM = "agent_tools.conformance.guest"
_MODULES = ("answers", "addresses", "arguments", "files", "host_facts", "privileges", "main")
"""In the order in which they import each other."""

UNPROMISED = {"host_paths", "shared_kernel", "symbolic_link"}  # facts without a promise
CATALOGUE: Mapping[str, Mapping[str, str]] = {
    EXPOSURE: {
        "environment": "environment variables",
        "credentials": "credential files",
        "engine_socket": "engine socket reachable",
        "kernel_memory": "kernel and physical memory",
        "kernel_log": "kernel log",
        "host_processes": "host processes",
        "init_memory": "memory, environment of PID 1",
        "host_paths": "host paths",
        "shared_kernel": "host kernel",
        "name_servers": "host name servers",
    },
    FILES: {
        "write_root": "write to /",
        "write_etc": "write to /etc",
        "write_python": "write to the interpreter",
        "write_packages": "write to site-packages",
        "write_run": "write to /run",
        "kernel_settings": "write to /sys, /proc/sys",
        "login": "choose a login for the audit",
        "sysrq": "write to sysrq-trigger",
        "execute_from_tmp": "execute from /tmp",
        "set_user_id": "set a set-user-id bit",
        "set_user_id_files": "set-user-id files",
        "fifo": "make a FIFO",
        "device_node": "make a device node",
        "devices": "devices beyond the usual",
        "symbolic_link": "symbolic links",
    },
    NETWORK: {
        "gateway": "host by its gateway",
        "metadata": "metadata service",
        "internet": "internet",
        "route_out": "route out",
        "names": "DNS",
        "host_names": "host.docker.internal",
        "raw_socket": "raw sockets",
        "packet_socket": "packet sockets",
        "vsock": "AF_VSOCK",
        "kernel_crypto": "AF_ALG",
        "netlink": "netlink (netfilter)",
        "abstract_sockets": "abstract sockets of others",
    },
    PRIVILEGES: {
        "unshare": "unshare (user namespace)",
        **{
            name: name
            for name in (
                "setns",
                "mount",
                "fsopen",
                "pivot_root",
                "bpf",
                "perf_event_open",
                "keyctl",
                "userfaultfd",
                "io_uring_setup",
                "ptrace",
                "process_vm_readv",
                "open_by_handle_at",
                "finit_module",
                "personality",
                "sethostname",
                "syncfs",
            )
        },
        "forbidden_arguments": "forbidden arguments, high bits",
        "foreign_calls": "system calls of other ABIs",
        "signals": "signals between its processes",
        "become_root": "become root",
        "change_root": "chroot",
        "touch_init": "priority, limits of PID 1",
        "escalating_programs": "sudo, su and the like",
        "installing_programs": "pip, compilers, downloaders",
    },
    LIMITS: {
        "raise_limits": "raise a hard limit",
        "favour_itself": "raise its priority",
        "spare_itself": "escape the OOM killer",
    },
}


def program() -> str:
    """Return the guest's code as one text: its modules, and the lines that load them without files."""
    folder = Path(__file__).with_name("guest")
    sources = {f"{_ROOM}.{name}": (folder / f"{name}.py").read_text() for name in _MODULES}
    return f"""import sys, types
for name, source in {json.dumps({_ROOM: "", **sources})}.items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
    parent, _, child = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], child, module)
sys.modules["{_ROOM}.main"].main()
"""


def claimed_findings(said: bytes | None, why_not: str = "") -> Iterator[Finding]:
    """Yield a finding for each entry of the catalogue, from a container's answer; None if it was not asked."""
    answers = {} if said is None else _answers(said)
    missing = why_not or "it did not say"
    for category, names in CATALOGUE.items():
        for name, title in names.items():
            verdict, found = _claim(name, answers.get(name), missing)
            yield Finding(category, title, verdict, found, "code", is_promised=name not in UNPROMISED)


def _answers(said: bytes) -> Mapping[str, Any]:
    if len(said) > MOST_BYTES:
        return {}
    try:
        spoken = json.loads(said.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    answers = spoken.get("answers") if isinstance(spoken, dict) else None
    return answers if isinstance(answers, dict) else {}


def _claim(name: str, answer: object, missing: str) -> tuple[Verdict, str]:
    match answer:
        case ["held" | "open" | "unknown" | "info" as verdict, str(found)] if (verdict == "info") <= (
            name in UNPROMISED
        ):
            return verdict, one_line(found)
    return "unknown", missing if answer is None else "its answer makes no sense"
