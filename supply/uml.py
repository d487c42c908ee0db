"""Virtual machines with Debian in User-mode Linux, which needs neither KVM nor a network nor root to run.

The disk is made once from Debian's packages: engines, systemd, and a Python environment with what the tests need. A
machine runs on a copy-on-write file over it, with a folder of the host (hostfs) as the only door: scripts in, results
out. Its cgroups, users and engines are its own kernel's, so nothing on the host changes. It has one CPU and no network.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
PACKAGES = """
systemd systemd-sysv dbus dbus-user-session libpam-systemd udev kmod procps iproute2 sudo e2fsprogs libarchive13t64
busybox-static docker.io docker-cli podman crun runc rootlesskit uidmap slirp4netns passt fuse-overlayfs netavark
iptables apparmor ca-certificates git python3 python3-venv systemd-container docker-buildx
"""
ADD_KERNEL = """
echo "deb $MIRROR sid main" >"$1/etc/apt/sources.list.d/sid.list"
chroot "$1" sh -ec 'cd /tmp && apt-get -qq -o Acquire::Check-Valid-Until=false update
    apt-get -qq -o APT::Sandbox::User=root download user-mode-linux/sid
    dpkg -x user-mode-linux_*.deb /opt/uml && cp -r /opt/uml/usr/lib/uml/modules/. /usr/lib/modules/
    rm -r *.deb /opt/uml/usr/lib'
rm "$1/etc/apt/sources.list.d/sid.list"
"""
"""Sid's kernel runs with trixie's C library. Trixie's own panics where a fork is interrupted."""
ADD_PYTHON = """
cp /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/"
mkdir "$1/opt/repo" && tar -xf "$CHECKOUT" -C "$1/opt/repo"
chroot "$1" sh -ec 'cd /opt && python3 -m venv venv && venv/bin/pip install -q uv
    extras=code-mode,gateway,kubernetes,mcp,postgresql,ssh
    venv/bin/uv pip install -q --no-cache --compile-bytecode --python venv/bin/python \
        -e "./repo[$extras]" --group repo/pyproject.toml:test && rm -r repo'
"""
"""The package is installed from /opt/repo, where each machine unpacks the checkout of its time."""
SET_UP = """
chroot "$1" sh -ec 'useradd -m -s /bin/bash -u 1000 dev && usermod -aG docker dev
    systemctl -q mask apt-daily.timer apt-daily-upgrade.timer fstrim.timer e2scrub_all.timer
    systemctl -q mask docker.service docker.socket containerd.service
    update-alternatives --quiet --set iptables /usr/sbin/iptables-legacy'
echo uml >"$1/etc/hostname"
echo '127.0.0.1 localhost uml' >"$1/etc/hosts"
echo '/dev/root / ext4 defaults 0 1' >"$1/etc/fstab"
cat >"$1/opt/runner" <<'R'
#!/bin/bash
modprobe -qa hostfs; mkdir -p /host
mount -t hostfs -o "hostfs=$(sed 's/.*share=\\([^ ]*\\).*/\\1/' /proc/cmdline)" none /host
while sleep 0.3; do
    [ -e /host/job ] || continue
    mv /host/job /run/job
    PATH=/opt/venv/bin:$PATH HOME=/root bash /run/job >/host/log 2>&1 </dev/null
    echo $? >/host/code.new && mv /host/code.new /host/code
done
R
chmod +x "$1/opt/runner"
cat >"$1/etc/systemd/system/runner.service" <<'R'
[Unit]
After=basic.target
[Service]
ExecStart=/opt/runner
Delegate=yes
TasksMax=infinity
R
ln -s ../runner.service "$1/etc/systemd/system/multi-user.target.wants/runner.service"
"""
TOOLS = ("./usr/lib/x86_64-linux-gnu", "./usr/lib64", "./usr/sbin/mke2fs", "./etc/mke2fs.conf", "./opt/uml/usr/bin")
WITH_LIBRARIES = """
mount --bind "$1/ld-linux-x86-64.so.2" /lib64/ld-linux-x86-64.so.2
export LD_LIBRARY_PATH="$1"; shift; exec "$@"
"""
BOOT_SECONDS = 120


class MachineError(RuntimeError):
    """A machine cannot be made or has ended; says what to do."""


class Disks:
    """The disk of all machines of a suite, such as `trixie` or `sid`, in a folder that outlives them."""

    def __init__(self, folder: Path, suite: str) -> None:
        self.folder = folder
        self._suite = suite
        dependencies = (ROOT / "pyproject.toml").read_bytes()
        wanted = repr([MIRROR, PACKAGES, ADD_KERNEL, ADD_PYTHON, SET_UP]).encode() + dependencies
        self.path = folder / f"disk-{suite}-{hashlib.sha256(wanted).hexdigest()[:12]}"
        self.tools = folder / f"tools-{suite}"

    def make(self) -> None:
        """Make the disk if it is not there: five minutes and 6 GB.

        Raises:
            MachineError: a program is missing, or a package could not be had.
        """
        if self.path.exists():
            return
        missing = [name for name in ("mmdebstrap", "setarch", "tar") if not shutil.which(name)]
        missing += [] if os.getuid() == 0 or shutil.which("newuidmap") else ["newuidmap"]
        if missing or os.uname().machine != "x86_64":
            raise MachineError(
                "User-mode Linux runs on x86_64 only."
                if not missing
                else f"Missing: {', '.join(missing)}. Install Debian's packages mmdebstrap, util-linux and uidmap."
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        for old in self.folder.glob(f"disk-{self._suite}-*"):
            old.unlink()
        root = self.folder / f"root-{self._suite}.tar"
        checkout = self.folder / "checkout.tar"
        pack_checkout(checkout)
        hooks = [f"--customize-hook={script}" for script in (ADD_KERNEL, ADD_PYTHON, SET_UP)]
        options = ["-q", "--variant=minbase", f"--include={','.join(PACKAGES.split())}", *hooks]
        options.append('--aptopt=Acquire::Check-Valid-Until "false"')  # sid's lists last a week, and mirrors may lag
        command = ["mmdebstrap", *options, self._suite, str(root), MIRROR]
        self._run(command, "Debian's packages", MIRROR=MIRROR, CHECKOUT=str(checkout))
        shutil.rmtree(self.tools, ignore_errors=True)
        self.tools.mkdir()
        self._run(["tar", "-xf", str(root), "-C", str(self.tools), "--no-same-owner", *TOOLS], "unpacking the kernel")
        part = self.path.with_suffix(".part")
        with part.open("wb") as file:
            file.truncate(24 << 30)
        options = ["-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=1,lazy_journal_init=1", "-d", str(root), str(part)]
        command = self.with_libraries([str(self.tools / "usr/sbin/mke2fs"), *options])
        self._run(command, "the disk", MKE2FS_CONFIG=str(self.tools / "etc/mke2fs.conf"))
        root.unlink()
        part.rename(self.path)

    def with_libraries(self, command: list[str]) -> list[str]:
        """Return a command that runs another with the disk's C library in place of an older one of the host."""
        libraries = str(self.tools / "usr/lib/x86_64-linux-gnu")
        namespaces = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--mount", "--map-root-user"]
        return [*namespaces, "sh", "-c", WITH_LIBRARIES, "sh", libraries, *command]

    def _run(self, command: list[str], what: str, **environ: str) -> None:
        streams: Any = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        done = subprocess.run(command, env={**os.environ, **environ}, check=False, **streams)
        if done.returncode:
            raise MachineError(f"{what} failed: {' '.join(done.stderr.strip().splitlines()[-5:])}")


def pack_checkout(archive: Path) -> None:
    """Write the files of this checkout that git knows or would add into a tar."""
    listed = subprocess.run(
        ["git", "ls-files", "-zco", "--exclude-standard"], cwd=ROOT, stdout=subprocess.PIPE, check=True
    ).stdout
    there = b"\0".join(name for name in listed.split(b"\0") if name and (ROOT / os.fsdecode(name)).exists())
    command = ["tar", "-cf", str(archive), "--null", "-T", "-", "--transform=s,^,./,"]
    subprocess.run(command, cwd=ROOT, input=there, check=True)


class Machine:
    """A running machine. `share` is its /host."""

    def __init__(self, process: subprocess.Popen[bytes], share: Path, changes: Path) -> None:
        self._process = process
        self.share = share
        self._changes = changes

    def keep(self, snapshot: Path) -> None:
        """Copy what the disk has changed into a file that another machine can begin with."""
        self.run("sync", 120)
        part = snapshot.with_suffix(".part")
        subprocess.run(["cp", "--sparse=always", str(self._changes), str(part)], check=True)
        part.rename(snapshot)

    def run(self, script: str, seconds: float) -> tuple[int, str]:
        """Run a bash script as root; return its exit code and what it printed, to both streams.

        Raises:
            MachineError: the machine ended, or the script took longer.
        """
        (self.share / "code").unlink(missing_ok=True)
        (self.share / "job.new").write_text(script)
        (self.share / "job.new").rename(self.share / "job")
        end = time.monotonic() + seconds
        while not (self.share / "code").exists():
            if self._process.poll() is not None or b"Kernel panic" in (self.share / "console").read_bytes():
                raise MachineError(f"The machine has ended; its console is {self.share / 'console'}.")
            if time.monotonic() > end:
                raise MachineError(f"No end after {seconds:.0f} s; the output so far is {self.share / 'log'}.")
            time.sleep(0.3)
        return int((self.share / "code").read_text()), (self.share / "log").read_text(errors="replace")


@contextmanager
def booted(disks: Disks, share: Path, memory: str, snapshot: Path) -> Iterator[Machine]:
    """Boot a machine on a snapshot, where there is one, and end it at the end.

    `share` is a folder for its files, `memory` such as '4G', taken from /dev/shm.

    Raises:
        MachineError: it does not come up, or another machine uses the folder.
    """
    share.mkdir(parents=True, exist_ok=True)
    with (
        (share / "lock").open("w") as lock,
        tempfile.TemporaryDirectory(prefix="agent-tools-uml-", dir=disks.folder) as scratch,
    ):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MachineError(f"Another machine uses {share}: wait for it, or name another folder.") from None
        for name in ("job", "code", "log"):
            (share / name).unlink(missing_ok=True)
        if snapshot.exists():
            subprocess.run(["cp", "--sparse=always", str(snapshot), f"{scratch}/cow"], check=True)
        options = f"""mem={memory} seccomp=auto ubd0={scratch}/cow,{disks.path} root=/dev/ubda rw uml_dir={scratch}
            umid=m con=null con0=null,fd:1 con1=null systemd.unit=multi-user.target apparmor=1 security=apparmor
            share={share}""".split()
        command = disks.with_libraries(["nice", str(disks.tools / "opt/uml/usr/bin/linux.uml"), *options])
        with (share / "console").open("wb") as console:
            environ = {**os.environ, "TMPDIR": "/dev/shm"}
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=console, stderr=console, env=environ, start_new_session=True
            )
        try:
            machine = Machine(process, share, Path(scratch) / "cow")
            machine.run("systemctl is-system-running --wait", BOOT_SECONDS)
            yield machine
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
