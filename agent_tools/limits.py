"""Every limit of sandboxes and of calls out of them, with its default and unit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KIB, MIB, GIB = 1024, 1024**2, 1024**3
MAX_TIMEOUT = 86_400.0  # the longest time limit a caller may ask for
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?) ?(?:([kmgt])i?)?b?", re.IGNORECASE | re.ASCII)
_SIZES = frozenset(
    (
        *("memory", "tmp", "home", "shm", "installed", "file_size", "log", "min_disk_free"),
        *("max_received", "max_sent", "max_packages_cache"),
    )
)


def size_of(value: object) -> object:
    """Return a size given as text, such as '512m', '512Mi', '4g' or '1.5 GiB', in bytes; any other value unchanged."""
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    return int(float(found[1]) * 1024 ** " kmgt".index((found[2] or " ").lower())) if found else value


def with_sizes(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with sizes converted from text to bytes; the name of an option says whether it is a size."""
    return {name: size_of(value) if name in _SIZES or "bytes" in name else value for name, value in options.items()}


def size_text(size: float) -> str:
    """Format a number of bytes for people: '2 GiB', '1.5 KiB', '7 bytes'."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:g} bytes"


@dataclass(frozen=True)
class Limits:
    """Bounds on one session, all enforced on the host. Times are seconds, sizes bytes."""

    timeout: float = 30.0
    """Seconds that one call's code may run."""
    interrupt_grace: float = 0.2
    """From the time limit, which the guest enforces first, to the host's interrupt (SIGINT)."""
    kill_grace: float = 0.5
    """Processor time from the host's interrupt to the kernel's end (SIGKILL); in wall time at most three times that."""
    cancel_grace: float = 0.5
    """Likewise from the interrupt of code that the caller cancelled before its time limit."""
    start_timeout: float = 60.0
    """Seconds until a sandbox and its kernel, a checkpoint or a fork must be ready."""
    restart_timeout: float = 10.0
    """Seconds until a checkpoint (at most 2 after the time limit) or a fresh kernel in a sandbox must be ready."""
    pool_max_age: float = 3_600.0
    """The age at which a sandbox made ahead is replaced; after as long without a session, its pool keeps none ready."""
    max_code_bytes: int = MIB
    """The longest code, as UTF-8."""
    max_message_bytes: int = 16 * MIB
    """The largest message taken from the kernel; a larger one ends the kernel."""
    max_text_chars: int = 40_000
    """Characters of printed text kept in one call: the first and the last half."""
    max_images: int = 20
    """Pictures kept in one call."""
    max_image_bytes: int = 10 * MIB
    """Bytes of one picture."""
    max_rich_chars: int = MIB
    """Characters of one HTML, SVG, LaTeX, Markdown or JSON representation."""
    command_timeout: float = 60.0
    """Seconds that a command may run, unless the call says otherwise."""
    command_grace: float = 2.0
    """From the time limit of a command, at which it gets SIGTERM, to its end (SIGKILL)."""
    max_commands: int = 128
    """Commands that run at the same time in one sandbox; more wait for their turn."""
    max_command_output: int = 10 * MIB
    """Bytes kept of each stream of a command: the last ones."""
    max_branches: int = 32
    """Forks of one sandbox, and forks of these, that are open at the same time; more are refused."""
    max_transfer_bytes: int = 100 * MIB
    """The largest file that is read from or written to a sandbox in one call."""
    max_archive_bytes: int = GIB
    """The largest tar of work_dir that is saved in one call."""
    max_variables_bytes: int = GIB
    """Bytes of all variables that are saved with them; those that have no room left are named, and left out."""
    max_variables: int = 10_000
    """Variables saved at once, and those named that are not."""
    variables_timeout: float = 30.0
    """Seconds that pickling all variables may take, and making them again; each may take half of what is left."""
    max_listed_files: int = 10_000
    """Entries of one folder of the sandbox listed in one call."""
    max_file_bytes: int = GIB
    """The largest file staged into work_dir."""
    download_timeout: float = 60.0
    """Seconds that fetching one URL may take, redirects included."""
    max_work_dir_bytes: int = 4 * GIB
    """Bytes that work_dir may come to hold; code that goes beyond is killed. A folder that holds more may not grow."""
    max_work_dir_entries: int = 100_000
    """Files and folders that work_dir may come to hold, likewise."""
    sync_timeout: float = 60.0
    """Seconds for copying work_dir to or from a remote engine's sandbox, before and after a run."""
    min_disk_free: int = GIB
    """Bytes that must stay free on work_dir's file system; code that leaves less, and has added some, is killed."""
    max_listed_entries: int = 10_000
    """Entries of work_dir looked at to find new and changed files; with more, answers say that some may be missing."""


@dataclass(frozen=True)
class CallLimits:
    """Bounds on the calls of host functions, all enforced on the host. Times are seconds, sizes bytes."""

    max_calls: int = 100
    """Calls of one run."""
    max_concurrent: int = 32
    """Calls that run at the same time; more wait for their turn."""
    max_pending: int = 1_024
    """Calls that may wait; more are refused."""
    call_timeout: float = 30.0
    """Seconds that one call may take, without the wait for its turn and its approval."""
    max_host_seconds: float = 300.0
    """Seconds that all calls of one run may take together."""
    approval_timeout: float = 600.0
    """Seconds that an approval may take. The run's own time limit stands still meanwhile."""
    max_message_bytes: int = 16 * MIB
    """The largest arguments, and the largest result. Arguments have at most 100,000 parts; an array counts as one."""
    max_open_bytes: int = 64 * MIB
    """Bytes of the messages of unfinished calls; the code waits with further ones."""
    max_refusals: int = 10_000
    """Refused calls of one run, a long one counted for each 64 KiB; after these nothing is read until the next run."""
    allow_outside_run: bool = False
    """Let code call that still runs in the background after a run."""
    tell_errors: bool = True
    """Send the code the type and the message of a host function's exception; its traceback is never sent."""


@dataclass(frozen=True)
class EgressLimits:
    """Bounds on connections through the egress allowlist, all enforced on the host. Times are seconds, sizes bytes.

    Each request on a reused connection counts as a connection, in number, bytes and seconds.
    """

    max_connections: int = 32
    """Connections of one sandbox at the same time; more are refused."""
    max_opened: int = 10_000
    """Connections that one run may open, refused ones counted; more are hung up on."""
    head_timeout: float = 15.0
    """Seconds until a request's head, and the TLS greeting, must be there."""
    idle_timeout: float = 120.0
    """Seconds without a byte in either direction."""
    max_seconds: float = 1_800.0
    """Seconds that one connection may last."""
    max_received: int = GIB
    """Bytes that one connection may bring in."""
    max_sent: int = 256 * MIB
    """Bytes that one connection may send out."""
    max_packages_cache: int = 4 * GIB
    """Bytes of the files in `packages_cache`, and of those being fetched. The least recently used make room."""
