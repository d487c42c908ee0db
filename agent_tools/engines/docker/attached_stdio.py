"""The attached stdin and stdout of a container: one non-blocking stream, and its frames of output.

Format of the stream: https://docs.docker.com/reference/api/engine/ (attach to a container, stream format).
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
import subprocess
import time
from collections.abc import Callable
from typing import Any

from agent_tools.guest.wire.sockets import await_any

CHUNK_BYTES = 256 * 1024
SSH_SECONDS = 5.0  # seconds that an ssh process may take to end
_LATER = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class AttachedStdio:
    """The Stdio protocol on the result of the docker SDK's `attach_socket`, over unix sockets, TLS and ssh."""

    def __init__(self, attached: Any, release: Callable[[], None]) -> None:
        self._release = release
        self._attached = attached
        self._process: subprocess.Popen[bytes] | None = getattr(attached, "proc", None)
        self._socket: socket.socket | None = None
        self._pid = os.getpid()
        self._reader = self._writer = -1
        self._output = OutputFrames()
        if self._process:  # ssh: two pipes
            assert self._process.stdin
            assert self._process.stdout
            self._reader, self._writer = self._process.stdout.fileno(), self._process.stdin.fileno()
            os.set_blocking(self._reader, False)
            os.set_blocking(self._writer, False)
        else:
            self._socket = socket_of(attached)
            self._socket.setblocking(False)
            self._reader = self._writer = self._socket.fileno()

    def fileno(self) -> int:
        """Return the descriptor to poll for reading; -1 once closed."""
        return self._reader

    def writer(self) -> int:
        """Return the descriptor to poll for writing: over ssh another pipe. -1 once closed."""
        return self._writer

    def receive(self) -> bytes | None:
        """Return bytes from the sandbox's stdout; b'' at the end, None if there are none yet."""
        while self._reader >= 0:
            try:
                data = self._socket.recv(CHUNK_BYTES) if self._socket else os.read(self._reader, CHUNK_BYTES)
            except _LATER:
                return None
            except OSError:
                break
            if not data:
                break
            if found := self._output.stdout_of(data):
                return found
        return b""

    def send(self, data: bytes | bytearray) -> int:
        """Send bytes without waiting; return how many were sent."""
        try:
            return int(self._socket.send(data) if self._socket else os.write(self._writer, data))
        except _LATER:
            return 0

    def close(self) -> None:
        """Hang up."""
        if self._reader < 0:
            return
        self._reader = self._writer = -1
        if self._process:
            self._close_pipes(self._process)
        elif self._socket:
            response_of(self._attached).close()
        if os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                self._release()

    def _close_pipes(self, process: subprocess.Popen[bytes]) -> None:
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
        socket.socket.close(self._attached)  # the SDK's class is also an unused socket
        if os.getpid() != self._pid:  # the process is the parent's to end
            return
        process.terminate()
        try:
            process.wait(SSH_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def response_of(attached: Any) -> Any:
    """Return what is to be closed: the response above a file object. As garbage it would print its failure to end."""
    return getattr(attached, "_response", attached)


def socket_of(attached: Any) -> socket.socket:
    """Return the socket below http.client's file object."""
    found = attached if isinstance(attached, socket.socket) else getattr(attached, "_sock", None)
    if not isinstance(found, socket.socket):
        raise OSError(f"the docker SDK attached in an unknown way ({type(attached).__name__})")
    return found


STDOUT = 1
_HEADER = struct.Struct(">BxxxI")


def conversation(stream: socket.socket, data: bytes, seconds: float, most: int) -> bytes:
    """Send `data` and read until the end, both at once, for at most `seconds` and `most` bytes."""
    deadline, unsent, taken = time.monotonic() + seconds, memoryview(data), bytearray()
    stream.setblocking(False)
    with contextlib.suppress(OSError):  # of a command that ends early or times out, the output so far is returned
        while len(taken) <= most:
            try:
                while unsent:
                    unsent = unsent[stream.send(unsent) :]
            except _LATER:
                pass
            except OSError:  # the command has closed its stdin
                unsent = unsent[:0]
            try:
                part = stream.recv(65_536)
            except _LATER:
                part = None
            if part == b"":
                break
            taken += part or b""
            if (left := deadline - time.monotonic()) <= 0:
                break
            if part is None:
                await_any([stream.fileno()], [stream.fileno()] if unsent else [], left)
    return bytes(taken)


class OutputFrames:
    """Decodes the engine's frames from pieces of any size: stream u8, three zeros, length u32."""

    def __init__(self) -> None:
        self._left = 0  # bytes left of the current frame
        self._is_stdout = False
        self._header = b""

    def stdout_of(self, data: bytes) -> bytes:
        """Return the stdout bytes in the next bytes of frames."""
        found, at = bytearray(), 0
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                if self._is_stdout:
                    found += piece
                self._left -= len(piece)
                at += len(piece)
            else:
                piece = data[at : at + _HEADER.size - len(self._header)]
                self._header += piece
                at += len(piece)
                if len(self._header) == _HEADER.size:
                    stream, self._left = _HEADER.unpack(self._header)
                    self._is_stdout, self._header = stream == STDOUT, b""
        return bytes(found)
