"""A whole egress allowlist without a sandbox: the guest's proxy in a thread, the host's end, and servers to reach."""

from __future__ import annotations

import contextlib
import datetime
import shutil
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from agent_tools.engines.network import NetworkPolicy
from agent_tools.guest import proxy
from agent_tools.runtime.egress.dialling import Surroundings
from agent_tools.runtime.egress.egress import Egress
from tests.waiting import until

PATIENCE = 10.0  # seconds
NAME = "api.example.com"


@dataclass
class Server:
    """A server that keeps what it was sent and answers all with the same bytes. With `context` it speaks TLS."""

    answer: bytes | Callable[[bytes], bytes] = b""
    context: ssl.SSLContext | None = None
    takes: Callable[[bytes], bool] = lambda got: True
    got: list[bytes] = field(default_factory=list)
    connections: int = 0

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                end, _ = self._listener.accept()
                self.connections += 1
                self._threads.append(threading.Thread(target=self._serve, args=(end,), daemon=True))
                self._threads[-1].start()

    def _serve(self, end: socket.socket) -> None:
        at = len(self.got)
        self.got.append(b"")
        with contextlib.suppress(OSError, ssl.SSLError), end:
            end.settimeout(PATIENCE)
            if self.context:
                end = self.context.wrap_socket(end, server_side=True)
            with end:
                while data := end.recv(65536):
                    self.got[at] += data
                    if self.answer and self.takes(self.got[at]):
                        end.sendall(self.answer(self.got[at]) if callable(self.answer) else self.answer)
                        break

    def await_connection(self) -> None:
        """Wait until somebody has connected."""
        until(lambda: self.connections, PATIENCE)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(PATIENCE)


class Hop(Server):
    """A proxy on the host's way out: whatever name is asked for, it connects to one server of this machine."""

    def __init__(self, to: Server) -> None:
        self.to = to
        super().__init__()

    def _serve(self, end: socket.socket) -> None:
        head = b""
        with end, contextlib.suppress(OSError):
            end.settimeout(PATIENCE)
            while b"\r\n\r\n" not in head:
                head += end.recv(1)
            self.got.append(head)
            end.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            with socket.create_connection(("127.0.0.1", self.to.port)) as on:
                back = threading.Thread(target=_copy, args=(on, end), daemon=True)
                back.start()
                _copy(end, on)
                back.join(PATIENCE)


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


class Network:
    """The code's view: connections to the proxy's port."""

    def __init__(self, option: dict[str, Any], surroundings: Surroundings) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        ours, self._theirs = socket.socketpair()
        self.egress = Egress(NetworkPolicy.read(option), surroundings)
        self.certificates = Path(tempfile.mkdtemp()) / "certificates.pem"  # never a file of the machine's
        guest = (self._theirs.fileno(), self._listener.dup(), str(self.certificates))
        self._guest = threading.Thread(target=proxy.serve, args=guest, daemon=True)
        self._guest.start()
        self.egress.serve(ours, time.monotonic() + PATIENCE)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE)

    def say(self, *parts: bytes) -> bytes:
        """Send bytes on one connection, each part after something came back for the one before; all that came back."""
        with self.connect() as connected:
            back = b""
            for number, part in enumerate(parts):
                connected.sendall(part)
                if number < len(parts) - 1:
                    back += connected.recv(65536)
            with contextlib.suppress(OSError):
                while more := connected.recv(65536):
                    back += more
        return back

    def tunnel(self, target: str, *parts: bytes) -> bytes:
        return self.say(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode(), *parts)

    def taken(self, count: int = 1) -> list[Any]:
        """The records, as soon as there are so many."""
        found: list[Any] = []
        deadline = time.monotonic() + PATIENCE
        while len(found) < count and time.monotonic() < deadline:
            found += [each for each in self.egress.take_connections()[0] if each.status != "open"]
            time.sleep(0.01)
        return found

    def close(self) -> None:
        self.egress.close()
        self._guest.join(PATIENCE)
        assert not self._guest.is_alive()
        self._listener.close()
        self._theirs.close()
        shutil.rmtree(self.certificates.parent)


@contextlib.contextmanager
def closing_all() -> Iterator[Callable[[Any], Any]]:
    """Closes what it is given, the latest first."""
    with contextlib.ExitStack() as stack:

        def keep(thing: Any) -> Any:
            stack.callback(thing.close)
            return thing

        yield keep


def certificate(folder: Path, *names: str) -> tuple[ssl.SSLContext, Path]:
    """A server's context for these names, and the bundle that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    names = names or (NAME,)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .sign(key, hashes.SHA256())
    )
    bundle, private = folder / "ca.pem", folder / "key.pem"
    bundle.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(bundle, private)
    return context, bundle
