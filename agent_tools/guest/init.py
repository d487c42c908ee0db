"""PID 1 of the sandbox: preloads IPython, forks kernels, reaps, and ends the sandbox when the host goes away.

The host listens on a unix socket in the mounted run directory and accepts one connection: this process. Each datagram
on it is one line of ASCII words.

    host  -> guest   start <generation> <key>    with two listening sockets: shell, iopub
                     arm <interrupt> <kill>      seconds until SIGINT, and from then until SIGKILL
                     disarm | interrupt | kill
    guest -> host    exit <generation> code <n> [oom] | exit <generation> signal <n> [oom]
                     failed <generation> <traceback>

A kernel is a fork of this process, so a fresh one costs no imports. It inherits nothing of this process but its two
sockets. When the host process ends, however it ends, the connection reaches end-of-file here and PID 1 returns, which
ends every process of the sandbox. It handles no signal: those sent from inside a PID namespace do not reach its init.
"""

import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import time
import traceback

RUN_DIR = os.environ.get("AGENT_TOOLS_RUN_DIR", "/run/kernel")
WORK_DIR = os.environ.get("AGENT_TOOLS_WORK_DIR", "/workspace")
MAX_WORDS = 4096  # bytes in one datagram
REAP_SECONDS = 1.0  # how often adopted processes that ended are collected
PR_SET_DUMPABLE = 4
OOM_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")


def main() -> None:
    """Serve the host until it goes away."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    host = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    host.connect(f"{RUN_DIR}/init.sock")
    from . import startup  # noqa: F401  (the preload: everything a kernel needs, imported once)

    gc.collect()
    gc.freeze()  # keeps the forks' pages shared
    _set_dumpable(False)  # no /proc/1/mem for the kernel, which has the same uid
    Init(host).serve()


class Init:
    """Holds at most one kernel and speaks to the host."""

    def __init__(self, host: socket.socket) -> None:
        self.host = host
        self.kernel_pid = 0
        self.kernel_fd = -1
        self.generation = 0
        self.oom_kills = 0
        self.alarms: list[tuple[float, int]] = []  # monotonic time, signal; in order

    def serve(self) -> None:
        """Obey the host, watch the kernel and reap, until the host hangs up."""
        is_host_there = True
        while is_host_there:
            watched = [self.host.fileno(), *([self.kernel_fd] if self.kernel_fd >= 0 else [])]
            readable, _, _ = select.select(watched, [], [], self.patience())
            self.ring()
            self.reap()
            if self.host.fileno() in readable:
                is_host_there = self.listen()
        self.kill()

    def patience(self) -> float:
        """Seconds until something is due without anyone's word."""
        due = self.alarms[0][0] - time.monotonic() if self.alarms else REAP_SECONDS
        return max(0.0, min(due, REAP_SECONDS))

    def ring(self) -> None:
        """Send the signals that are due to a kernel that runs over its time."""
        while self.alarms and self.alarms[0][0] <= time.monotonic():
            _, number = self.alarms.pop(0)
            if number == signal.SIGKILL:
                self.kill()
            elif self.kernel_pid:
                os.kill(self.kernel_pid, number)

    def listen(self) -> bool:
        """Take one order of the host and carry it out; False when the host is gone."""
        data, descriptors, _, _ = socket.recv_fds(self.host, MAX_WORDS, 2)
        try:
            self.obey(data.decode("ascii", "replace").split(), descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return bool(data)

    def obey(self, words: list[str], descriptors: list[int]) -> None:
        """Carry out one order; unknown words are ignored."""
        match words:
            case ["start", generation, key]:
                self.start(int(generation), key, descriptors)
            case ["arm", interrupt, kill]:
                now = time.monotonic()
                first = now + float(interrupt)
                self.alarms = [(first, signal.SIGINT), (first + float(kill), signal.SIGKILL)]
            case ["disarm"]:
                self.alarms = []
            case ["interrupt"] if self.kernel_pid:
                os.kill(self.kernel_pid, signal.SIGINT)
            case ["kill"]:
                self.kill()

    def start(self, generation: int, key: str, descriptors: list[int]) -> None:
        """Fork a fresh kernel, after everything the last one left behind is gone."""
        self.kill()
        self.generation = generation
        self.oom_kills = _count_oom_kills()
        pid = os.fork()
        if pid == 0:
            _become_kernel(self.host, generation, key, descriptors)
        self.kernel_pid, self.kernel_fd = pid, os.pidfd_open(pid)

    def kill(self) -> None:
        """End the kernel and all its descendants, whoever they were adopted by."""
        self.alarms = []
        if os.getpid() == 1:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        elif self.kernel_pid:  # outside a PID namespace (a test double): only the kernel's own process group
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.kernel_pid, signal.SIGKILL)
        while self.kernel_pid:
            self.reap(block=True)

    def reap(self, *, block: bool = False) -> None:
        """Collect ended children; when the kernel is among them, end what it left running and report."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, 0 if block else os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.kernel_pid:
                    self.forget_kernel()
                    self.kill()
                    self.report_exit(status)
                    return
        if block:
            self.forget_kernel()

    def forget_kernel(self) -> None:
        """Note that there is no kernel any more."""
        self.kernel_pid = 0
        if self.kernel_fd >= 0:
            os.close(self.kernel_fd)
            self.kernel_fd = -1

    def report_exit(self, status: int) -> None:
        """Tell the host how the kernel ended, and whether the memory limit had a part in it."""
        code = os.waitstatus_to_exitcode(status)
        words = f"exit {self.generation} " + (f"signal {-code}" if code < 0 else f"code {code}")
        if _count_oom_kills() > self.oom_kills:
            words += " oom"
        self.host.setblocking(False)  # a host that does not listen must not hold PID 1 up
        with contextlib.suppress(OSError):
            self.host.send(words.encode())
        self.host.setblocking(True)


def _become_kernel(host: socket.socket, generation: int, key: str, descriptors: list[int]) -> None:
    """Turn this fork into a kernel; never returns. The lifeline is closed before anything else can run."""
    code = 1
    try:
        os.setsid()
        _set_dumpable(True)
        _prefer_as_oom_victim()
        from . import startup

        app = startup.make_kernel(key.encode(), descriptors, WORK_DIR)
        host.close()
        app.start()
        code = 0
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else 1
    except BaseException:  # noqa: BLE001  (the last frame of this process: report, then end)
        with contextlib.suppress(OSError):
            host.send(f"failed {generation} {traceback.format_exc()[-MAX_WORDS // 2 :]}".encode("ascii", "replace"))
    finally:
        os._exit(code)


def _set_dumpable(dumpable: bool) -> None:
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, int(dumpable), 0, 0, 0)


def _prefer_as_oom_victim() -> None:
    """Ask the kernel's OOM killer to take the IPython process and not PID 1."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("500")


def _count_oom_kills() -> int:
    for path in OOM_COUNTERS:
        with contextlib.suppress(OSError, ValueError), open(path) as counters:
            for line in counters:
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


if __name__ == "__main__":
    main()
