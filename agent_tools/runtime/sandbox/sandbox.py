"""A running sandbox with its resources on the host: transport, kernel, and the sync of work_dir if needed."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shlex
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path

from agent_tools.engines.engine import GUEST_SKILLS, Engine, SandboxSpec
from agent_tools.engines.guest import Guest
from agent_tools.engines.oci_runtime import chosen, kind_of
from agent_tools.engines.volumes import Volume
from agent_tools.errors import EngineError, FileRejected, KernelDied, SandboxStartError
from agent_tools.guest.wire.words import EndCommands, Files, Pause, Proxy, Resume, Rouse, Spawn
from agent_tools.machine.background import Do, do_now
from agent_tools.machine.deleted_files import DeletedFiles, deleted_files
from agent_tools.machine.owner import NAME_LABEL, Owner
from agent_tools.machine.path_walk import identity_now
from agent_tools.machine.written_bytes import written_bytes
from agent_tools.results.connections import NetworkConnection
from agent_tools.results.execution import Notice, Omitted, Output
from agent_tools.results.variables import LOST, Variables
from agent_tools.runtime.commands.commands import Commands
from agent_tools.runtime.files.archives import Archives
from agent_tools.runtime.files.claims import Claim
from agent_tools.runtime.files.file_conversation import Conversation
from agent_tools.runtime.files.guest_files import GuestFiles
from agent_tools.runtime.files.mirror import Mirror, fetched
from agent_tools.runtime.files.quota import Brake, Quota, QuotaWatch
from agent_tools.runtime.files.volume_quota import VolumeUser, quota_of
from agent_tools.runtime.kernel.kernel import Kernel
from agent_tools.runtime.sandbox.branches import BranchLimit, KernelBranches
from agent_tools.runtime.sandbox.idle_stop import IdleStop
from agent_tools.runtime.sandbox.kernel_holder import KernelHolder
from agent_tools.runtime.sandbox.kernels import Kernels
from agent_tools.runtime.sandbox.sandbox_start import await_guest, egress, mounted, start_errors
from agent_tools.runtime.sandbox.session_spec import SessionSpec
from agent_tools.runtime.transport.transport import choose

NETWORK_SECONDS = 5.0  # seconds to start the guest's proxy again after code has ended it
HANG_UP_SECONDS = 0.5  # seconds to find out that a sandbox with a lost command has ended


class LiveSandbox(KernelHolder):
    """A running sandbox. The constructor waits for its first kernel, or raises; `close` releases everything."""

    _is_ending = False

    def __init__(self, engine: Engine, spec: SessionSpec, quota: Quota) -> None:
        self._engine = engine
        self._spec = spec
        self._orders = itertools.count(1)
        self._busy = 0  # current runs, of this kernel and of branches
        self._syncing = threading.Lock()  # guards the start and the end of runs
        self.branches = KernelBranches(BranchLimit(spec.limits.max_branches))
        self._mirror: Mirror | None = None
        self._quota: QuotaWatch | None = None
        self._had_commands = False
        self._idle = self._idle_stop()
        self.commands = Commands(spec.limits, self._open_command, self._has_hung_up, self._resume)
        guest = engine.guest(spec.work_dir)
        with start_errors(), ExitStack() as undo:
            if guest.shares_files:
                undo.callback(Claim(spec.work_dir).release)
            self._work_dir = identity_now(spec.work_dir)
            self._volumes, groups = mounted(spec.volumes, guest)
            for each in self._watched_volumes():
                undo.callback(Claim(Path(each.source), f"Volume {each.name}:").release)
            refuse_access_lists(spec, guest)
            self._transport = choose(spec.transport, guest, spec.isolation)
            undo.callback(self._transport.close)
            asked = replace(self._asked(guest), volumes=self._volumes, groups=groups)
            self.container = engine.start(asked)
            undo.callback(self.remove)
            self._lifeline = await_guest(engine, self._transport, self.container, asked, spec.limits.start_timeout)
            undo.callback(lambda: self._idle.close())
            self.kernels = Kernels(spec, self._transport, self._lifeline, self._orders)
            undo.callback(self.kernels.drop)
            undo.callback(self.commands.close)
            self.files = GuestFiles(spec.limits, self._open_files, self.use)
            undo.callback(self.files.close)
            if not guest.shares_files:
                for skill in spec.skills:
                    Archives(self.files, spec.limits).put_folder(GUEST_SKILLS, skill.folder)
            self._egress = egress(spec.isolation)
            if self._egress:
                undo.callback(self._egress.close)
            self.start_kernel(spec.limits.start_timeout)
            self._follow_folder(guest, quota, undo)
            for each in self._watched_volumes():
                undo.callback(quota_of(each).join(self._volume_user()))
            self._undo = undo.pop_all()

    def _asked(self, guest: Guest) -> SandboxSpec:
        spec = self._spec
        return SandboxSpec(
            image=spec.image,
            run_dir=self._transport.run_dir,
            work_dir=spec.work_dir if guest.shares_files else None,
            guest=guest,
            isolation=spec.telling_isolation,
            labels={**Owner.current().labels, NAME_LABEL: secrets.token_hex(8)},
            work_dir_bytes=spec.limits.max_work_dir_bytes,
            is_ahead=spec.is_blank,
            skills=tuple(each.folder for each in spec.skills),
        )

    def _watched_volumes(self) -> list[Volume]:
        """Return the volumes that the code may fill."""
        return [each for each in self._volumes if each.is_writable and each.folder]

    def _volume_user(self) -> VolumeUser:
        brake = Brake(self._order_for_work_dir, self._end_for_volume)
        return VolumeUser(brake, self._has_work, self._writes, self._deleted_bytes)

    def _writes(self) -> tuple[int, bool]:
        return written_bytes(self.container.pid) if self.container.pid else (0, False)

    def _deleted_bytes(self, device: int) -> int:
        """Return the bytes of deleted files that are open on a device; work_dir's quota counts those on its own."""
        is_apart = self.container.pid and device != self._work_dir[0]
        return deleted_files(self.container.pid, device).bytes if is_apart else 0

    def _follow_folder(self, guest: Guest, quota: Quota, undo: ExitStack) -> None:
        """Enforce the limits of work_dir, or sync it if it is not shared."""
        if guest.shares_files:
            brake = Brake(self._order_for_work_dir, self._kill_for_work_dir)
            self._quota = QuotaWatch(quota, brake, self._has_work, self._deleted_files)
            undo.callback(self._quota.close)
        else:
            self._mirror_folder(guest)
            undo.callback(self._close_mirror)

    def _mirror_folder(self, guest: Guest) -> None:
        limits = self._spec.limits
        files = GuestFiles(replace(limits, max_listed_files=limits.max_work_dir_entries), self._open_files)
        self._mirror = Mirror(self._spec.work_dir, guest.host_ids, limits, files)

    def adopt(self, spec: SessionSpec, quota: Quota) -> None:
        """Become the sandbox of a session, whose work_dir is the mounted folder under its new name.

        Raises:
            PreludeError: the session's prelude failed.
        """
        self._spec = spec
        self._idle = self._idle_stop()
        self._work_dir = identity_now(spec.work_dir)
        if self._quota:
            quota.count()
            self._quota.quota = quota
        else:
            self._close_mirror()
            self._mirror_folder(self._engine.guest(spec.work_dir))
        self.kernels.adopt(spec)

    @property
    def root(self) -> LiveSandbox:
        """The sandbox itself; of a branch, the sandbox that it runs in."""
        return self

    @property
    def lineage(self) -> str:
        """A name for its kernels, to which checkpoints belong."""
        return self.container.id

    @property
    def has_ended(self) -> bool:
        """True once the sandbox is gone, is about to be removed, or does not answer."""
        return self._is_ending or self._lifeline.has_ended

    @property
    def is_usable(self) -> bool:
        """True while it accepts commands and serves its files."""
        return not self._is_ending and not self._lifeline.is_hung_up() and self.has_work_dir

    @property
    def has_work_dir(self) -> bool:
        """True while work_dir is the folder that was mounted, and not another one under its name."""
        return identity_now(self._spec.work_dir) == self._work_dir

    def start_kernel(self, timeout: float) -> Kernel:
        """Order PID 1 to fork a fresh kernel, and connect to it within `timeout` seconds.

        Raises:
            KernelDied: it did not start.
        """
        deadline = time.monotonic() + timeout
        with self.use():
            kernel = self.kernels.start(deadline)
            self._open_network(deadline)
        return kernel

    def wake_kernel(self, timeout: float) -> Variables:
        """Replace an ended kernel by the latest checkpoint; report on the variables."""
        if self.has_ended or not self.has_work_dir:
            return LOST
        deadline = time.monotonic() + timeout
        try:
            with self.use():
                self._open_network(deadline)
                return self.kernels.go_back(deadline)
        except (KernelDied, OSError):
            return LOST

    def _open_network(self, deadline: float) -> None:
        """Start the guest's proxy for the egress allowlist, which outlives a kernel; code can end it.

        Raises:
            KernelDied: it did not start.
        """
        if self._egress and not self._egress.is_serving:
            sockets = self._transport.open(Proxy(next(self._orders)), self._lifeline)
            if sockets is None:
                raise KernelDied("the sandbox takes no orders")
            self._egress.serve(sockets[0], deadline)

    def take_connections(self) -> tuple[tuple[NetworkConnection, ...], int]:
        """Return the network connections since the last call, and how many more there were."""
        return self._egress.take_connections() if self._egress else ((), 0)

    @contextlib.contextmanager
    def running(self) -> Iterator[Callable[[], Iterator[Output]]]:
        """Check the limits of work_dir and sync it before a run.

        Yields a function that syncs it after the run, and returns notes: files that could not be fetched, and a nearly
        full disk.

        Raises:
            FileRejected: work_dir is over its limits, or could not be brought into the sandbox.
        """
        self._begin_work()
        with self.use():
            with contextlib.suppress(KernelDied):  # code has ended it, and may block its restart
                self._open_network(time.monotonic() + NETWORK_SECONDS)
            with self._syncing:
                try:
                    if self._mirror:
                        self._mirror.push()
                except FileRejected:
                    if not self.has_ended:  # else the run says so, and the next one has another sandbox
                        raise
                self._busy += 1
            try:
                yield self._after_run
            finally:
                with self._syncing:
                    self._busy -= 1
                if self._quota and not self._has_work():
                    self._quota.quota.begin()

    @contextlib.contextmanager
    def after_code(self) -> Iterator[None]:
        """Within `running`, after the end of its code: what is done here fills no work_dir, and is not killed."""
        with self._syncing:
            self._busy -= 1
        try:
            yield
        finally:
            with self._syncing:
                self._busy += 1

    def _begin_work(self) -> None:
        """Check that work_dir is within its limits, before code or a command begins, whose connections count anew.

        Raises:
            FileRejected: it is not.
        """
        if self._egress:
            self._egress.count_anew()
        if self._quota:
            self._quota.quota.refuse_excess()
            if not self._has_work():
                self._quota.quota.begin()

    def _after_run(self) -> Iterator[Output]:
        if self._quota and (notice := self._quota.quota.notice()):
            yield Notice(notice)
        if self._mirror:
            with self._syncing:
                missing = fetched(self._mirror, lambda: self.has_ended)
            if missing:
                yield Omitted(missing)

    @property
    def replaced(self) -> Collection[str]:
        """The names of files here that were replaced because the last run changed them in a remote work_dir."""
        return self._mirror.replaced if self._mirror else ()

    def _open_files(self, max_parts: int) -> Conversation | None:
        """Return a connection to a fresh file server of the guest; None once the sandbox has ended."""
        sockets = self._transport.open(Files(next(self._orders)), self._lifeline)
        if sockets is None:
            self._lifeline.mark_dead()
            return None
        return Conversation(sockets[0], max_parts, lambda: self._lifeline.send(Rouse()))

    def _open_command(self) -> socket.socket | None:
        """Return a socket for one command in the guest; None once the sandbox has ended.

        Raises:
            FileRejected: work_dir is over its limits.
        """
        self._begin_work()
        self._had_commands = True
        with self.use():
            sockets = self._transport.open(Spawn(next(self._orders)), self._lifeline)
        return sockets[0] if sockets else None

    def _has_hung_up(self) -> bool:
        """Return whether the sandbox has ended, which a command's socket may show first."""
        return self._lifeline.is_hung_up(HANG_UP_SECONDS)

    def _idle_stop(self) -> IdleStop:
        return IdleStop(self._spec.idle_stop, lambda order: self._lifeline.send(order), lambda: self._has_work())

    def use(self) -> AbstractContextManager[None]:
        """Around a use: what was stopped for want of use goes on."""
        return self._idle.use()

    def _order_for_work_dir(self, order: Pause | Resume) -> None:
        if not self._idle.is_stopped:  # a stopped sandbox writes nothing
            self._lifeline.send(order)

    def _resume(self) -> None:
        self._lifeline.send(Resume())

    def _has_work(self) -> bool:
        return bool(self._busy) or self.commands.are_running

    def _kill_for_work_dir(self, reason: str) -> None:
        self.commands.close(reason)
        self._lifeline.send(EndCommands())
        self.branches.kill(reason, "work_dir_quota")
        if kernel := self.kernel:
            kernel.kill(reason, "work_dir_quota")

    def _end_for_volume(self, reason: str) -> None:
        self._is_ending = True  # before the run is answered: the next one must not begin here
        self._kill_for_work_dir(reason)
        self.remove()  # a fresh kernel would have the volume as it is mounted

    def _deleted_files(self) -> DeletedFiles:
        """Return the deleted files that are still open; empty if the sandbox's processes are not visible here."""
        return deleted_files(self.container.pid, self._work_dir[0]) if self.container.pid else DeletedFiles()

    def _close_mirror(self) -> None:
        if self._mirror:
            self._mirror.files.close()

    def finish(self) -> None:
        """Let the kernel, which runs nothing, finish as a program does, and fetch what it wrote."""
        if self.kernel and not self.has_ended and self.has_work_dir:
            with self.use():
                self.kernel.finish()
                if self._mirror:
                    with self._syncing:
                        fetched(self._mirror, lambda: self.has_ended)

    def end(self, behind: Do) -> None:
        """End all code in the sandbox and remove it; in the background, by `behind`, if nothing can run in it any more.

        Processes of commands do not end with the kernel. Call it with the session's lock.
        """
        has_ended = self.kernel is None or self.kernel.end()
        has_more = self._had_commands or self.branches.had_any
        self.remove(behind if has_ended and not has_more else do_now)

    def remove(self, do: Do = do_now) -> None:
        """End the sandbox at once; safe while another thread still reads from it."""
        if not self.is_removed:
            self.is_removed = True
            self.commands.close()
            self.branches.close()
            do(self._remove)

    def _remove(self) -> None:
        """Remove the sandbox by the engine; if that fails, it ends with its lifeline."""
        with contextlib.suppress(EngineError):
            self._engine.remove(self.container)

    def close(self) -> None:
        """Release everything, in reverse order."""
        self._undo.close()


def refuse_access_lists(spec: SessionSpec, guest: Guest) -> None:
    """Refuse a folder that a guest may use only by an access list (machine/access_lists.py), which gVisor ignores.

    Raises:
        SandboxStartError: it is one.
    """
    runtime = chosen(spec.isolation, guest.runtimes) if guest.runtimes else spec.isolation.runtime
    if kind_of(runtime or "") != "gvisor" or not guest.shares_files or os.getuid() != 0:
        return
    folder, uid = str(spec.work_dir), guest.host_ids[0]
    if os.stat(folder).st_uid != uid:
        raise SandboxStartError(
            f"work_dir {folder!r} is of another user than the sandbox. gVisor ignores access lists, so code could "
            f"not write there. Give a new folder, or run: chown -R {uid} {shlex.quote(folder)}"
        )
