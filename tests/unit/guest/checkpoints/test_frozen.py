"""The copy of a kernel, woken where it has no room for the descriptors of the next one."""

from __future__ import annotations

import contextlib
import os
import resource
import socket

from agent_tools.guest.checkpoints.datagrams import DESCRIPTORS
from agent_tools.guest.checkpoints.frozen import Woken, freeze


def leave_room(numbers: int, but_for: set[int]) -> None:
    """Let this process open only so many descriptors once it has closed these."""
    listed = [int(name) for name in os.listdir("/proc/self/fd")]  # one of them was open for the list alone
    taken = {number for number in listed if os.path.exists(f"/proc/self/fd/{number}")} - but_for
    free = [number for number in range(len(taken) + numbers) if number not in taken]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[numbers - 1] + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def test_a_copy_without_room_for_all_descriptors_ends() -> None:
    """PID 1 reports its end at once; a kernel that lacked one would never be ready."""
    keeper, kernel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours, line = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reader, done = os.pipe()
    copy = os.fork()
    if copy == 0:
        try:
            leave_room(DESCRIPTORS - 1, but_for={kernel.fileno(), done})
            with contextlib.suppress(Woken):
                freeze(kernel, 1, (1, line), done)
        finally:
            os._exit(0)
    with keeper, kernel, ours, line, open(os.devnull) as null:
        assert keeper.recv(64).startswith(b"copy")
        socket.send_fds(ours, [b"wake "], [null.fileno()] * DESCRIPTORS)
        ours.shutdown(socket.SHUT_WR)  # a copy that waits on ends normally
        assert os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]) == 1
    for end in (reader, done):
        os.close(end)
