"""The program that an engine executes beside a waiting PID 1: it passes its stdin and stdout to PID 1, and waits.

    python -P -m agent_tools_guest.pid1.hand_over

It is executed once, before any code of the user's. Nobody of the same user can look into it. It ends with PID 1, and
the sandbox ends with it: code that kills every process it sees ends its own sandbox.
"""

import socket
import sys
import time

from ..forks import set_dumpable, silence

ADDRESS = "\0agent_tools.hold"  # abstract: in the network namespace of the sandbox, without a file
LISTEN_TIMEOUT = 60.0  # seconds until PID 1 must listen
PAUSE = 0.01  # seconds between two tries


def main(address: str = ADDRESS) -> None:
    """Hand over stdin and stdout, and wait until PID 1 ends."""
    set_dumpable(False)
    with connected(address, time.monotonic() + LISTEN_TIMEOUT) as pid_1:
        socket.send_fds(pid_1, [b"\0"], [0, 1])
        silence(0, 1)
        pid_1.recv(1)


def connected(address: str, deadline: float) -> socket.socket:
    """Return a connection to PID 1, which may not listen yet.

    Raises:
        OSError: it does not, until the deadline.
    """
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(address)
        except OSError:
            connection.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE)
        else:
            return connection


if __name__ == "__main__":
    try:
        main()
    except OSError as exc:
        sys.exit(f"PID 1 does not take the streams over: {exc}")
