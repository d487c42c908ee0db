"""`!command`: its output is the cell's, or the object's that the code has put in the place of a stream."""

import codecs
import os
import selectors
import subprocess
import sys
from typing import Any, TextIO

from . import magics
from .streams import Stream

LOOK_SECONDS = 0.05  # between two looks at a command whose output is taken elsewhere
READ_BYTES = 64 * 1024  # what a pipe holds: one reading after the end finds all that was written before it
SIGNALLED = 128  # a shell's status for a command that a signal ended, less the signal's number
INTERRUPTED = SIGNALLED + 2
CD_ALONE = "!cd changes the directory of that one command, which has ended; %cd changes the kernel's."


def run(shell: Any, command: str) -> None:
    """Run a shell command as `InteractiveShell.system` does: variables are expanded, `_exit_code` is set."""
    if magics.handles(command):
        return
    command = shell.var_expand(command, depth=2)
    if magics.is_only("cd", command):
        magics.say(CD_ALONE)
    try:
        status = _status(command)
    except KeyboardInterrupt:
        print(f"\n{shell.get_exception_only()}", file=sys.stderr)
        status = INTERRUPTED
    shell.user_ns["_exit_code"] = SIGNALLED - status if status > SIGNALLED else status
    if shell.system_raise_on_error and status:
        raise subprocess.CalledProcessError(status, command)


def _status(command: str) -> int:
    out, err = _elsewhere(sys.stdout), _elsewhere(sys.stderr)
    with subprocess.Popen(
        command,
        shell=True,
        executable=os.environ.get("SHELL"),
        stdout=subprocess.PIPE if out else None,
        stderr=subprocess.PIPE if err else None,
    ) as process:
        try:
            _pass_on(process, [(process.stdout, out), (process.stderr, err)])
            return process.wait()
        except BaseException:
            process.kill()
            raise


def _elsewhere(stream: Any) -> TextIO | None:
    return None if stream is None or isinstance(stream, Stream) else stream


def _pass_on(process: subprocess.Popen[bytes], ways: list[tuple[Any, TextIO | None]]) -> None:
    """Write the command's output where it belongs, until it has ended: what it leaves running is not waited for."""
    with selectors.DefaultSelector() as selector:
        for pipe, target in ways:
            if target:
                decoder = codecs.getincrementaldecoder("utf-8")("replace")
                selector.register(pipe, selectors.EVENT_READ, (decoder, target))
        while selector.get_map():
            has_ended = process.poll() is not None
            for key, _ in selector.select(0 if has_ended else LOOK_SECONDS):
                data = os.read(key.fd, READ_BYTES)
                decoder, target = key.data
                target.write(decoder.decode(data, final=not data))
                if not data:
                    selector.unregister(key.fileobj)
            if has_ended:
                return
