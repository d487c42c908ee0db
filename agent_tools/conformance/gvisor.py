"""Findings of the probe that mean something else under gVisor: the reason why each is not open to the host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from agent_tools.conformance.findings import Finding

_OWN_KERNEL = (
    "a system call of gVisor's own kernel, which applies no seccomp profile to it; gVisor's processes have their own, "
    "and the host's kernel never sees the call"
)
_OWN_FILES = "in gVisor's own file system, in this sandbox only; the host gets no such file or device"
_SENTRY = (
    "a fact of gVisor's process, which is not the code's: it has its own user, and gVisor's own seccomp profile "
    "and namespaces; what the code may do is in the rows that the code has seen"
)
_BIT = "not held: a file of the sandbox's own user, in work_dir also on the host, in a folder closed to other users"
_ITSELF = "not held: code can do this to its own sandbox, and to nothing else"
_REASONS = {
    **dict.fromkeys(("user of every process", "capabilities", "namespaces", "file size", "core dumps"), _SENTRY),
    **dict.fromkeys(("kernel log", "escape the OOM killer", "raise its priority"), _OWN_KERNEL),
    **dict.fromkeys(("unshare (user namespace)", "setns", "mount", "fsopen", "pivot_root", "bpf"), _OWN_KERNEL),
    **dict.fromkeys(("perf_event_open", "keyctl", "userfaultfd", "io_uring_setup", "ptrace"), _OWN_KERNEL),
    **dict.fromkeys(("process_vm_readv", "open_by_handle_at", "finit_module", "personality"), _OWN_KERNEL),
    **dict.fromkeys(("sethostname", "syncfs", "chroot", "forbidden arguments, high bits"), _OWN_KERNEL),
    **dict.fromkeys(("system calls of other ABIs", "raw sockets", "packet sockets"), _OWN_KERNEL),
    "set a set-user-id bit": _BIT,
    **dict.fromkeys(("make a FIFO", "make a device node"), _OWN_FILES),
    **dict.fromkeys(("devices beyond the usual", "execute from /tmp"), _OWN_FILES),
    **dict.fromkeys(("PID 1", "memory, environment of PID 1", "priority, limits of PID 1"), _ITSELF),
}
_UNSEEN = {
    "empty files in memory": "not held: gVisor does not limit their number; each takes 2 KiB of its own memory, which "
    "only the engine's limit bounds, and the sandbox ends there"
}
"""Rows whose rule looks at mounts that gVisor keeps to itself, so that it finds nothing open."""


def explained(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings on a sandbox under gVisor: an open one that has a reason is promised no longer, and has it."""
    for finding in findings:
        if finding.name in _UNSEEN:
            advice = _UNSEEN[finding.name]
            yield replace(finding, verdict="open", found="any number", is_promised=False, advice=advice)
            continue
        reason = _REASONS.get(finding.name)
        is_explained = finding.verdict == "open" and reason is not None
        yield replace(finding, is_promised=False, advice=reason or "") if is_explained else finding
