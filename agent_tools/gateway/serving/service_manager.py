"""Notifications to the service manager: one datagram to the socket that systemd names (sd_notify(3))."""

from __future__ import annotations

import contextlib
import socket


def notify(address: str, state: str) -> None:
    """Send e.g. READY=1. Without an address no manager waits for it; a manager that has ended is ignored."""
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.setblocking(False)
        with contextlib.suppress(OSError):
            sender.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)
