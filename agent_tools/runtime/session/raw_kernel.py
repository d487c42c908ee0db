"""The kernel of a session for clients that speak the Jupyter protocol themselves: messages pass unread.

Format: https://jupyter-client.readthedocs.io/en/stable/messaging.html
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from agent_tools.guest.wire.framing import pack_parts
from agent_tools.results.execution import Died, Notice, Omitted, Output
from agent_tools.runtime.kernel.channel import Arrived
from agent_tools.runtime.kernel.kernel import Kernel
from agent_tools.runtime.session.branch import AnySandbox
from agent_tools.runtime.session.kernel_recovery import KernelRecovery
from agent_tools.runtime.session.session import Session

UNLIMITED = 10 * 365 * 86_400.0  # seconds: the client ends the code


@contextmanager
def raw_kernel(session: Session) -> Iterator[RawKernel]:
    """Lock a session for a client that speaks with its kernel; closing the session ends the kernel."""
    with session.locked():
        yield RawKernel(session.recovery)


class RawKernel:
    """Passes messages to and from the present kernel. Call it with the session's lock; `interrupt` needs none."""

    def __init__(self, recovery: KernelRecovery) -> None:
        self._recovery = recovery
        self._around = ExitStack()
        self._after_run: Callable[[], Iterable[Output]] = tuple
        self._is_answering = False

    def start(self, prelude: str) -> None:
        """Start a fresh kernel, which runs the prelude first, in the session's sandbox or in a new one.

        Errors as for `Sandbox.run_code`; PreludeError: the prelude failed.
        """
        self._recovery.kernel(wakes=False)
        self._recovery.take_lost()
        self._sandbox.keep_prelude(prelude)
        self._sandbox.define(prelude, self._recovery.spec.limits.start_timeout)
        self._kernel.settle(self._recovery.spec.limits.start_timeout)  # so that a crash in the first cell costs that

    @property
    def max_message_bytes(self) -> int:
        """The largest message that is taken from the kernel, or sent to it."""
        return int(self._recovery.spec.limits.max_message_bytes)

    @property
    def has_ended(self) -> bool:
        """True once the kernel is known to have ended."""
        return bool(self._kernel.end_reason)

    def filenos(self) -> list[int]:
        """Return the descriptors to poll for messages."""
        return self._kernel.channel.filenos()

    def begin(self, *, is_code: bool) -> int:
        """Prepare for a request; return the number of a run of code, by which its checkpoint is known, else 0.

        Raises:
            FileRejected: work_dir is over its limits, or could not be brought into the sandbox.
        """
        if is_code:
            self._after_run = self._around.enter_context(self._sandbox.root.running())
        else:
            self._around.enter_context(self._sandbox.use())
        self._is_answering = True
        self._kernel.lifeline.arm(UNLIMITED, UNLIMITED)  # so that an interrupt reaches this request and no other
        return self._kernel.runs.begin(is_cell=True) if is_code and self._kernel.runs else 0

    def end(self) -> str:
        """Record that the request has ended; return notes for the user on the files and the disk of work_dir."""
        self._is_answering = False
        self._kernel.lifeline.disarm()
        self._sandbox.root.take_connections()
        after_run, self._after_run = self._after_run, tuple
        notes = "\n".join(each.text for each in after_run() if isinstance(each, (Omitted, Notice)))
        self._around.close()
        return notes

    def send(self, channel: int, parts: Sequence[bytes]) -> None:
        """Send a message: header, parent header, metadata and content as JSON, and buffers."""
        self._kernel.channel.send(pack_parts(channel, parts))

    def receive(self) -> Iterator[Arrived]:
        """Yield the messages that are there."""
        kernel = self._kernel
        for event in kernel.channel.receive(0):
            if isinstance(event, Arrived):
                yield event
            else:
                kernel.note(event)

    def succeed(self) -> Died:
        """Wake the checkpoint of a kernel that has ended, if it has one; return the ending and the variables' fate."""
        died = Died(self._kernel.end_reason)
        self.end()
        ending = self._recovery.after(died)
        assert isinstance(ending, Died)
        return ending

    def interrupt(self) -> None:
        """Interrupt the request that is being answered, as Ctrl-C would. Any thread may call it."""
        if (sandbox := self._recovery.sandbox) and sandbox.kernel:
            sandbox.kernel.interrupt()

    def stop(self) -> None:
        """End the kernel, which first finishes as a program does if it answers no request; the sandbox stays."""
        self._around.close()
        if (sandbox := self._recovery.sandbox) and sandbox.kernel:
            if not self._is_answering:
                sandbox.finish()
            sandbox.kernel.end()

    @property
    def _sandbox(self) -> AnySandbox:
        assert self._recovery.sandbox
        return self._recovery.sandbox

    @property
    def _kernel(self) -> Kernel:
        assert self._sandbox.kernel
        return self._sandbox.kernel
