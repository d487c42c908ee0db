"""The connection of a kernel's clients: the addresses of the five sockets, and the key that signs messages.

Format: https://jupyter-client.readthedocs.io/en/stable/kernels.html#connection-files
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from agent_tools.errors import EngineError, InvalidParams
from agent_tools.machine.owner import Owner
from agent_tools.machine.private_folder import private_base

Channel = Literal["shell", "iopub", "stdin", "control", "hb"]
CHANNELS: tuple[Channel, ...] = get_args(Channel)
TRANSPORTS = ("tcp", "ipc")
SCHEME = "hmac-sha256"
MAX_SOCKET_PATH = 107  # bytes: sockaddr_un.sun_path less its terminator


@dataclass(frozen=True)
class ConnectionInfo:
    """The contents of a connection file."""

    transport: str
    ip: str
    """An address for 'tcp', the prefix of paths for 'ipc'."""
    ports: Mapping[Channel, int]
    key: bytes
    scheme: str = SCHEME

    @classmethod
    def read(cls, info: Mapping[str, Any]) -> ConnectionInfo:
        """Check the contents of a connection file.

        Raises:
            InvalidParams: something is missing or unusable.
        """
        transport, ip = info.get("transport", "tcp"), info.get("ip", "127.0.0.1")
        ports = {channel: info.get(f"{channel}_port") for channel in CHANNELS}
        key = info.get("key", b"")
        if transport not in TRANSPORTS or not isinstance(ip, str):
            raise InvalidParams(f"The connection has transport={transport!r:.40}; give 'tcp' or 'ipc', and an ip.")
        for channel, port in ports.items():
            if type(port) is not int or not 0 < port < 65536:
                raise InvalidParams(f"The connection has {channel}_port={port!r:.40}; give a number of 1 to 65535.")
        if not isinstance(key, (str, bytes)) or not key:
            raise InvalidParams("The connection has no key, so any program could use the kernel.")
        key = key.encode() if isinstance(key, str) else key
        return cls(transport, ip, ports, key, str(info.get("signature_scheme") or SCHEME))  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: Path) -> ConnectionInfo:
        """Read a connection file.

        Raises:
            InvalidParams: it cannot be read, or holds something else.
        """
        try:
            info = json.loads(path.read_text())
        except (OSError, ValueError) as exc:
            raise InvalidParams(f"The connection file {path} cannot be read ({exc}).") from exc
        if not isinstance(info, dict):
            raise InvalidParams(f"The connection file {path} is not a JSON object.")
        return cls.read(info)

    @classmethod
    def private(cls, folder: Path, key: bytes, scheme: str) -> ConnectionInfo:
        """Return a connection by sockets in a folder.

        Raises:
            EngineError: its path is too long for sockets.
        """
        ip = str(folder / "k")
        if len(os.fsencode(ip)) + 2 > MAX_SOCKET_PATH:
            raise EngineError(f"{folder} is too long for a socket path; set AGENT_TOOLS_RUN_DIR to a shorter folder.")
        return cls("ipc", ip, {channel: number for number, channel in enumerate(CHANNELS, 1)}, key, scheme)

    def address(self, channel: Channel) -> str:
        """Return the address of one socket, as ZeroMQ writes it."""
        return f"{self.transport}://{self.ip}{':' if self.transport == 'tcp' else '-'}{self.ports[channel]}"

    def as_dict(self) -> dict[str, Any]:
        """Return the contents of the connection file."""
        ports = {f"{channel}_port": port for channel, port in self.ports.items()}
        return {
            "transport": self.transport,
            "ip": self.ip,
            **ports,
            "key": self.key,
            "signature_scheme": self.scheme,
        }


def make_private_folder() -> Path:
    """Make a folder that only this user may enter, that no sandbox sees, and that is deleted with this process.

    Raises:
        EngineError: it cannot be made.
    """
    folder = private_base() / f"{Owner.current().token}-{secrets.token_hex(4)}"
    folder.mkdir(mode=0o700)
    return folder
