"""The pages that the kernel writes between two copies, made its own again before code waits for that.

After a fork the kernel and its copy share all pages, and the first write to each one waits until it is copied: several
microseconds on a virtual machine, and even `1 + 1` writes to 800 pages. What was written between two copies is mostly
written again. So these pages are found before a copy is taken, and copied in the pause after it.

Formats: proc_pid_maps(5), proc_pid_pagemap(5); MADV_POPULATE_WRITE of madvise(2), since Linux 5.14. Where one of them
is missing, as in gVisor, nothing is found or copied.
"""

import contextlib
import ctypes
import os
import re

MAX_MAPPING = (
    64 * 2**20
)  # bytes of one mapping that is looked through: larger ones hold data, which is seldom rewritten
MAX_SEARCHED = 256 * 2**20  # bytes that are looked through in all
MAX_PAGES = 4096  # that are copied ahead: more is data, too
_PAGE = os.sysconf("SC_PAGE_SIZE")
_ENTRY = 8  # bytes for each page
_OWN = re.compile(rb"\x81+")  # the highest bytes of entries: in memory, of no file, mapped by this process alone
_MADV_POPULATE_WRITE = 23
Ranges = list[tuple[int, int]]
"""First addresses and lengths, in bytes."""


def own_pages() -> Ranges:
    """Return the pages that this process shares with no copy; nothing if they are more than MAX_PAGES."""
    found: Ranges = []
    with contextlib.suppress(OSError), open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        for start, size in _mappings():
            entries = os.pread(pagemap.fileno(), size // _PAGE * _ENTRY, start // _PAGE * _ENTRY)
            runs = _OWN.finditer(entries[_ENTRY - 1 :: _ENTRY])
            found += [(start + run.start() * _PAGE, len(run[0]) * _PAGE) for run in runs]
    return found if sum(size for _, size in found) <= MAX_PAGES * _PAGE else []


def _mappings() -> Ranges:
    """Return what is written privately, without large mappings."""
    found, left = [], MAX_SEARCHED
    with open("/proc/self/maps", "rb") as file:
        for line in file:
            ends, rights = line.split(b" ", 2)[:2]
            if rights == b"rw-p":
                start, end = (int(address, 16) for address in ends.split(b"-"))
                if end - start <= min(MAX_MAPPING, left):
                    left -= end - start
                    found.append((start, end - start))
    return found


def copy_ahead(pages: Ranges) -> None:
    """Make pages this process's own, as a write to each would; those that are no longer there are left out."""
    madvise = ctypes.CDLL(None).madvise
    for start, size in pages:
        madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _MADV_POPULATE_WRITE)
