"""PID 1 of the sandbox: preloads IPython, forks kernels, reaps, and ends the sandbox when the host goes away.

The host speaks to it in the words of wire/words.py, over a unix socket or over stdio (lifeline.py).

A kernel is a fork of this process, so a fresh one costs no imports. It inherits nothing of this process but its
sockets. When the host process ends, however it ends, the lifeline reaches end-of-file here and PID 1 returns, which
ends every process of the sandbox. It handles no signal: those sent from inside a PID namespace do not reach its init.
"""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import NoReturn

from ..checkpoints import oom_priority
from ..checkpoints.keeper import Keeper
from ..forks import MAX_TRACEBACK, in_fork, set_dumpable, yield_to_pid_1
from ..gvisor import is_gvisor
from ..process_scope import Descendants, ProcessScope
from ..processes import adopt_orphans, is_child, status_of_main_thread
from ..wire.sockets import await_any, pair
from ..wire.words import (
    NO_COPY,
    Arm,
    Branch,
    Disarm,
    EndBranch,
    EndCommands,
    Exit,
    Failed,
    Files,
    FreshBranch,
    Interrupt,
    Kill,
    Mark,
    Marked,
    Order,
    Pause,
    Proxy,
    Resume,
    Rouse,
    Spawn,
    Start,
    Wake,
)
from .alarms import Alarms
from .helper_processes import HelperProcesses
from .last_words import SECONDS, SECONDS_IF_KILLED, LastWords
from .lifeline import SocketLifeline, StdioLifeline
from .memory_limit import MemoryLimit
from .supervisors import Supervisors

RunKernel = Callable[[list[int], str], None]
"""Is a kernel, on the descriptors of its sockets and in the folder of this path, until the host hangs up."""

RUN_DIR = os.environ.get("AGENT_TOOLS_RUN_DIR", "/run/kernel")
CHECK_SECONDS = 1.0  # seconds between two looks at the main thread of the kernel
REAPED_AT_ONCE = 1000  # ended children, more than a sandbox may have
ARMED_AFTER = 0.25  # seconds of a run that the host may take to arm it
NO_ROOM = "there is no room for its process"
WORK_DIR = os.environ.get("AGENT_TOOLS_WORK_DIR", "/workspace")


class Init:
    """Holds at most one kernel, a fork that does `run_kernel`, and speaks to the host."""

    def __init__(self, host: SocketLifeline | StdioLifeline, run_kernel: RunKernel, scope: ProcessScope) -> None:
        self.host = host
        self.run_kernel = run_kernel
        self.scope = scope
        self.kernel_pid = 0
        self.kernel_fd = -1
        self.kernel_report: socket.socket | None = None  # on which a kernel says why it could not start
        self.next_look = 0.0  # at the kernel's main thread
        self.status: int | None = None  # with which that has ended, before the others
        self.generation = 0
        self.oom_kills = 0
        self.helpers = HelperProcesses(self.let_go, scope.kill_branch, WORK_DIR)
        self.keeper = Keeper()
        self.branches = Supervisors()
        self.last_words = LastWords()
        self.oom = oom_priority.OomPriority()
        self.memory = MemoryLimit(scope.signal, has_pid_1=os.getpid() == 1)
        self.alarms = Alarms()

    def serve(self) -> None:
        """Obey the host, watch the kernel and reap, until the host hangs up."""
        while self.host.is_open:
            readers, writers = self.host.watched()
            readers += [*self.helpers.watched(), *self.branches.filenos()]
            readers += [descriptor for descriptor in (self.kernel_fd, self.keeper.fileno()) if descriptor >= 0]
            ready = await_any(readers, writers, self.timeout())
            self.look_at_kernel()
            self.hear()
            self.oom.look(self.kernel_pid, self.keeper.ranked())
            self.memory.look(self.keeper.pids)
            self.reap()
            self.helpers.serve_names(ready)
            for order, descriptors in self.host.exchange(ready):
                try:
                    self.obey(order, descriptors)
                finally:
                    for descriptor in descriptors:
                        os.close(descriptor)
            self.ring()  # after all orders: no signal is for the run that follows the one it was due to
        self.keeper.drop()
        self.kill()
        self.scope.signal(signal.SIGKILL)  # or one of them could hold up the end of PID 1: see LastWords

    def timeout(self) -> float:
        """Return the seconds until the next timer."""
        due = self.alarms.seconds()
        is_code_running = due or time.monotonic() < self.keeper.ran_at + ARMED_AFTER
        look = oom_priority.CHECK_SECONDS if is_code_running and self.keeper.copies else CHECK_SECONDS
        return max(0.0, min([*due, *self.memory.seconds(), look]))

    def look_at_kernel(self) -> None:
        """End a kernel whose main thread has ended alone: a system call of another ABI ends the thread that makes it.

        Once in CHECK_SECONDS seconds.
        """
        if self.kernel_pid and time.monotonic() >= self.next_look:
            self.next_look = time.monotonic() + CHECK_SECONDS
            self.status = status_of_main_thread(self.kernel_pid)
            if self.status is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.kernel_pid, signal.SIGKILL)

    def ring(self) -> None:
        """Send the kernel the signals that are due."""
        for number in self.alarms.due(self.kernel_pid):
            if number == signal.SIGKILL:
                self.kill()
            elif self.kernel_pid:
                os.kill(self.kernel_pid, number)

    def obey(self, order: Order | None, descriptors: list[int]) -> None:  # noqa: C901  (a table)
        """Carry out one order; unknown ones are ignored."""
        match order:
            case Start(number):
                self.start(number, descriptors)
            case Wake(number, run):
                self.wake(number, run, descriptors)
            case Files():
                self.helpers.serve_files(descriptors)
            case Spawn():
                self.helpers.spawn(descriptors)
            case Proxy():
                self.helpers.serve_network(descriptors)
            case EndCommands():
                self.helpers.end_commands()
            case Arm(interrupt, kill):
                self.alarms.arm(interrupt, kill)
            case Disarm():
                self.alarms.disarm()
            case Interrupt(kill):
                self.alarms.interrupt(kill)
            case Mark(run):
                self.hear()
                self.host.say(Marked(self.generation, run if self.keeper.mark(run) else 0))
            case Branch(number, run):
                self.branch(number, run, descriptors)
            case FreshBranch(number):
                self.fork_supervisor(number, descriptors)
            case EndBranch(number):
                self.end_branch(number)
            case Kill():
                self.kill()
            case Pause() | Resume():
                self.scope.signal(signal.SIGSTOP if isinstance(order, Pause) else signal.SIGCONT)
            case Rouse():
                self.helpers.rouse()

    def start(self, generation: int, descriptors: list[int]) -> None:
        """Fork a fresh kernel, after everything the last one left behind is gone."""
        self.keeper.drop()
        self.clear_for(generation)
        with self.saying_if_full():
            self.fork_kernel(descriptors)

    @contextlib.contextmanager
    def saying_if_full(self) -> Iterator[None]:
        """Tell the host if there is no room for a kernel: commands may have taken all processes."""
        try:
            yield
        except OSError as exc:
            if isinstance(self.scope, Descendants):
                raise  # at the end of a branch's supervisor PID 1 ends all that takes the room
            self.host.say(Failed(self.generation, f"{NO_ROOM} ({exc.strerror})"))

    def fork_kernel(self, descriptors: list[int]) -> None:
        """Fork a kernel. Raises OSError."""
        ours, theirs = pair()
        ours.setblocking(False)
        with self.keeper.connect() as keeper, theirs, self.new_pipes() as pipes:
            pid = os.fork()
            if pid == 0:
                ours.close()
                pipes[::2] = map(os.dup, pipes[::2])  # PID 1's own are closed in a fork
                in_fork(lambda: self.become_kernel([*descriptors[:2], keeper.detach(), *pipes]), theirs.fileno())
        self.kernel_pid, self.kernel_fd, self.kernel_report = pid, _watched(pid), ours

    def become_kernel(self, descriptors: list[int]) -> None:
        """Turn this fork into a kernel. The lifeline is closed before anything else can run."""
        self.let_go()
        set_dumpable(True)
        yield_to_pid_1()
        oom_priority.rank("self", oom_priority.KERNEL)
        self.run_kernel(descriptors, WORK_DIR)

    def wake(self, generation: int, run: int, descriptors: list[int]) -> None:
        """Continue a copy of the last kernel in its place; while that lives, only a copy of this run."""
        self.hear()
        is_exact = bool(self.kernel_pid)
        if is_exact and not self.keeper.has(run):
            self.host.say(Failed(generation, f"{NO_COPY} {self.keeper.skipped}"))
            return
        self.clear_for(generation)
        with self.saying_if_full(), self.keeper.connect() as keeper, self.new_pipes() as pipes:
            if not self.keeper.wake(run, [*descriptors[:2], keeper.fileno(), *pipes], is_exact=is_exact):
                self.say_no_copy()

    @contextlib.contextmanager
    def new_pipes(self) -> Iterator[list[int]]:
        """Make the pipes of the next kernel's streams, in place of those that a kernel never got, for as long as it."""
        self.tell_last_words(SECONDS_IF_KILLED)
        pipes = self.last_words.pipes()
        try:
            yield pipes
        finally:
            for writer in pipes[1::2]:
                os.close(writer)

    def tell_last_words(self, seconds: float) -> None:
        """Send the host the last output of the ended kernel, within a time limit."""
        deadline = time.monotonic() + seconds
        for words in self.last_words.read_output(self.generation, self.let_go, seconds):
            self.host.say(words, deadline - time.monotonic())

    def say_no_copy(self) -> None:
        """Tell the host that no copy becomes the kernel: there is none, or it was killed before it could."""
        self.host.say(Failed(self.generation, self.keeper.complaint()))

    def branch(self, number: int, run: int, descriptors: list[int]) -> None:
        """Have the copy of this very run fork the supervisor of a branch; tell the host whether there is one."""
        self.hear()
        is_asked = False
        with contextlib.suppress(OSError), self.branches.expect(number) as announced:  # without room there is none
            is_asked = self.keeper.branch(run, [*descriptors, announced.fileno()])
        self.host.say(Marked(self.generation, run if is_asked else 0))

    def fork_supervisor(self, number: int, lifeline: list[int]) -> None:
        """Fork a supervisor whose kernels begin as those of this process do; else the host sees the socket's end."""
        scope = Descendants(has_pid_1=os.getpid() == 1)
        with contextlib.suppress(OSError):  # there is no room for a process
            pid = os.fork()
            if pid == 0:
                in_fork(lambda: self.become_supervisor(lifeline[0], scope))
            self.branches.add(number, pid)

    def become_supervisor(self, lifeline: int, scope: Descendants) -> NoReturn:
        """Turn this fork into the supervisor of a branch."""
        self.let_go()
        if self.kernel_fd >= 0:
            os.close(self.kernel_fd)
        set_dumpable(True)
        yield_to_pid_1()
        supervise(lifeline, self.run_kernel, scope)

    def end_branch(self, number: int) -> None:
        """End the supervisor of a branch, and all that comes from it."""
        self.hear()
        pid = self.branches.end(number)
        if pid and not self.scope.kill_branch(pid):
            self.clear_orphans()

    def hear(self) -> None:
        """Read messages of processes that may be the kernel or the supervisor of a branch now."""
        self.branches.hear(is_child)
        pid = self.keeper.hear()
        if pid and not self.kernel_pid and is_child(pid):
            self.kernel_pid, self.kernel_fd = pid, _watched(pid)
            self.clear_orphans()  # what was taken for a copy, and is none any more

    def clear_for(self, generation: int) -> None:
        """End what the last kernel left behind, for the next one."""
        self.kill()
        self.generation = generation
        self.oom_kills = oom_priority.oom_kills()

    def let_go(self) -> None:
        """In a fork: close what belongs to PID 1 alone."""
        if self.kernel_report:
            self.kernel_report.close()
        self.host.close()
        self.last_words.close()
        self.helpers.close()
        self.keeper.close()
        self.branches.close()

    def kill(self) -> None:
        """End the kernel and all its descendants, orphans included; not helper processes, copies and branches."""
        self.alarms.disarm()
        self.hear()
        if self.kernel_pid:
            self.scope.signal(signal.SIGSTOP)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.kernel_pid, signal.SIGKILL)
            while self.kernel_pid:
                self.reap(block=True)  # which ends the rest
            return
        self.scope.kill_all_but(self.spared())
        self.reap()  # or there might be no room for the next process

    def spared(self) -> set[int]:
        """Return the processes that outlive a kernel, with what comes from them."""
        return self.helpers.pids | self.keeper.pids | self.branches.pids

    def clear_orphans(self) -> None:
        """End orphans of killed branches and commands; they cannot be distinguished from orphans of the kernel."""
        self.scope.kill_all_but(self.spared() | ({self.kernel_pid} if self.kernel_pid else set()))

    def reap(self, *, block: bool = False) -> None:
        """Collect ended children; where the kernel is among them, stop what it left, report, and end it."""
        with contextlib.suppress(ChildProcessError):
            for _ in repeat(None) if block else range(REAPED_AT_ONCE):  # code may make them as fast
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | (0 if block else os.WNOHANG))
                if ended is None:
                    return
                self.hear()  # it may have said before its end that it is the kernel
                pid, status = os.waitpid(ended.si_pid, 0)
                if self.oom.forget(pid) and os.WIFSIGNALED(status):
                    self.oom_kills = min(self.oom_kills + 1, oom_priority.oom_kills())  # it, and not the kernel
                if self.helpers.forget(pid):
                    self.clear_orphans()
                if self.keeper.forget(pid):
                    self.say_no_copy()
                if self.branches.forget(pid):
                    self.clear_orphans()
                is_over = self.memory.forget(pid)
                if pid == self.kernel_pid:
                    report = self.read_report()
                    if self.status is not None and not is_gvisor():  # whose /proc says 0 of each
                        status = self.status
                    self.forget_kernel()
                    self.scope.signal(signal.SIGSTOP)
                    self.tell_last_words(SECONDS_IF_KILLED if block else SECONDS)
                    self.report_exit(status, report, is_over=is_over)
                    self.kill()
                    return
        if block:
            self.forget_kernel()

    def read_report(self) -> bytes:
        """Return the kernel's report on its start, normally empty."""
        with contextlib.suppress(OSError):
            return self.kernel_report.recv(MAX_TRACEBACK) if self.kernel_report else b""
        return b""

    def forget_kernel(self) -> None:
        """Note that there is no kernel any more."""
        self.kernel_pid = 0
        if self.kernel_fd >= 0:
            os.close(self.kernel_fd)
        if self.kernel_report:
            self.kernel_report.close()
        self.kernel_fd, self.kernel_report, self.status = -1, None, None

    def report_exit(self, status: int, report: bytes, *, is_over: bool) -> None:
        """Tell the host why the kernel did not start, how it ended, and whether the memory limit had a part in it.

        `is_over`: it was killed for that limit here.
        """
        if report:
            self.host.say(Failed(self.generation, report.decode("ascii", "replace")))
        code = os.waitstatus_to_exitcode(status)
        oom = is_over or oom_priority.oom_kills() > self.oom_kills
        full = oom_priority.fullest_folder() if oom else ()
        self.host.say(Exit(self.generation, max(0, code), max(0, -code), oom, *full))


def supervise(lifeline: int, run_kernel: RunKernel, scope: Descendants) -> NoReturn:
    """Be the supervisor of a branch, until PID 1 ends it, which the host orders when it hangs up."""
    adopt_orphans()
    oom_priority.rank("self", oom_priority.KERNEL_LAST)
    try:
        Init(StdioLifeline(lifeline, os.dup(lifeline)), run_kernel, scope).serve()
        scope.kill_all_but(())
        while True:
            signal.pause()
    finally:
        os._exit(0)


def _watched(pid: int) -> int:
    """A descriptor that tells of the process's end at once; -1 under an older gVisor: reaping tells, later."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1
