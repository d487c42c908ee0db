"""Telling the service manager how the gateway fares: one datagram to the socket that systemd names (sd_notify(3))."""

from __future__ import annotations

import contextlib
import socket


def notify(address: str, state: str) -> None:
    """Send e.g. READY=1. Without an address nobody has asked, and a manager that is gone does not matter."""
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.setblocking(False)
        with contextlib.suppress(OSError):
            sender.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)
