"""Checks of the addresses that code can reach."""

from __future__ import annotations

import errno
import socket
import struct
from functools import partial
from typing import Callable

from agent_tools.conformance.guest.answers import held, listed, opened, read

NO_ROUTE = (errno.ENETUNREACH, errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPERM, errno.EACCES)
SOCKETS = {
    "raw_socket": (socket.AF_INET, socket.SOCK_RAW, 1),
    "packet_socket": (17, socket.SOCK_RAW, 0),
    "vsock": (40, socket.SOCK_STREAM, 0),
    "kernel_crypto": (38, 5, 0),
    "netlink": (16, socket.SOCK_RAW, 12),  # netfilter
}


def _connects(host: str, port: int) -> list[str]:
    """Answer open for a refused connection, too: its host was reached."""
    try:
        socket.create_connection((host, port), 1.5).close()
    except ConnectionRefusedError:
        return opened(host + " was reached (it refused the port)")
    except OSError as exc:
        if exc.errno in NO_ROUTE:
            return held("unreachable (" + errno.errorcode[exc.errno or 0] + ")")
        return ["unknown", "no answer"]
    return opened(host + " port " + str(port) + " was reached")


def _gateway() -> list[str]:
    routes = [line.split() for line in read("/proc/net/route").splitlines()[1:]]
    gateways = [route[2] for route in routes if route[1] == "00000000" and route[2] != "00000000"]
    if not gateways:
        return held("there is none")
    return _connects(socket.inet_ntoa(struct.pack("<L", int(gateways[0], 16))), 80)


def _route_out() -> list[str]:
    """Connect a datagram socket, which sends nothing and only looks for a route."""
    found = []
    for family, address in ((socket.AF_INET, "8.8.8.8"), (socket.AF_INET6, "2001:4860:4860::8888")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((address, 53))
                found.append(address)
        except OSError:
            pass
    return listed(found, "none, IPv4 and IPv6")


def _resolves(*names: str) -> list[str]:
    found = []
    for name in names:
        try:
            found.append(name + " is " + str(socket.getaddrinfo(name, 80)[0][4][0]))
        except OSError:
            pass
    return listed(found, "not resolved")


def _makes_socket(name: str) -> list[str]:
    socket.socket(*SOCKETS[name]).close()
    return opened("allowed")


def _abstract_sockets() -> list[str]:
    """List abstract unix sockets, which belong to a network namespace: the host's are seen only in the host's."""
    names = [line.split()[-1] for line in read("/proc/net/unix").splitlines() if line.split()[-1].startswith("@")]
    return listed(names[:5], "none visible")


CHECKS: dict[str, Callable[[], list[str]]] = {
    "gateway": _gateway,
    "metadata": partial(_connects, "169.254.169.254", 80),
    "internet": partial(_connects, "1.1.1.1", 443),
    "route_out": _route_out,
    "names": partial(_resolves, "example.com"),
    "host_names": partial(_resolves, "host.docker.internal", "gateway.docker.internal", "host.containers.internal"),
    **{name: partial(_makes_socket, name) for name in SOCKETS},
    "abstract_sockets": _abstract_sockets,
}
