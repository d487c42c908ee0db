"""PID 1 of the sandbox: preloads IPython, forks kernels, reaps, and ends the sandbox when the host goes away.

The host listens on a unix socket in the mounted run directory and accepts one connection: this process. Each datagram
on it is one line of ASCII words.

    host  -> guest   start <generation> | interrupt | kill
    guest -> host    ready <generation> | failed <generation> <traceback>
                     exit <generation> code <n> [oom] | exit <generation> signal <n> [oom]

A kernel is a fork of this process, so a fresh one costs no imports. The connection is closed in the fork before any
user code runs; when the host process ends, however it ends, the socket reaches end-of-file here and PID 1 returns,
which ends every process of the sandbox. Signals sent from inside a PID namespace cannot kill its init.
"""

import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import traceback

RUN_DIR = os.environ.get("AGENT_TOOLS_RUN_DIR", "/run/kernel")
WORK_DIR = os.environ.get("AGENT_TOOLS_WORK_DIR", "/workspace")
MAX_WORDS = 4096  # bytes in one datagram
PR_SET_DUMPABLE = 4
OOM_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")


def main() -> None:
    """Serve the host until it goes away."""
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
        self.generation = 0
        self.oom_kills = 0

    def serve(self) -> None:
        """Fork the first kernel, then obey and reap until the host hangs up."""
        wakeup, wakeup_writer = os.pipe()
        os.set_blocking(wakeup_writer, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup_writer, warn_on_full_buffer=False)
        self.start("1")
        while True:
            readable, _, _ = select.select([self.host.fileno(), wakeup], [], [])
            if wakeup in readable:
                os.read(wakeup, 4096)
                self.reap()
            if self.host.fileno() in readable:
                words = self.host.recv(MAX_WORDS).decode("ascii", "replace").split()
                if not words:
                    break
                self.obey(words)
        self.kill()

    def obey(self, words: list[str]) -> None:
        """Carry out one order of the host; unknown words are ignored."""
        match words:
            case ["start", generation]:
                self.start(generation)
            case ["interrupt"] if self.kernel_pid:
                os.kill(self.kernel_pid, signal.SIGINT)
            case ["kill"]:
                self.kill()

    def start(self, generation: str) -> None:
        """Fork a fresh kernel, after everything the last one left behind is gone."""
        self.kill()
        self.generation = int(generation)
        self.oom_kills = _count_oom_kills()
        pid = os.fork()
        if pid == 0:
            _become_kernel(self.host, self.generation)
        self.kernel_pid = pid

    def kill(self) -> None:
        """End the kernel and all its descendants, whoever they were adopted by."""
        if os.getpid() == 1:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        elif self.kernel_pid:  # outside a PID namespace (a test double): only the kernel's own process group
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.kernel_pid, signal.SIGKILL)
        while self.kernel_pid:
            self.reap(block=True)

    def reap(self, *, block: bool = False) -> None:
        """Collect ended children; report the kernel's end to the host."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, 0 if block else os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.kernel_pid:
                    self.kernel_pid = 0
                    self.report_exit(status)
                    return
        if block:
            self.kernel_pid = 0

    def report_exit(self, status: int) -> None:
        """Tell the host how the kernel ended, and whether the memory limit had a part in it."""
        code = os.waitstatus_to_exitcode(status)
        words = f"exit {self.generation} " + (f"signal {-code}" if code < 0 else f"code {code}")
        if _count_oom_kills() > self.oom_kills:
            words += " oom"
        with contextlib.suppress(OSError):
            self.host.send(words.encode())


def _become_kernel(host: socket.socket, generation: int) -> None:
    """Turn this fork into a kernel; never returns."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        _set_dumpable(True)
        _prefer_as_oom_victim()
        from . import startup

        def ready() -> None:
            host.send(f"ready {generation}".encode())
            host.close()

        startup.run_kernel(f"{RUN_DIR}/{generation}/kernel.json", WORK_DIR, ready)
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
